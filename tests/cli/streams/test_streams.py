"""`push`, `pull`, `consume` and `tail` against a node."""

from __future__ import annotations

import shlex
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream_node.cli.streams.messages import MESSAGE_BYTES_MAX
from stream_node.node.process import NodeProcess
from stream_service.names import partition_of
from tests.cli.command import CommandLine
from tests.cli.promised import promised

UNSET = msgspec.UNSET


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


def test_what_is_pushed_is_counted_in_words(at_node: CommandLine, stream: str) -> None:
    said = [at_node("push", stream, stdin=lines).text.partition(" (")[0] for lines in (b"", b"a\n", b"b\nc\n")]
    assert said == [
        f"0 messages in {stream}/0",
        f"1 message in {stream}/0 at 0",
        f"2 messages in {stream}/0 at 1 to 2",
    ]
    at_node("stream", "create", stream, "--partitions", "2")
    pushed = at_node("push", stream, "--data", "x", "--partition", "1", "--json").read(promised.Pushed)
    assert pushed == promised.Pushed(stream, 1, 1, 0, 0, 0, [], [], pushed.seconds)
    nothing = at_node("push", stream, "--json").read(promised.Pushed)
    assert nothing == promised.Pushed(stream, 0, 0, 0, None, None, [], [], nothing.seconds)


def test_files_are_read_by_line_as_a_whole_or_by_length(at_node: CommandLine, stream: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a\nb\r\n")
    second.write_bytes(b"\xff\n")
    at_node("push", stream, first, second)
    at_node("push", stream, first, second, "--file-per-message")
    at_node("push", stream, "--file-per-message", stdin=b"x\ny\n")
    (tmp_path / "framed").write_bytes(framed(b"", b"\n\x00"))
    at_node("push", stream, tmp_path / "framed", "--length-framed")
    stored = [b"a", b"b\r", b"\xff", b"a\nb\r\n", b"\xff\n", b"x\ny\n", b"", b"\n\x00"]
    pulled = at_node("pull", stream, "--length-framed")
    assert pulled.stdout == framed(*stored)
    at_node("push", f"{stream}-copy", "--length-framed", stdin=pulled.stdout)
    assert at_node("pull", f"{stream}-copy", "--length-framed").stdout == pulled.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x00\x00", "ends inside a length: 2 of 4 bytes"),
        (b"\x00\x00\x00\x05four", "ends inside a message: 4 of 5 bytes"),
        (struct.pack(">I", MESSAGE_BYTES_MAX + 1), "not framed by u32 lengths"),
    ],
)
def test_lengths_that_do_not_fit_are_wrong_usage(at_node: CommandLine, stream: str, content: bytes, says: str) -> None:
    assert says in at_node("push", stream, "--length-framed", stdin=content).failed(2)


def test_lines_that_begin_with_a_key(at_node: CommandLine, stream: str) -> None:
    """Goal: what `pull --keys` prints can be pushed again, by key over all partitions; a line without one ends it.
    Method: each key stays in one partition; of a wrong third line, the first two are stored and told."""
    at_node("stream", "create", stream, "--partitions", "3")
    spread = b"".join(b"k%d\t%d of k%d\n" % (number % 5, number, number % 5) for number in range(20))
    told = at_node("push", stream, "--keys", "--all-partitions", "--idempotent", "--json", stdin=spread).read_lines(
        promised.Pushed
    )
    assert (sum(row.pushed for row in told), {row.failed for row in told}) == (20, {0})
    partitions_of: dict[bytes, set[int]] = {}
    for partition in range(3):
        for line in at_node("pull", stream, "--partition", partition, "--keys", "--limit", "99").stdout.splitlines():
            key, _, data = line.partition(b"\t")
            if key:
                partitions_of.setdefault(key, set()).add(partition)
                assert data.endswith(b" of " + key)
    assert sorted(partitions_of) == [b"k%d" % key for key in range(5)]
    assert all(len(partitions) == 1 for partitions in partitions_of.values())
    wrong = at_node("push", f"{stream}-2", "--keys", stdin=b"a\t1\nb\t2\nno key\n")
    assert (wrong.code, wrong.text.startswith("2 messages in ")) == (2, True)
    assert "no tab ends the key in the line 'no key'" in wrong.stderr


@pytest.mark.parametrize("flags", [[], ["--all-partitions"]])
def test_pushes_in_turn_over_all_partitions(at_node: CommandLine, stream: str, flags: list[str]) -> None:
    """Goal: all partitions are the usual case, also without a word, for what writes and for what reads."""
    at_node("stream", "create", stream, "--partitions", "3")
    told = at_node("push", stream, *flags, "--json", stdin=b"x\n" * 9).read_lines(promised.Pushed)
    assert [(row.partition, row.pushed) for row in told] == [(0, 3), (1, 3), (2, 3)]
    pulled = at_node("pull", stream, *flags, "--limit", "2", "--json").read_lines(promised.MessageRow)
    assert [(row.partition, row.index) for row in pulled] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    tailed = at_node("tail", stream, *flags, "--last", "3", "--limit", "9", "--json").read_lines(promised.MessageRow)
    assert sorted((row.partition, row.index) for row in tailed) == [(p, i) for p in range(3) for i in range(3)]


def test_a_push_into_one_partition(at_node: CommandLine, stream: str) -> None:
    at_node("stream", "create", stream, "--partitions", "3")
    pushed = at_node("push", stream, "--partition", "2", "--data", "x", "--json").read(promised.Pushed)
    assert (pushed.partition, pushed.first_index, pushed.last_index) == (2, 0, 0)
    pulled = at_node("pull", stream, "--partition", "2", "--json").read(promised.MessageRow)
    assert (pulled.partition, pulled.index, pulled.data) == (2, 0, "x")
    assert at_node("pull", stream, "--partition", "0").stdout == b""
    assert at_node("pull", stream).stdout == b"x\n"


def test_a_push_never_grows_a_stream(at_node: CommandLine, stream: str) -> None:
    """Goal: only `stream create` makes partitions, since more of them send the keys of a stream elsewhere for good.
    Method: pushes to a partition that is not there, of a stream with one partition and of none; then look."""
    at_node("push", stream, "--data", "x")
    said = at_node("push", stream, "--data", "y", "--partition", "9").failed(1)
    assert f"'{stream}' has no partition 9: it has partition 0" in said
    assert f"stream-node stream create {stream} --partitions 10" in said
    assert "keys then belong to other partitions than before" in said
    assert [row.partition for row in at_node("stream", "info", stream, "--json").read_lines(promised.StreamRow)] == [0]
    said = at_node("push", f"{stream} 2", "--data", "y", "--partition", "9").failed(1)
    assert "no stream" in said
    assert f"stream-node stream create '{stream} 2' --partitions 10" in said
    assert "keys then belong" not in said
    assert not at_node("stream", "list", f"{stream} 2", "--json").stdout
    at_node("stream", "create", stream, "--partitions", "10")
    assert at_node("push", stream, "--data", "y", "--partition", "9", "--json").read(promised.Pushed).pushed == 1


def test_input_is_repeated_at_a_rate(at_node: CommandLine, stream: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"f\ng\n")
    slow = at_node("push", stream, tmp_path / "file", "--repeat", "2", "--rate", "100", "--json").read(promised.Pushed)
    assert (slow.pushed, slow.first_index, slow.last_index) == (4, 0, 3)
    assert slow.seconds >= 0.03
    assert at_node("push", stream, "--repeat", "3", "--json", stdin=b"i\n").read(promised.Pushed).pushed == 3
    assert at_node("push", stream, "--repeat", "2", "--data", "d", "--json").read(promised.Pushed).pushed == 2
    assert at_node("pull", stream).stdout.split() == [b"f", b"g"] * 2 + [b"i"] * 3 + [b"d"] * 2


def test_keys_headers_and_times_are_shown_when_asked(at_node: CommandLine, stream: str) -> None:
    at_node("push", stream, "--data", "plain")
    at_node("push", stream, "--data", "rich", "--key", "k", "--header", "a=1", "--header", "b=x=y")
    plain, rich = at_node("pull", stream, "--keys", "--headers", "--times", "--json").read_lines(promised.MessageRow)
    assert (plain.key, plain.headers, plain.data) == (None, [], "plain")
    assert (rich.key, rich.headers) == ("k", [promised.HeaderRow("a", "1"), promised.HeaderRow("b", "x=y")])
    assert isinstance(plain.time_us, int)
    assert isinstance(rich.time_us, int)
    assert plain.time_us <= rich.time_us
    assert at_node("pull", stream, "--keys", "--headers").stdout == b"\t\tplain\nk\ta=1,b=x=y\trich\n"
    time, data = at_node("pull", stream, "--times", "--limit", "1").text.split()
    assert time.endswith("Z")
    assert data == "plain"
    for row in at_node("pull", stream, "--json").read_lines(promised.MessageRow):
        assert (row.key, row.headers, row.time_us) == (UNSET, UNSET, UNSET)


def test_what_is_not_text_is_base64(at_node: CommandLine, stream: str) -> None:
    at_node("push", stream, "--key", "\udcff", "--header", "h=\udcfe", "--length-framed", stdin=framed(b"\xfd"))
    (row,) = at_node("pull", stream, "--keys", "--headers", "--json").read_lines(promised.MessageRow)
    assert (row.key, row.key_base64, row.data, row.data_base64) == (UNSET, "/w==", UNSET, "/Q==")
    assert row.headers == [promised.HeaderRow("h", UNSET, "/g==")]


@pytest.mark.parametrize(
    ("flags", "data"),
    [
        ([], b"0123456789"),
        (["--index", "8"], b"89ab"),
        (["--index", "99"], b""),
        (["--index", "1", "--limit", "3"], b"123"),
        (["--from", "first", "--limit", "2"], b"01"),
        (["--from", "last"], b"b"),
        (["--from", "new"], b""),
        (["--from", "10"], b"ab"),
        (["--from", "1h"], b"0123456789"),
        (["--from", "2100-01-01T00:00Z"], b""),
        (["--last", "3"], b"9ab"),
        (["--last", "11"], b"123456789ab"),
        (["--last", "100", "--limit", "2"], b"01"),
        (["--from", "first", "--limit", "0"], b""),
    ],
)
def test_where_a_pull_begins_and_ends(at_node: CommandLine, flags: list[str], data: bytes) -> None:
    name = "where a pull begins"
    if not at_node("pull", name).stdout:
        at_node("push", name, stdin=b"\n".join(b"%x" % number for number in range(12)))
    assert at_node("pull", name, *flags).stdout.replace(b"\n", b"") == data


def test_a_pull_that_stops_before_the_end_says_so_and_how_to_go_on(at_node: CommandLine, stream: str) -> None:
    """Goal: nobody takes the first ten messages for all. Method: the command that is told prints exactly the rest."""
    at_node("stream", "create", stream, "--partitions", "2")
    for partition in (0, 1):
        at_node("push", stream, "--partition", partition, stdin=b"".join(b"%d\n" % number for number in range(30)))
    for flags in (
        ["--partition", "0"],
        ["--partition", "0", "--times"],
        ["--partition", "0", "--from", "first"],
        ["--partition", "1", "--json"],
    ):
        first = at_node("pull", stream, *flags)
        (line,) = first.warnings
        said, _, again = line.partition(": to print them: ")
        assert said == f"20 more messages in {stream}/{1 if '1' in flags else 0}"
        rest = at_node(*shlex.split(again)[1:])
        assert (rest.code, rest.stderr) == (0, "")
        everything = at_node("pull", stream, *flags, "--limit", "99")
        assert first.stdout + rest.stdout == everything.stdout
        assert len(everything.stdout.splitlines()) == 30
    both = at_node("pull", stream)
    assert [line.partition(":")[2].partition(":")[0] for line in both.stderr.splitlines()] == [
        f" 20 more messages in {stream}/{partition}" for partition in (0, 1)
    ]
    for flags in (["--limit", "30"], ["--limit", "5"], ["--last", "10"], ["--index", "20"]):
        assert at_node("pull", stream, *flags).stderr == ""


def test_a_consumer_goes_on_where_it_stopped(at_node: CommandLine, stream: str) -> None:
    at_node("push", stream, stdin=b"a\nb\nc\n")
    consume = ("consume", stream, "--client", "c")
    assert at_node(*consume, "--limit", "2").stdout == b"a\nb\n"
    (row,) = at_node(*consume, "--json", "--keys").read_lines(promised.MessageRow)
    assert (row.partition, row.index, row.key, row.data) == (0, 2, None, "c")
    assert at_node(*consume).stdout == b""
    at_node("push", stream, "--data", "one more")
    assert at_node(*consume).stdout == b"one more\n"
    assert at_node("consume", stream, "--client", "another").stdout == b"a\nb\nc\none more\n"


def test_a_consumer_of_all_partitions(at_node: CommandLine, stream: str) -> None:
    at_node("stream", "create", stream, "--partitions", "3")
    for partition in range(3):
        at_node("push", stream, "--partition", partition, stdin=b"%d a\n%d b\n" % (partition, partition))
    consume = ("consume", stream, "--client", "c", "--all-partitions")
    some = at_node(*consume, "--limit", "3").stdout.splitlines()
    rest = at_node(*consume).stdout.splitlines()
    assert sorted([*some, *rest]) == [b"0 a", b"0 b", b"1 a", b"1 b", b"2 a", b"2 b"]
    assert at_node(*consume).stdout == b""
    assert "no stream 'never made'" in at_node("consume", "never made", "--client", "c", "--all-partitions").failed(1)


def test_a_consumer_that_shares_reads_what_nobody_else_has(at_node: CommandLine, stream: str) -> None:
    """Goal: `--share` takes part by leases, and saves under them. Method: alone it gets every partition, once."""
    at_node("stream", "create", stream, "--partitions", "2")
    at_node("push", stream, "--all-partitions", stdin=b"a\nb\nc\nd\ne\n")
    consume = ("consume", stream, "--client", "c", "--share")
    some = at_node(*consume, "--limit", "2").stdout.splitlines()
    rest = at_node(*consume).stdout.splitlines()
    assert sorted([*some, *rest]) == [b"a", b"b", b"c", b"d", b"e"]
    assert at_node(*consume).stdout == b""
    assert "no stream 'never made'" in at_node("consume", "never made", "--client", "c", "--share").failed(1)


def test_a_tail_shows_the_last_messages_and_follows(at_node: CommandLine, stream: str) -> None:
    at_node("push", stream, stdin=b"".join(b"%d\n" % number for number in range(20)))
    assert at_node("tail", stream, "--limit", "10").stdout.split() == [b"%d" % number for number in range(10, 20)]
    assert at_node("tail", stream, "--last", "1", "--limit", "1").stdout == b"19\n"
    (row,) = at_node("tail", stream, "--from", "7", "--limit", "1", "--times", "--json").read_lines(promised.MessageRow)
    assert (row.partition, row.index, row.data) == (0, 7, "7")
    at_node("stream", "create", stream, "--partitions", "3")
    at_node("push", stream, "--partition", "2", stdin=b"x\ny\n")
    both = at_node("tail", stream, "--all-partitions", "--last", "1", "--limit", "2").stdout
    assert sorted(both.split()) == [b"19", b"y"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["push", "s", "--data", "x", "--length-framed"], "five kinds of input"),
        (["push", "s", "--ndjson", "--keys"], "five kinds of input"),
        (["push", "s", "--ndjson", "--header", "a=b"], "its own key and headers"),
        (["pull", "s", "--length-framed", "--keys"], "use --ndjson"),
        (["pull", "s", "--length-framed", "--headers"], "use --ndjson"),
        (["pull", "s", "--length-framed", "--times"], "use --ndjson"),
        (["pull", "s", "--length-framed", "--json"], "use --ndjson"),
        (["push", "s", "file", "--data", "x"], "in place of files"),
        (["push", "s", "--header", "x"], "is not a header"),
        (["push", "s", "--keys", "--key", "k"], "leave one out"),
        (["push", "s", "--partition", "1", "--all-partitions"], "leave one out"),
        (["pull", "s", "--index", "1", "--last", "1"], "choose one"),
        (["pull", "s", "--partition", "1", "--all-partitions"], "leave one out"),
        (["pull", "s", "--from", "monday"], "'monday' is not first"),
        (["tail", "s", "--from", "first", "--last", "1"], "choose one"),
        (["tail", "s", "--partition", "1", "--all-partitions"], "leave one out"),
        (["consume", "s", "--client", "c", "--partition", "1", "--all-partitions"], "leave one out"),
        (["consume", "s", "--client", "c", "--partition", "1", "--share"], "leave one out"),
    ],
)
def test_what_contradicts_itself_is_wrong_usage(command: CommandLine, arguments: list[Any], says: str) -> None:
    assert says in command(*arguments).failed(2)


@pytest.mark.parametrize(
    "reading", [("pull",), ("pull", "--all-partitions"), ("consume", "--client", "c"), ("tail", "--limit", "1")]
)
def test_who_reads_an_unknown_stream_is_told_and_makes_none(
    at_node: CommandLine, stream: str, reading: tuple[str, ...]
) -> None:
    verb, *options = reading
    assert f"no stream '{stream}'" in at_node(verb, stream, *options).failed(1)
    assert not at_node("stream", "list", stream, "--json").stdout
    at_node("push", stream, "--data", "x")
    assert "no partition 1" in at_node("pull", stream, "--partition", "1").failed(1)


def test_what_cannot_be_carried_out_is_1_and_an_empty_name_is_2(at_node: CommandLine, tmp_path: Path) -> None:
    assert "a name is empty" in at_node("push", "", "--data", "x").failed(2)
    assert "missing" in at_node("push", "s", tmp_path / "missing").failed(1)


@pytest.mark.parametrize("arguments", [("push", "s", "--data", "x"), ("pull", "s"), ("consume", "s", "--client", "c")])
def test_a_node_that_is_not_there_is_3(command: CommandLine, arguments: tuple[str, ...]) -> None:
    assert "127.0.0.1:1" in command(*arguments, "--node", "127.0.0.1:1").failed(3)


def test_two_nodes_chained(command: CommandLine, node: NodeProcess, tmp_path: Path) -> None:
    """The far node is reached through the near one, which lists it; another node is not reached."""
    with NodeProcess(tmp_path / "near", arguments=("--allow-forward", node.address)) as near:
        through = ("--node", near.address, "--via", node.address)
        assert command("push", "chained", "--data", "there and back", *through).code == 0
        assert command("consume", "chained", "--client", "c", *through).stdout == b"there and back\n"
        assert command("pull", "chained", "--node", node.address).stdout == b"there and back\n"
        assert "no stream 'chained'" in command("pull", "chained", "--node", near.address).failed(1)
        assert near.stop() == 0


def test_keys_choose_partitions_and_consume_reads_all(at_node: CommandLine, stream: str) -> None:
    """Of a stream with several partitions, without --all-partitions: each key lies where every other client looks for
    it, and no message is passed over. A stream that does not exist is made."""
    made = at_node("push", stream, "--data", "x", "--key", "k", "--json").read(promised.Pushed)
    assert (made.partition, made.first_index) == (0, 0)
    keyed = f"{stream} keyed"
    at_node("stream", "create", keyed, "--partitions", "3")
    for key in "abcdefgh":
        pushed = at_node("push", keyed, "--data", f"of {key}", "--key", key, "--json").read(promised.Pushed)
        assert pushed.partition == partition_of(key.encode(), 3)
    at_node("push", keyed, "--keys", stdin=b"a\tlater of a\nz\tof z\n")
    rows = at_node("consume", keyed, "--client", "c", "--json", "--keys").read_lines(promised.MessageRow)
    assert sorted(str(row.data) for row in rows) == sorted([*(f"of {key}" for key in "abcdefghz"), "later of a"])
    assert {row.partition for row in rows if row.key == "a"} == {partition_of(b"a", 3)}
    assert len({row.partition for row in rows}) > 1
    assert at_node("consume", keyed, "--client", "c").text == ""
    here = str(rows[0].partition)
    one = at_node("consume", keyed, "--client", "d", "--partition", here, "--json").read_lines(promised.MessageRow)
    assert {row.partition for row in one} == {rows[0].partition}
