"""`stream …` and `index …` against a node."""

from __future__ import annotations

import pytest

from stream_client import blocking
from stream_client.blocking import LeaseMember
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine, at_terminal
from tests.cli.promised import promised


def fill(command: CommandLine, stream: str, messages: int, partition: int = 0) -> None:
    if partition:
        command("stream", "create", stream, "--partitions", partition + 1)
    command("push", stream, "--partition", partition, "--repeat", messages, "--data", "12345")


def test_a_stream_is_made_with_partitions_and_a_retention(at_node: CommandLine, stream: str) -> None:
    create = ("stream", "create", stream)
    assert at_node(*create, "--json").read(promised.StreamCreated) == promised.StreamCreated(stream, 1, 1, None)
    made = at_node(*create, "--partitions", "3", "--max-age", "7d", "--max-bytes", "1GiB", "--json").read(
        promised.StreamCreated
    )
    assert made == promised.StreamCreated(stream, 3, 2, promised.Kept(604_800, None, 2**30))
    rows = at_node("stream", "info", stream, "--json").read_lines(promised.StreamRow)
    assert [(row.partition, row.retention) for row in rows] == [(at, made.retention) for at in range(3)]


def test_what_create_says_is_what_is_there(at_node: CommandLine, stream: str) -> None:
    """Goal: `stream create` tells how many partitions there are, whatever was asked for, and which of them it made.
    Method: the same stream made, asked for again, asked for with fewer, grown, and filled up after a deletion; what
    `stream info` lists is compared each time, and a retention reaches every partition."""
    create = ("stream", "create", stream)

    def there() -> list[int]:
        return [row.partition for row in at_node("stream", "info", stream, "--json").read_lines(promised.StreamRow)]

    assert at_node(*create, "--partitions", "3").text == f"{stream} was made with 3 partitions\n"
    for flags in ((), ("--partitions", "2"), ("--partitions", "3")):
        assert at_node(*create, *flags).text == f"{stream} exists and has 3 partitions; nothing was made\n"
        assert at_node(*create, *flags, "--json").read(promised.StreamCreated) == promised.StreamCreated(
            stream, 3, 0, None
        )
        assert there() == [0, 1, 2]
    grown = at_node(*create, "--partitions", "5").text
    assert grown.startswith(f"{stream} has 5 partitions now, 2 of them new: from now on a key may belong to another ")
    assert there() == [0, 1, 2, 3, 4]
    at_node("stream", "delete", stream, "--partition", "1", "--yes")
    assert at_node(*create, "--partitions", "1", "--json").read(promised.StreamCreated) == promised.StreamCreated(
        stream, 4, 0, None
    )
    assert at_node(*create, "--partitions", "2").text == f"{stream} has 5 partitions again, 1 of them new\n"
    assert there() == [0, 1, 2, 3, 4]
    kept = at_node(*create, "--partitions", "2", "--max-age", "7d", "--json").read(promised.StreamCreated).retention
    rows = at_node("stream", "info", stream, "--json").read_lines(promised.StreamRow)
    assert [row.retention for row in rows] == [kept] * 5


def test_streams_are_listed_by_prefix_and_inspected(at_node: CommandLine, stream: str) -> None:
    fill(at_node, f"{stream} one", 3)
    at_node("stream", "create", f"{stream} two", "--partitions", "2")
    rows = at_node("stream", "list", stream, "--json").read_lines(promised.StreamRow)
    assert [(row.stream.removeprefix(stream), row.partition) for row in rows] == [(" one", 0), (" two", 0), (" two", 1)]
    full, empty, _ = rows
    assert (full.first_index, full.next_index, full.messages, full.bytes) == (0, 3, 3, 15)
    assert (empty.messages, empty.first_time_us, empty.last_time_us) == (0, None, None)
    assert isinstance(full.first_time_us, int)
    assert isinstance(full.last_time_us, int)
    assert full.created_us <= full.first_time_us <= full.last_time_us
    assert at_node("stream", "info", f"{stream} one", "--json").read(promised.StreamRow) == full
    head, line = at_node("stream", "info", f"{stream} one").text.splitlines()
    assert head.split() == ["stream", "partition", "first", "next", "messages", "bytes", "newest", "keeps"]
    assert line.removeprefix(f"{stream} one").split()[:6] == ["0", "0", "3", "3", "15", "B"]
    assert len(at_node("stream", "list", stream).text.splitlines()) == 4
    assert at_node("stream", "list", "no such").text == "no streams\n"
    (one,) = at_node("stream", "info", f"{stream} two", "--partition", "1", "--json").read_lines(promised.StreamRow)
    assert one.partition == 1


def test_a_stream_is_deleted_when_it_is_meant(at_node: CommandLine, stream: str) -> None:
    fill(at_node, stream, 2)
    fill(at_node, stream, 3, partition=1)
    delete = ("stream", "delete", stream)
    assert at_node(*delete, "--dry-run", "--json").read(promised.StreamDeleted) == promised.StreamDeleted(
        stream, 2, 5, True
    )
    assert at_node(*delete, "--dry-run").text == f"2 partitions and 5 messages of {stream} would be deleted\n"
    assert len(at_node("pull", stream).stdout.splitlines()) == 5
    one = at_node(*delete, "--partition", "1", "--yes", "--json").read(promised.StreamDeleted)
    assert one == promised.StreamDeleted(stream, 1, 3, False)
    assert at_node(*delete, "--yes").text == f"1 partition and 2 messages of {stream} deleted\n"
    assert at_node("stream", "list", stream).text == "no streams\n"


def test_a_stream_is_truncated_before_an_index(at_node: CommandLine, stream: str) -> None:
    fill(at_node, stream, 10)
    truncate = ("stream", "truncate", stream, "--before")
    for before, deleted, first_index in ((4, 4, 4), (3, 0, 4), (99, 6, 10)):
        dry = at_node(*truncate, before, "--dry-run", "--json").read(promised.Truncated)
        assert dry == promised.Truncated(stream, 0, deleted, first_index, True)
        done = at_node(*truncate, before, "--yes", "--json").read(promised.Truncated)
        assert done == promised.Truncated(stream, 0, deleted, first_index, False)
    fill(at_node, stream, 1)
    assert at_node("pull", stream, "--json").stdout.startswith(b'{"partition": 0, "index": 10,')
    text = at_node(*truncate, "11", "--dry-run").text
    assert text == f"1 message would be deleted from {stream}/0, it begins at 11\n"


DESTROYING = (
    ("delete",),
    ("truncate", "--before", "1"),
    ("retention", "--max-messages", "1"),
    ("retention", "--max-bytes", "1B"),
    ("create", "--max-messages", "1"),
)
"""What destroys messages of a stream that has two. Each ends with fewer."""


@pytest.mark.parametrize("arguments", DESTROYING, ids=" ".join)
def test_what_destroys_asks_and_needs_a_yes_where_nobody_can_answer(
    at_node: CommandLine, stream: str, arguments: tuple[str, ...]
) -> None:
    at_node("push", stream, stdin=b"a\nb\n")
    command = ("stream", arguments[0], stream, *arguments[1:])
    # A script, and a closed input.
    refused = at_node(*command).failed(1)
    assert "nothing was changed" in refused
    assert "--yes" in refused
    code, told = at_terminal(b"no\n", *command)
    assert (code, "nothing was changed" in told) == (1, True)
    assert len(at_node("pull", stream).stdout.splitlines()) == 2
    code, told = at_terminal(b"yes\n", *command)
    assert (code, "This cannot be undone" in told) == (0, True), told
    if arguments[0] == "delete":
        assert f"Delete 1 partition and 2 messages of {stream} at " in told
    if arguments[0] not in ("retention", "create"):
        assert len(at_node("pull", stream).stdout.splitlines()) < 2
    at_node("push", stream, stdin=b"c\nd\n")
    assert at_node(*command, "--yes").code == 0


def test_what_destroys_nothing_asks_nothing(at_node: CommandLine, stream: str) -> None:
    at_node("push", stream, stdin=b"a\nb\n")
    for arguments in (
        ("truncate", "--before", "0"),
        ("retention", "--max-messages", "2", "--max-bytes", "1MB", "--max-age", "1d"),
        ("create", "--max-messages", "3"),
    ):
        assert at_node("stream", arguments[0], stream, *arguments[1:]).code == 0, arguments
    assert "say --yes" in at_node("stream", "retention", stream, "--default").failed(1)


def test_a_stream_is_truncated_before_a_time_in_all_partitions(at_node: CommandLine, stream: str) -> None:
    fill(at_node, stream, 2)
    fill(at_node, stream, 3, partition=1)
    truncate = ("stream", "truncate", stream, "--before")
    assert [row.deleted for row in at_node(*truncate, "1h", "--json").read_lines(promised.Truncated)] == [0, 0]
    for flags in (["--dry-run"], ["--yes"]):
        rows = at_node(*truncate, "2100-01-01T00:00Z", "--json", *flags).read_lines(promised.Truncated)
        assert [(row.partition, row.deleted, row.first_index) for row in rows] == [(0, 2, 2), (1, 3, 3)]
    assert "say which by --partition" in at_node(*truncate, "1").failed(2)
    assert at_node(*truncate, "1", "--partition", "1", "--yes", "--json").read(promised.Truncated).first_index == 3


def test_a_retention_is_set_and_taken_back(at_node: CommandLine, stream: str) -> None:
    at_node("stream", "create", stream)
    retention = ("stream", "retention", stream)
    kept = promised.Kept(None, 5, None)
    dry = at_node(*retention, "--max-messages", "5", "--dry-run", "--json").read(promised.RetentionSet)
    assert dry == promised.RetentionSet(stream, 0, None, kept, True)
    done = at_node(*retention, "--max-messages", "5", "--json").read(promised.RetentionSet)
    assert done == promised.RetentionSet(stream, 0, None, kept, False)
    text = at_node(*retention, "--max-age", "1s", "--max-bytes", "1kB").text
    assert text == f"{stream}/0 keeps 1 second and 1,000 bytes, before 5 messages\n"
    text = at_node(*retention, "--default").text
    assert text == f"{stream}/0 keeps the node's default, before 1 second and 1,000 bytes\n"
    for flags in ([], ["--default", "--max-messages", "1"]):
        assert "not both" in at_node(*retention, *flags).failed(2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "info"],
        ["stream", "delete"],
        ["stream", "truncate", "--before", "1"],
        ["stream", "retention", "--default"],
        ["index", "set", "--client", "c", "--partition", "0"],
        ["index", "get", "--client", "c"],
        ["index", "list", "--stream"],
        ["index", "list", "--client", "c", "--stream"],
    ],
)
def test_looking_after_a_stream_that_is_not_there_makes_none(at_node: CommandLine, arguments: list[str]) -> None:
    position = ["first"] if "set" in arguments else []
    assert "has no stream 'nowhere'" in at_node(*arguments, "nowhere", *position).failed(1)
    assert at_node("stream", "list", "nowhere").text == "no streams\n"


def test_a_partition_that_is_not_there_is_told(at_node: CommandLine, stream: str) -> None:
    at_node("stream", "create", stream)
    assert "has no partition 3" in at_node("stream", "info", stream, "--partition", "3").failed(1)


def test_a_position_is_found_and_nothing_made(at_node: CommandLine, stream: str) -> None:
    get = ("index", "get", stream, "--client", "c")
    at_node("stream", "create", stream)
    assert at_node(*get, "--json").read(promised.IndexFound) == promised.IndexFound("c", stream, 0, None)
    assert at_node(*get).text == "none\n"
    assert at_node("index", "list", "--stream", stream).text == "no positions\n"
    assert at_node("index", "list", "--stream", stream, "--json").stdout == b""
    fill(at_node, stream, 3)
    at_node("consume", stream, "--client", "c")
    assert at_node(*get, "--json").read(promised.IndexFound) == promised.IndexFound("c", stream, 0, 3)
    assert at_node(*get).text == "3\n"


@pytest.mark.parametrize(
    ("position", "index"),
    [("first", 2), ("last", 7), ("new", 8), ("5", 5), ("1h", 2), ("2100-01-01T00:00Z", 8), ("none", None)],
)
def test_a_position_is_set(at_node: CommandLine, stream: str, position: str, index: int | None) -> None:
    fill(at_node, stream, 8)
    at_node("consume", stream, "--client", "c")
    at_node("stream", "truncate", stream, "--before", "2", "--yes")
    set_to = ("index", "set", stream, position, "--client", "c")
    assert at_node(*set_to, "--dry-run", "--json").read(promised.IndexSet) == promised.IndexSet(
        "c", stream, 0, 8, index, True
    )
    assert at_node("index", "get", stream, "--client", "c").text == "8\n"
    assert at_node(*set_to, "--json").read(promised.IndexSet) == promised.IndexSet("c", stream, 0, 8, index, False)
    assert at_node("index", "get", stream, "--client", "c").text == f"{'none' if index is None else index}\n"
    left = 6 if index is None else 8 - index
    assert len(at_node("consume", stream, "--client", "c").stdout.splitlines()) == left


def test_positions_of_all_partitions_are_set(at_node: CommandLine, stream: str) -> None:
    fill(at_node, stream, 2)
    fill(at_node, stream, 3, partition=1)
    set_to = ("index", "set", stream, "last", "--client", "c", "--all-partitions")
    rows = at_node(*set_to, "--json").read_lines(promised.IndexSet)
    assert [(row.partition, row.before, row.index) for row in rows] == [(0, None, 1), (1, None, 2)]
    text = at_node(*set_to, "--dry-run").text
    assert text.splitlines()[0] == f"c would go from 1 to 1 in {stream}/0"
    assert "leave one out" in at_node(*set_to, "--partition", "1").failed(2)


def test_a_position_is_that_in_every_partition(at_node: CommandLine, stream: str) -> None:
    """Goal: what `consume` saves without a word about partitions, `index` shows and sets likewise.
    Method: read two partitions, look, go back to the beginning, read again; one index for both is refused."""
    fill(at_node, stream, 2)
    fill(at_node, stream, 3, partition=1)
    assert len(at_node("consume", stream, "--client", "c").stdout.splitlines()) == 5
    get, set_to = ("index", "get", stream, "--client", "c"), ("index", "set", stream)
    assert at_node(*get).text == f"2 in {stream}/0\n3 in {stream}/1\n"
    assert at_node(*get, "--partition", "1").text == "3\n"
    assert "say which by --partition" in at_node(*set_to, "1", "--client", "c").failed(2)
    assert at_node(*get).text == f"2 in {stream}/0\n3 in {stream}/1\n"
    rows = at_node(*set_to, "first", "--client", "c", "--json").read_lines(promised.IndexSet)
    assert [(row.partition, row.before, row.index) for row in rows] == [(0, 2, 0), (1, 3, 0)]
    assert len(at_node("consume", stream, "--client", "c").stdout.splitlines()) == 5
    assert at_node(*set_to, "1", "--client", "c", "--partition", "1").text == f"c goes from 3 to 1 in {stream}/1\n"
    forgotten = at_node(*set_to, "none", "--client", "c", "--json").read_lines(promised.IndexSet)
    assert [(row.partition, row.before, row.index) for row in forgotten] == [(0, 2, None), (1, 1, None)]
    assert at_node(*get).text == f"none in {stream}/0\nnone in {stream}/1\n"


def test_no_position_is_set_beyond_the_end(at_node: CommandLine, stream: str) -> None:
    at_node("push", stream, stdin=b"a\nb\n")
    for flags in ((), ("--dry-run",)):
        assert f"{stream}/0 ends at 2" in at_node("index", "set", stream, "3", "--client", "c", *flags).failed(2)
    assert at_node("index", "set", stream, "2", "--client", "c").code == 0


def test_a_position_whose_stream_is_gone_can_be_forgotten(at_node: CommandLine, stream: str) -> None:
    """Goal: a position that outlived its stream is shown and forgotten; then there is nothing left to speak of."""
    fill(at_node, stream, 1)
    at_node("consume", stream, "--client", "c")
    at_node("stream", "delete", stream, "--keep-positions", "--yes")
    (row,) = at_node("index", "list", "--stream", stream, "--json").read_lines(promised.PositionRow)
    assert (row.index, row.lag) == (1, None)
    assert at_node("index", "get", stream, "--client", "c").text == "1\n"
    text = at_node("index", "set", stream, "none", "--client", "c").text
    assert text == f"c goes from 1 to no position in {stream}/0\n"
    assert f"no stream '{stream}'" in at_node("index", "list", "--stream", stream).failed(1)
    assert f"no stream '{stream}'" in at_node("index", "get", stream, "--client", "c").failed(1)


def test_a_position_is_told_while_a_consumer_holds_its_lease(
    at_node: CommandLine, node: NodeProcess, stream: str
) -> None:
    """Goal: only setting a position is refused while its consumer lives; a dry run says so, looking does not mind."""
    fill(at_node, stream, 3)
    at_node("consume", stream, "--client", "c")
    get = ("index", "get", stream, "--client", "c")
    assert "no partition 7" in at_node(*get, "--partition", "7").failed(1)
    with blocking.connect(node.address) as client:
        member = LeaseMember(client, "c", member_id="alive")
        with client.get_stream(stream).shared_consumer(member) as consumer:
            assert list(consumer.messages(stop_at_end=True)) == []
            assert at_node(*get).text == "3\n"
            set_to = ("index", "set", stream, "first", "--client", "c")
            for flags in ((), ("--dry-run",)):
                assert "alive" in at_node(*set_to, *flags).failed(1)


def test_positions_are_listed_with_their_lag(at_node: CommandLine, stream: str) -> None:
    fill(at_node, stream, 10)
    at_node("consume", stream, "--client", "a", "--limit", "4")
    at_node("consume", stream, "--client", "b")
    index_list = ("index", "list", "--stream", stream)
    rows = at_node(*index_list, "--json").read_lines(promised.PositionRow)
    assert [(row.client, row.partition, row.index, row.lag, row.holder) for row in rows] == [
        ("a", 0, 4, 6, None),
        ("b", 0, 10, 0, None),
    ]
    assert all(row.saved_us for row in rows)
    at_node("stream", "truncate", stream, "--before", "7", "--yes")
    (row,) = at_node(*index_list, "--client", "a", "--json").read_lines(promised.PositionRow)
    assert (row.index, row.lag) == (4, 3)
    head, line = at_node(*index_list, "--client", "b").text.splitlines()
    assert head.split() == ["client", "stream", "partition", "index", "lag", "saved", "holder"]
    assert line.split()[:5] == ["b", stream, "0", "10", "0"]
    everything = at_node("index", "list", "--json").read_lines(promised.PositionRow)
    assert {(row.client, row.stream) for row in everything} >= {("a", stream), ("b", stream)}
