"""Goal: however often and wherever an attempt at a task ends, each row is stored once, or an error says that it cannot.

Method: the writer of a task against a real node, ended at drawn points by not being finished. What is stored is read by
the project's own client, which knows nothing of attempts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_export.errors import OptionError, RowsDiffer
from spark_export.sink.pushes import Attempt, Pushes
from spark_export.sink.write_rows import read_row
from spark_export.sink.writer import SinkWritten, commit_written
from spark_export.source.node import list_partitions
from spark_export.source.options import WriteOptions
from spark_export.source.plan import Place, StreamEnds, by_place
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.doors import ALL, door
from tests.spark_export.sink.test_spark_write import stored

pytestmark = pytest.mark.spark

NUMBERS = count()
FORGOTTEN = 100_100
"""More messages than a node looks at after a restart for the sequence numbers of publishers."""


class Sink:
    """A query that writes one stream, whose attempts the test makes as Spark would."""

    def __init__(self, address: str, partitions: int = 1) -> None:
        number = next(NUMBERS)
        self.query, self.stream = f"spark-sink-{number}", f"sink-{number}"
        self.options = WriteOptions(endpoint=address, stream=self.stream, window=50)
        with blocking.connect(address) as client:
            client.create_partitioned(self.stream, partitions)

    def ends(self) -> dict[Place, StreamEnds]:
        """What the driver finds when a micro-batch begins."""
        with blocking.connect(self.options.endpoint) as client:
            return by_place(list_partitions(client, self.stream))

    def attempt(
        self,
        rows: Sequence[bytes],
        *,
        batch: int = 0,
        task: int = 0,
        stop: int | None = None,
        repeated: bool = False,
        ends: dict[Place, StreamEnds] | None = None,
    ) -> SinkWritten:
        """stop: after how many rows the attempt ends without a word."""
        attempt = Attempt(self.query, batch, task, repeated)
        with Pushes(self.options, attempt, self.ends() if ends is None else ends) as pushes:
            if not pushes.is_committed():
                for row in rows if stop is None else rows[:stop]:
                    taken = read_row({"data": row}, self.options)
                    assert taken is not None
                    pushes.push(taken)
                pushes.drain() if stop is not None else pushes.flush()
            return SinkWritten(pushes.counts, attempt, pushes.seen)


def feed(pushes: Pushes, sink: Sink, rows: Sequence[bytes]) -> None:
    for row in rows:
        taken = read_row({"data": row}, sink.options)
        assert taken is not None
        pushes.push(taken)


def rows_of(number: int, first: int = 0) -> list[bytes]:
    return [b"row %d" % each for each in range(first, first + number)]


def everything(node: NodeProcess, sink: Sink) -> Counter[bytes]:
    return Counter(data for messages in stored(node, sink.stream) for data in messages)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(0, 30).map(lambda each: b"%d" % each), min_size=1, max_size=200),
    stops=st.lists(st.integers(0, 200), max_size=4),
    partitions=st.integers(1, 3),
    shuffled=st.randoms(use_true_random=False),
    repeated=st.booleans(),
)
def test_a_task_ended_anywhere_and_repeated_in_any_order_stores_each_row_once(
    node: NodeProcess,
    rows: list[bytes],
    stops: list[int],
    partitions: int,
    shuffled: random.Random,
    repeated: bool,
) -> None:
    """Goal: also where rows are equal, and where a batch is repeated after another process has ended."""
    sink = Sink(node.address, partitions)
    for stop in stops:
        sink.attempt(rows, stop=stop, repeated=repeated)
        shuffled.shuffle(rows)
    sink.attempt(rows, repeated=repeated)
    assert everything(node, sink) == Counter(rows)


def test_an_attempt_ends_with_as_many_rows_as_it_has(node: NodeProcess) -> None:
    """Goal: the counts of a repeated task are those of its rows, not of its pushes."""
    sink = Sink(node.address)
    sink.attempt(rows_of(500), stop=300)
    assert sink.attempt(rows_of(500)).counts == {(sink.stream, 0): 500}
    assert stored(node, sink.stream) == [rows_of(500)]


def test_a_committed_batch_is_passed_over_and_the_next_one_is_not(node: NodeProcess) -> None:
    """Goal: a crash between the sink's commit and Spark's own, after which Spark repeats a batch that is complete."""
    sink = Sink(node.address)
    for batch in range(3):
        rows = rows_of(100, 100 * batch)
        commit_written([sink.attempt(rows, batch=batch)], sink.options, batch)
        assert sink.attempt(list(reversed(rows)), batch=batch).counts == {}
    assert stored(node, sink.stream) == [rows_of(300)]


def test_a_node_that_has_forgotten_the_attempt(tmp_path: Path) -> None:
    """Goal: the rows are found after more messages than a node searches for sequence numbers, and its restart."""
    with NodeProcess(tmp_path / "data") as node:
        sink = Sink(node.address)
        sink.attempt(rows_of(200), stop=150)
        with blocking.connect(node.address) as client:
            partition = client.get_stream(sink.stream).partitions[0]
            with partition.publisher() as publisher:
                publisher.push_many([b"x"] * FORGOTTEN)
        assert node.stop() == 0
    with NodeProcess(tmp_path / "data") as node:
        sink.options = WriteOptions(endpoint=node.address, stream=sink.stream)
        sink.attempt(rows_of(200))
        with blocking.connect(node.address) as client:
            (end,) = list_partitions(client, sink.stream)
            (partition,) = client.get_stream(sink.stream).partitions
            tail, head = partition.pull(end.next_index - 60, 100), partition.pull(0, 200)
        rows = [each.data for each in head if each.data != b"x"] + [each.data for each in tail if each.data != b"x"]
        assert end.next_index == FORGOTTEN + 200
        assert rows == rows_of(200)


def test_two_attempts_at_work_at_once(node: NodeProcess) -> None:
    """Goal: a worker that lives on after Spark has given it up. Method: two writers of one task, in turn."""
    sink = Sink(node.address)
    rows, ends = rows_of(400), sink.ends()
    attempts = [Attempt(sink.query, 0, 0, repeated) for repeated in (False, True)]
    with Pushes(sink.options, attempts[0], ends) as first, Pushes(sink.options, attempts[1], ends) as second:
        for row in rows:
            taken = read_row({"data": row}, sink.options)
            assert taken is not None
            for each in (first, second):
                each.push(taken)
        first.flush()
        second.flush()
    assert stored(node, sink.stream) == [rows]


def test_two_attempts_at_once_with_rows_in_another_order(node: NodeProcess) -> None:
    """Goal: what the node takes for duplicates, and is none, is told; the next attempt stores what is missing."""
    sink = Sink(node.address)
    rows, ends = rows_of(400), sink.ends()
    with (
        Pushes(sink.options, Attempt(sink.query, 0, 0), ends) as first,
        Pushes(sink.options, Attempt(sink.query, 0, 0), ends) as second,
    ):
        feed(first, sink, rows)
        first.flush()
        with pytest.raises(RowsDiffer, match="its row 0 is another one than that of an attempt before"):
            feed(second, sink, rows[::-1])
    sink.attempt(rows[::-1], repeated=True)
    assert stored(node, sink.stream) == [rows]


@pytest.mark.parametrize("ahead", [0, 100])
def test_of_two_attempts_at_once_one_stores_its_rows(node: NodeProcess, ahead: int) -> None:
    """Goal: an attempt with another order of rows stores nothing beside one that is at work, and no row comes twice.

    Method: the first attempt has stored `ahead` rows when the second one begins, or goes on, and does not end.
    """
    sink = Sink(node.address)
    rows, ends = rows_of(400), sink.ends()
    with (
        Pushes(sink.options, Attempt(sink.query, 0, 0), ends) as first,
        Pushes(sink.options, Attempt(sink.query, 0, 0), ends) as second,
    ):
        feed(first, sink, rows[:ahead])
        first.drain()
        winner, loser = (first, second) if ahead else (second, first)
        if not ahead:
            feed(second, sink, rows[:-2:-1])
        with pytest.raises(RowsDiffer, match="its row 0 is another one"):
            feed(loser, sink, rows if loser is first else rows[::-1])
        feed(winner, sink, rows[ahead:] if winner is first else rows[::-1][1:])
        winner.flush()
    assert everything(node, sink) == Counter(rows)
    sink.attempt(rows, repeated=True)
    assert everything(node, sink) == Counter(rows)


def test_an_attempt_that_was_paused_stores_nothing_beside_the_next_one(node: NodeProcess) -> None:
    """Method: the first attempt goes on while the second one, with the rows in another order, is in its middle."""
    sink = Sink(node.address)
    rows, ends = rows_of(400), sink.ends()
    with Pushes(sink.options, Attempt(sink.query, 0, 0), ends) as first:
        feed(first, sink, rows[:100])
        first.drain()
        with Pushes(sink.options, Attempt(sink.query, 0, 0, repeated=True), ends) as second:
            # The second attempt pushes nothing new before it has had all rows that are stored.
            feed(second, sink, [*rows[:100], *rows[:300:-1]])
            second.drain()
            with pytest.raises(RowsDiffer, match="its row 100 is another one"):
                feed(first, sink, rows[100:])
            feed(second, sink, rows[300:99:-1])
            second.flush()
    assert everything(node, sink) == Counter(rows)


def test_a_batch_that_changed_is_refused(node: NodeProcess) -> None:
    """Goal: nothing is stored twice, left out or added in silence where a repeated batch has other rows or tasks."""
    sink = Sink(node.address)
    sink.attempt(rows_of(10), task=0)
    sink.attempt(rows_of(10, 10), task=1)
    with pytest.raises(RowsDiffer, match="batch 0, task 0, is repeated and 10 rows that the first attempt stored"):
        sink.attempt(rows_of(10, 10), task=0)
    with pytest.raises(RowsDiffer, match="1 rows that the first attempt stored are not in this attempt"):
        sink.attempt([*rows_of(9), *rows_of(50, 1_000)], task=0)
    assert everything(node, sink) == Counter(rows_of(20))
    only = sink.attempt(rows_of(10), task=0)
    with pytest.raises(RowsDiffer, match="batch 0 had a task 1 when it was first tried, and has fewer tasks now"):
        commit_written([only], sink.options, 0)
    commit_written([only, sink.attempt(rows_of(10, 10), task=1)], sink.options, 0)
    assert everything(node, sink) == Counter(rows_of(20))


def test_rows_of_an_attempt_that_were_deleted(node: NodeProcess) -> None:
    """Goal: where retention has taken a part of what an attempt stored, nobody guesses what the rest was."""
    sink = Sink(node.address)
    sink.attempt(rows_of(10))
    with blocking.connect(node.address) as client:
        client.get_stream(sink.stream).partitions[0].truncate(4)
    with pytest.raises(RowsDiffer, match="some were deleted"):
        sink.attempt(rows_of(10))


def test_a_stream_made_anew_between_batches(node: NodeProcess) -> None:
    """Goal: a record of the deleted stream does not hide what an attempt stored in the new one."""
    sink = Sink(node.address)
    commit_written([sink.attempt(rows_of(100))], sink.options, 0)
    with blocking.connect(node.address) as client:
        client.get_stream(sink.stream).delete()
        client.create_partitioned(sink.stream, 1)
    for stop in (20, None):
        done = sink.attempt(rows_of(50), batch=1, stop=stop)
    commit_written([done], sink.options, 1)
    for stop in (20, None):
        sink.attempt(rows_of(50, 50), batch=2, stop=stop)
    assert stored(node, sink.stream) == [rows_of(100)]


def test_rows_that_other_publishers_store_meanwhile(node: NodeProcess) -> None:
    """Goal: equal messages of others are not taken for rows of the batch."""
    sink = Sink(node.address)
    sink.attempt(rows_of(20), stop=10)
    with blocking.connect(node.address) as client, client.get_stream(sink.stream).partitions[0].publisher() as other:
        other.push_many(rows_of(20))
    sink.attempt(rows_of(20))
    assert everything(node, sink) == Counter(rows_of(20) * 2)


def test_a_connection_that_breaks_while_an_attempt_is_looked_for(node: NodeProcess) -> None:
    sink = Sink(node.address)
    sink.attempt(rows_of(500), stop=400)
    ends = sink.ends()
    with door(node.address, [300, 300, ALL]) as address:
        sink.options = WriteOptions(endpoint=address, stream=sink.stream, window=50)
        sink.attempt(rows_of(500), ends=ends)
    assert stored(node, sink.stream) == [rows_of(500)]


def test_a_partition_that_is_not_there_is_refused(node: NodeProcess) -> None:
    sink = Sink(node.address)
    taken = read_row({"data": b"x", "partition": 3}, sink.options)
    assert taken is not None
    ends = sink.ends()
    with (
        Pushes(sink.options, Attempt(sink.query, 0, 0), ends) as pushes,
        pytest.raises(OptionError, match="which has 1"),
    ):
        pushes.push(taken)
