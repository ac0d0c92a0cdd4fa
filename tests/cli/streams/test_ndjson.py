"""What `pull --ndjson` prints is everything, and `push --ndjson` stores it again."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_client import Header, RichMessage, blocking
from stream_node.cli.streams.messages import MessageInput, Printer, PrintFormat, parse_ndjson, read_inputs
from stream_node.cli.values import UsageError
from stream_node.node.process import NodeProcess
from stream_service.names import partition_of
from tests.cli.command import CommandLine

ALL = PrintFormat(keys=True, headers=True, times=True, as_json=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BYTES = st.one_of(
    st.binary(max_size=8), TEXT.map(str.encode), st.sampled_from([b"", b"\xff", b"\n", b"\0", b"\x1b[2J"])
)
HEADERS = st.lists(st.builds(Header, TEXT, BYTES), max_size=4)
MESSAGES = st.lists(st.builds(MessageInput, BYTES, st.none() | BYTES, HEADERS, st.integers(0, 2)), max_size=40)


def printed(messages: list[RichMessage], monkeypatch: pytest.MonkeyPatch) -> bytes:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer))
    for message in messages:
        Printer("s", ALL, fail=False).write(message, 7)
    sys.stdout.flush()
    return buffer.getvalue()


@given(BYTES, st.none() | BYTES, HEADERS)
def test_a_line_says_all_of_a_message(data: bytes, key: bytes | None, headers: list[Header]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        line = printed([RichMessage(5, 2**60, key, headers, data)], monkeypatch)
    assert (line.count(b"\n"), line.isascii()) == (1, True)
    row = json.loads(line)
    assert (row["partition"], row["index"], row["time_us"]) == (7, 5, 2**60)
    assert parse_ndjson(line) == MessageInput(data, key, headers, 7)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, number=st.uuids())
def test_what_was_pulled_and_pushed_is_what_was_there(
    at_node: CommandLine, node: NodeProcess, messages: list[MessageInput], number: Any
) -> None:
    """Goal: nothing of a message is lost between two streams, whatever is in it. Method: random messages in three
    partitions; then both streams are read by the client, which knows nothing of JSON, and their lines are compared."""
    first, second = f"ndjson {number} 1", f"ndjson {number} 2"
    with blocking.connect(node.address) as client:
        stream = client.create_partitioned(first, 3)
        client.create_partitioned(second, 3)
        for message in messages:
            part = stream.get_partition(message.partition or 0)
            part.push(message.data, key=message.key, headers=message.headers)
        pull = ("--all-partitions", "--limit", "99", "--ndjson")
        before = at_node("pull", first, *pull)
        assert at_node("push", second, "--ndjson", "--idempotent", stdin=before.stdout).code == 0
        assert timeless(at_node("pull", second, *pull).stdout) == timeless(before.stdout)
        for partition in range(3):
            sent = [(each.data, each.key, each.headers) for each in messages if each.partition == partition]
            found = client.get_stream(second).get_partition(partition).pull_page(0, 99).messages
            assert [(each.data, each.key, list(each.headers)) for each in found] == sent


def timeless(lines: bytes) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in json.loads(line).items() if name != "time_us"} for line in lines.splitlines()
    ]


def test_where_lines_go(at_node: CommandLine, stream: str) -> None:
    at_node("stream", "create", stream, "--partitions", "2")
    lines = b'{"data": "a", "partition": 1}\n{"data": "b"}\n{"data": "c", "key": "d", "partition": null}\n'

    def push(*flags: str) -> list[str]:
        done = at_node("push", stream, "--ndjson", *flags, stdin=lines)
        assert done.code == 0, done
        return [line.partition(" (")[0].partition(" in ")[0] for line in done.text.splitlines()]

    # A line without a partition goes where its key belongs, and without a key to the next one in turn.
    assert push() == ["1 message", "2 messages"]
    assert push("--partition", "0") == ["3 messages"]
    assert sum(int(words.split()[0]) for words in push("--all-partitions")) == 3
    rows = [json.loads(line) for line in at_node("pull", stream, "--ndjson").stdout.splitlines()]
    assert partition_of(b"d", 2) == 1
    assert sorted(row["partition"] for row in rows if row.get("key") == "d") == [0, 1, 1]
    far = at_node("push", stream, "--ndjson", stdin=b'{"data": "a"}\n{"data": "b", "partition": 5}\n')
    assert (far.code, far.text.startswith("1 message in ")) == (1, True)
    assert "has no partition 5: it has partitions 0 to 1" in far.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"text", "not a message in JSON: 'text'"),
        (b"{}", "it has no data"),
        (b'{"data": null}', "it has no data"),
        (b'{"data": "a", "data_base64": "YQ=="}', "data and data_base64 both say"),
        (b'{"data": "a", "key": null, "key_base64": "YQ=="}', "key and key_base64 both say"),
        (b'{"data_base64": "YQ"}', "padding"),
        (b'{"data_base64": "Y Q=="}', "not a message in JSON"),
        (b'{"data": "a", "kye": "b"}', "unknown field `kye`"),
        (b'{"data": "a", "headers": {"a": "b"}}', "Expected `array`"),
        (b'{"data": "a", "headers": [{"value": "b"}]}', "missing required field `name`"),
        (b'{"data": "a", "headers": [{"name": "n"}]}', "it has no value"),
        (b'{"data": "a", "partition": -1}', ">= 0"),
        (b'{"data": "\\ud800"}', "not a message in JSON"),
        (b'{"data": "\xff"}', "not a message in JSON"),
    ],
)
def test_what_is_no_message_is_told(line: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        parse_ndjson(line)


def test_an_input_that_does_not_block_ends_where_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: the lines that are there are read, and no error follows. Method: a pipe that another has set so."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, b"one\ntwo\n")
    with open(reading) as source, open(writing, "w"):
        monkeypatch.setattr(sys, "stdin", source)
        assert list(read_inputs([], whole=False, framed=False)) == [[b"one", b"two"]]
