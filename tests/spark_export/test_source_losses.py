"""Goal: no read of the source passes over lost messages in silence. Method: a real node, whose streams are deleted,
made again or truncated at each moment of a query; the readers that Spark calls, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.errors import DataLoss, SourceError, SourceUnreachable, StreamMissing
from spark_export.source import range_reader
from spark_export.source.catalog import find_catalog, selected
from spark_export.source.options import read_options
from spark_export.source.plan import ReadRange
from spark_export.source.range_reader import RangeReader
from spark_export.source.readers import BatchReader, StreamReader
from spark_export.source.spark_versions import ReadAllAvailable, ReadMaxRows
from stream_client import blocking
from stream_client.shell import blocking_shell
from stream_node.node.process import NodeProcess
from tests.spark_export.test_spark_batch import fill

pytestmark = pytest.mark.spark

ALL = ReadAllAvailable()


def streaming(node: NodeProcess, **options: str) -> StreamReader:
    return StreamReader(read_options({"endpoint": node.address, **options}))


def delete(node: NodeProcess, stream: str, *partitions: int) -> None:
    """Delete a stream, or the named partitions of one."""
    with blocking.connect(node.address) as client:
        if not partitions:
            client.get_stream(stream).delete()
        for number in partitions:
            client.get_stream(stream).partitions[number].delete()


def plan(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[ReadRange]:
    return [part.value for part in reader.partitions(start, end)]


def test_a_deleted_stream_with_unread_messages_fails_a_query(node: NodeProcess) -> None:
    """Goal: the micro-batch after the deletion fails, as in Kafka's source; the text says that no number is known."""
    fill(node, "l_deleted", [9])
    reader = streaming(node, subscribe="l_deleted")
    start = reader.reportLatestOffset()
    fill(node, "l_deleted", [11])
    delete(node, "l_deleted")
    end = reader.latestOffset(start, ALL)
    assert json.dumps(end) != json.dumps(start), "Spark would plan no micro-batch, and the loss would not be found"
    with pytest.raises(DataLoss, match=r"l_deleted/0 from index 9 on: .* no longer exists; nobody can say how many"):
        reader.partitions(start, end)
    with pytest.raises(DataLoss, match="l_deleted/0"):
        streaming(node, subscribe="l_deleted").partitions(start, end)


def test_a_deletion_is_reported_once_where_losses_are_allowed(
    node: NodeProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: one warning, no micro-batches without end; the stream that is made again is read from its beginning."""
    fill(node, "l_once", [9])
    reader = streaming(node, subscribe="l_once", failOnDataLoss="false")
    start = reader.reportLatestOffset()
    delete(node, "l_once")
    end = reader.latestOffset(start, ALL)
    assert plan(reader, start, end) == []
    assert caplog.text.count("l_once/0 from index 9 on") == 1
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)
    fill(node, "l_once", [20])
    later = reader.latestOffset(end, ReadMaxRows(15))
    assert [(each.start, each.end) for each in plan(reader, end, later)] == [(0, 15)]
    assert caplog.text.count("skipped") == 1


@pytest.mark.parametrize(
    "options", [{"subscribe": "l_part"}, {"subscribePattern": "l_par."}, {"assign": '{"l_part":[1]}'}]
)
def test_a_partition_that_vanished_fails_a_query(node: NodeProcess, options: dict[str, str]) -> None:
    """Goal: also where the other partitions go on, and however the stream was chosen."""
    with blocking.connect(node.address) as client:
        client.create_partitioned("l_part", 3)
    fill(node, "l_part", [3, 4, 5])
    reader = streaming(node, **options)
    start = reader.reportLatestOffset()
    delete(node, "l_part", 1)
    with pytest.raises(DataLoss, match=r"l_part/1 from index \d+ on"):
        reader.partitions(start, reader.latestOffset(start, ALL))
    delete(node, "l_part")


def test_a_stream_that_is_no_longer_subscribed_is_no_loss(node: NodeProcess) -> None:
    """Goal: whoever takes a stream out of the options may delete it. Method: offsets of two streams, one subscribed."""
    fill(node, "l_kept", [3])
    fill(node, "l_dropped", [4])
    start = streaming(node, subscribe="l_kept,l_dropped").reportLatestOffset()
    delete(node, "l_dropped")
    reader = streaming(node, subscribe="l_kept")
    assert reader.latestOffset(start, ALL) == start
    assert plan(reader, start, start) == []


def test_an_available_now_query_finds_a_deletion(node: NodeProcess) -> None:
    """Goal: deleted before the query starts, or after its end was fixed: both fail; the second names the number."""
    fill(node, "l_now", [9])
    start = streaming(node, subscribe="l_now").reportLatestOffset()
    fill(node, "l_now", [11])
    reader = streaming(node, subscribe="l_now")
    reader.prepareForTriggerAvailableNow()
    delete(node, "l_now")
    with pytest.raises(DataLoss, match=r"l_now/0 indexes 9 to 19: .* no longer exists"):
        reader.partitions(start, reader.latestOffset(start, ALL))
    late = streaming(node, subscribe="l_now")
    late.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="l_now/0 from index 9 on"):
        late.partitions(start, late.latestOffset(start, ALL))


def test_offsets_with_a_deletion_may_start_another_query(node: NodeProcess) -> None:
    """Goal: the offsets of a progress are starting offsets, whatever they hold."""
    with blocking.connect(node.address) as client:
        client.create_partitioned("l_copy", 2)
    fill(node, "l_copy", [5, 6])
    reader = streaming(node, subscribe="l_copy", failOnDataLoss="false")
    start = reader.reportLatestOffset()
    delete(node, "l_copy", 1)
    end = reader.latestOffset(start, ALL)
    assert end["l_copy"]["deleted"] == [1]
    # The partition that is gone still has its index in the progress, and no query can read it.
    assert end["l_copy"]["1"] == 6
    other = streaming(node, subscribe="l_copy", startingOffsets=json.dumps(end))
    assert other.initialOffset()["l_copy"]["0"] == 5
    delete(node, "l_copy")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that says nothing is asked sooner whether the stream exists."""
    monkeypatch.setattr(range_reader, "PATIENCE_CHECKS", 1)
    monkeypatch.setattr(blocking_shell, "CHECK_INTERVAL_S", 0.1)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("made_again", [False, True])
def test_a_stream_deleted_in_the_middle_of_a_task_is_a_loss(node: NodeProcess, made_again: bool) -> None:
    """Goal: the task says what is lost, at once and not after the timeouts of requests that nobody answers.

    Method: a deletion after the first of many pages, and one between planning and reading.
    """
    stream = f"l_task_{made_again}"
    fill(node, stream, [3_000])
    for allowed in ("true", "false"):
        options = read_options(
            {"endpoint": node.address, "subscribe": stream, "fetchBytes": "4096", "failOnDataLoss": allowed}
        )
        (end,) = selected(options, find_catalog(options)).values()
        wanted = ReadRange(stream, 0, 0, 3_000, end.created_us)
        reader = RangeReader(wanted, options)
        batches = reader.batches()
        next(batches)
        delete(node, stream)
        if made_again:
            fill(node, stream, [3_000])
        reason = "deleted and made again" if made_again else "no longer exists"
        if allowed == "true":
            # The next page may have been read ahead, between two steps of the deletion.
            step = r"\d+: deleted by retention .*first is now [12]000"
            with pytest.raises(DataLoss, match=rf"{stream}/0 indexes \d+ to (2999: .*{reason}|{step})"):
                list(batches)
            with pytest.raises(DataLoss, match=rf"{stream}/0 indexes 0 to 2999: .*{reason}"):
                list(RangeReader(wanted, options).batches())
            fill(node, stream, [3_000 if not made_again else 0])
        else:
            assert reader.rows + sum(batch.num_rows for batch in batches) <= 2 * reader.rows
            assert reader.rows + reader.lost == 3_000
            assert list(RangeReader(wanted, options).batches()) == []


def test_retention_in_the_middle_of_a_task_is_a_loss(node: NodeProcess) -> None:
    """Goal: rows that went after the first page are reported with their indexes; those that stayed are read."""
    fill(node, "l_retention", [3_000])
    for allowed in ("true", "false"):
        asked = {"subscribe": "l_retention", "fetchBytes": "4096", "failOnDataLoss": allowed}
        reader = RangeReader(ReadRange("l_retention", 0, 0, 3_000), read_options({"endpoint": node.address, **asked}))
        batches = reader.batches()
        if allowed == "true":
            next(batches)
            with blocking.connect(node.address) as client:
                client.create("l_retention").truncate(2_500)
            # The next page may have been read ahead, between two steps.
            told = r"indexes \d+ to (\d+)99: deleted by retention .*first is now (1000|2000|2500)"
            with pytest.raises(DataLoss, match=told):
                list(batches)
        else:
            found = [index for batch in batches for index in batch.column("index").to_pylist()]
            assert (found, reader.lost) == (list(range(2_500, 3_000)), 2_500)


def batch_ranges(node: NodeProcess, **options: str) -> list[tuple[int, int]]:
    parts = BatchReader(read_options({"endpoint": node.address, **options})).partitions()
    return [(part.value.start, part.value.end) for part in parts]


@pytest.mark.parametrize("index", [2, 30])
def test_starting_offsets_outside_a_partition_are_a_loss(node: NodeProcess, index: int) -> None:
    """Goal: as in Kafka's source, an index that the stream does not have fails the query, and with
    failOnDataLoss=false the nearest that it has is taken. Method: indexes 5 to 19 exist."""
    stream = f"l_outside_{index}"
    fill(node, stream, [20])
    with blocking.connect(node.address) as client:
        client.create(stream).truncate(5)
    asked = {"subscribe": stream, "startingOffsets": json.dumps({stream: {"0": index}})}
    problem = "indexes 2 to 4: deleted by retention" if index == 2 else "from index 30 on: .* ends at 20"
    with pytest.raises(DataLoss, match=problem):
        batch_ranges(node, **asked)
    with pytest.raises(DataLoss, match=problem):
        streaming(node, **asked).initialOffset()
    nearest = 5 if index == 2 else 20
    assert batch_ranges(node, **asked, failOnDataLoss="false") == ([(5, 20)] if index == 2 else [])
    initial = streaming(node, **asked, failOnDataLoss="false").initialOffset()
    assert initial[stream]["0"] == nearest


def test_a_batch_read_names_what_is_not_there(node: NodeProcess) -> None:
    """Goal: a stream deleted between planning and reading fails the task; one deleted before it, the planning."""
    fill(node, "l_batch", [7])
    options = read_options({"endpoint": node.address, "subscribe": "l_batch"})
    reader = BatchReader(options)
    (part,) = reader.partitions()
    delete(node, "l_batch")
    with pytest.raises(DataLoss, match=r"l_batch/0 indexes 0 to 6: .* no longer exists"):
        list(reader.read(part))
    with pytest.raises(StreamMissing, match="the node has no stream 'l_batch'"):
        reader.partitions()


@pytest.mark.usefixtures("soon")
def test_a_time_in_a_deleted_stream_is_answered(node: NodeProcess) -> None:
    """Goal: a stream that goes between listing and the question for a time does not hold the planning up."""
    fill(node, "l_time", [3])
    options = read_options({"endpoint": node.address, "subscribe": "l_time"})
    catalog = find_catalog(options)
    (end,) = selected(options, catalog).values()
    delete(node, "l_time")
    with pytest.raises(StreamMissing, match="has no stream 'l_time'"):
        catalog.index_at(end, 5)


def test_a_node_that_is_gone_is_no_deleted_stream() -> None:
    """Goal: only a node's own list says that a stream is deleted; no answer is never taken for one."""
    options = read_options({"endpoint": "127.0.0.1:1", "subscribe": "s", "requestTimeoutMs": "300"})
    with pytest.raises(SourceUnreachable):
        StreamReader(options).latestOffset({"s": {"0": 4}}, ALL)
    assert issubclass(SourceUnreachable, SourceError)


def test_what_comes_while_an_available_now_query_starts_is_no_loss(node: NodeProcess) -> None:
    """Goal: a stream that is created after the end was fixed waits for the next run, and no offset goes back."""
    fill(node, "l_now_a", [3])
    early = streaming(node, subscribePattern="l_now_.*", startingOffsets="earliest")
    late = streaming(node, subscribe="l_now_a", startingOffsets="latest")
    early.prepareForTriggerAvailableNow()
    late.prepareForTriggerAvailableNow()
    fill(node, "l_now_a", [5])
    fill(node, "l_now_b", [4])
    start = early.initialOffset()
    end = early.latestOffset(start, ALL)
    assert [(each.stream, each.start, each.end) for each in plan(early, start, end)] == [("l_now_a", 0, 3)]
    rest = streaming(node, subscribePattern="l_now_.*")
    later = rest.latestOffset(end, ALL)
    assert [(each.stream, each.start, each.end) for each in plan(rest, end, later)] == [
        ("l_now_a", 3, 8),
        ("l_now_b", 0, 4),
    ]
    start = late.initialOffset()
    assert late.latestOffset(start, ALL) == start
