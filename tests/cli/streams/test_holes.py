"""Goal: no command passes over deleted messages in silence. Method: messages that are truncated before they are read;
the text, the JSON, the exit code and the saved position of each command.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.chains.test_cardinal import batch
from tests.cli.command import CommandLine
from tests.cli.promised import promised

LINE = "3 messages of {}/0 missing, 2 to 4: deleted before they were read"


@pytest.fixture
def with_hole(at_node: CommandLine, stream: str) -> str:
    """A stream whose reader `me` is at 2, and whose first message is at 5."""
    at_node("push", stream, stdin=b"".join(b"%d\n" % number for number in range(10)))
    assert at_node("consume", stream, "--client", "me", "--limit", "2").text == "0\n1\n"
    assert at_node("stream", "truncate", stream, "--before", "5", "--yes").code == 0
    return stream


READERS = {
    "consume": ("consume", "--client", "me"),
    "consume all": ("consume", "--client", "me", "--all-partitions"),
    "share": ("consume", "--client", "me", "--share"),
    "pull": ("pull", "--index", "2", "--limit", "100"),
    "pull rich": ("pull", "--index", "2", "--limit", "100", "--times"),
    "tail": ("tail", "--from", "2", "--limit", "5"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_hole_is_told(at_node: CommandLine, with_hole: str, reader: str) -> None:
    name, *options = READERS[reader]
    stopped = at_node(name, with_hole, *options, "--fail-on-hole")
    assert (stopped.code, stopped.stdout) == (1, b"")
    assert stopped.stderr.startswith(f"stream-node: {LINE.format(with_hole)}; `stream-node index set` ")
    assert at_node("index", "get", with_hole, "--client", "me").text == "2\n"
    read = at_node(name, with_hole, *options, "--json")
    assert (read.code, read.warnings) == (0, [LINE.format(with_hole)])
    rows = [msgspec.json.decode(line, type=promised.MessageRow) for line in read.stdout.splitlines()]
    assert [row.data for row in rows] == [str(number) for number in range(5, 10)]
    assert [row.missing for row in rows] == [3, *[msgspec.UNSET] * 4]


def test_the_earliest_message_has_no_hole_before_it(at_node: CommandLine, with_hole: str) -> None:
    for arguments in (
        ("pull", with_hole),
        ("consume", with_hole, "--client", "new"),
        ("pull", with_hole, "--last", "9"),
    ):
        read = at_node(*arguments, "--fail-on-hole")
        assert (read.code, read.stderr, read.text) == (0, "", "5\n6\n7\n8\n9\n")


def test_what_is_printed_with_a_hole_can_be_pushed(at_node: CommandLine, with_hole: str) -> None:
    lines = at_node("pull", with_hole, "--index", "2", "--ndjson").stdout
    assert at_node("push", f"{with_hole} again", "--ndjson", stdin=lines).code == 0
    assert at_node("pull", f"{with_hole} again").text == "5\n6\n7\n8\n9\n"


def test_cardinal_tells_what_was_deleted(at_node: CommandLine, stream: str, tmp_path: Path) -> None:
    blocks = tmp_path / "blocks.json"
    application = tmp_path / "mine.toml"
    application.write_text(f'default_topic = "{stream}"\n')
    blocks.write_bytes(msgspec.json.encode([batch(number, {"x": "0x"}) for number in range(1, 9)]))
    at_node("cardinal", "produce", blocks, "--application", application, "--partitions", "1")
    options = ("--application", application, "--client", stream, "--unordered")
    assert at_node("cardinal", "consume", *options, "--limit", "2").code == 0
    read = int(at_node("index", "get", stream, "--client", stream).text)
    assert read > 0
    assert at_node("stream", "truncate", stream, "--before", read + 3, "--yes").code == 0
    line = f"3 messages of {stream}:0 missing, {read} to {read + 2}: deleted before they were read"
    stopped = at_node("cardinal", "consume", *options, "--fail-on-hole")
    assert (stopped.code, stopped.stdout) == (1, b"")
    assert stopped.stderr.startswith(f"stream-node: {line}")
    told = at_node("cardinal", "consume", *options, "--json")
    assert (told.code, told.warnings[0]) == (0, line)
    rows = [msgspec.json.decode(each, type=promised.CardinalConsumed) for each in told.stdout.splitlines()]
    assert [row.missing for row in rows][:2] == [3, msgspec.UNSET]
