"""Goal: who knows Spark's Kafka source finds its columns, offsets by time and triggers here. Method: a real node, and
the readers that Spark calls, without Spark."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from pyspark.sql.streaming.listener import QueryProgressEvent, SourceProgress, StreamingQueryProgress
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_export.errors import DataLoss, OptionError
from spark_export.source.lag import LagListener, offsets_behind_latest
from spark_export.source.options import read_options
from spark_export.source.readers import BatchReader, StreamReader, full_schema
from spark_export.source.schema import batch_of_messages
from spark_export.source.spark_versions import ReadAllAvailable, ReadMaxRows, ReadMinRows
from stream_client import Header, blocking
from stream_node.node.process import NodeProcess
from stream_service.extensions import RichMessage
from tests.spark_export.test_source_losses import batch_ranges, streaming
from tests.spark_export.test_spark_batch import fill

pytestmark = pytest.mark.spark

KAFKAS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
    ]
)
"""The columns of Spark's Kafka source, from the guide of Spark 4.3."""


def read(node: NodeProcess, schema: StructType | None = None, **options: str) -> pa.Table:
    reader = BatchReader(read_options({"endpoint": node.address, **options}), schema)
    return pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])


def test_columns_are_those_of_kafkas_source(node: NodeProcess) -> None:
    """Goal: names, order, types and nullability, so that a frame of one source can be united with one of the other."""
    with blocking.connect(node.address) as client:
        stream = client.create("k_columns")
        stream.push(b"first", key=b"k", headers=[Header("h", b"v")])
        stream.push(b"")
    asked = {"subscribe": "k_columns", "includeHeaders": "true"}
    assert full_schema(read_options(asked)) == KAFKAS
    assert full_schema(read_options({**asked, "columns": "kafka"})) == KAFKAS
    rows = read(node, **asked).to_pylist()
    names = ("key", "value", "topic", "partition", "offset", "timestampType", "headers")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (b"k", b"first", "k_columns", 0, 0, 1, [{"key": "h", "value": b"v"}]),
        (None, b"", "k_columns", 0, 1, 1, None),
    ]
    own = read(node, subscribe="k_columns", columns="stream").to_pylist()
    assert [row["timestamp"] for row in own] == [row["timestamp"] for row in rows]
    thin = read(node, subscribe="k_columns", columns="kafka", includeData="false")
    assert thin.schema.names == ["key", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_a_mark_of_null_becomes_null_again(node: NodeProcess) -> None:
    """Goal: a row that `nulls=mark` wrote is null with Kafka's names, and an empty message is not; also without the
    column headers. Method: bulk reads, the data directory, and messages of pulls."""
    mark = Header("node/null/1", b"")
    with blocking.connect(node.address) as client:
        stream = client.create("k_marks")
        stream.push(b"", key=b"k", headers=[Header("a", b"node/null/1"), mark])
        stream.push(b"", headers=[Header("a", b"node/null/1")])
        stream.push(b"x")
    expected = [(b"k", None), (None, b""), (None, b"x")]
    for place in ({"endpoint": node.address}, {"path": str(node.data_dir)}):
        for headers in ("true", "false"):
            asked = {**place, "subscribe": "k_marks", "columns": "kafka", "includeHeaders": headers}
            rows = read(node, **asked).to_pylist()
            assert [(row["key"], row["value"]) for row in rows] == expected
    own = read(node, subscribe="k_marks", includeHeaders="true", columns="stream")
    assert own["data"].to_pylist() == [b"", b"", b"x"]
    options = replace(read_options({"subscribe": "s", "columns": "kafka"}), marks=True)
    pulled = [
        RichMessage(index, 0, b"k", headers, b"")
        for index, headers in enumerate([[Header("node/null/1", b"")], [Header("a", b"node/null/1")]])
    ]
    batch = batch_of_messages(pulled, "s", 0, options)
    assert batch.column("marked").to_pylist() == [True, False]


def test_names_of_one_kind_are_there_at_a_time(node: NodeProcess) -> None:
    """Goal: a member of an object may have a name of the other kind, and a wrong name is answered with the list."""
    with blocking.connect(node.address) as client:
        client.create("k_json").push(b'{"value": 3, "data": 4}')
    asked = {"subscribe": "k_json", "decode": "json"}
    both = StructType().add("value", IntegerType()).add("data", BinaryType())
    assert read(node, both, columns="stream", **asked).to_pylist() == [{"value": 3, "data": b'{"value": 3, "data": 4}'}]
    assert read(
        node,
        StructType().add("value", BinaryType()).add("data", IntegerType()).add("offset", LongType()),
        columns="kafka",
        **asked,
    ).to_pylist() == [{"value": b'{"value": 3, "data": 4}', "data": 4, "offset": 0}]
    with pytest.raises(OptionError, match="there is no column 'index'; there are key, value, topic, partition, offset"):
        read(node, StructType().add("index", LongType()), subscribe="k_json", columns="kafka")
    with pytest.raises(OptionError, match="there is no column 'offset'; there are key, data, stream"):
        read(node, StructType().add("offset", LongType()), subscribe="k_json", columns="stream")


def test_a_name_with_two_meanings_is_refused() -> None:
    """Goal: no value is taken for another of the same name. Method: Cardinal's updates have a `value`, as Kafka has."""
    with pytest.raises(OptionError, match="decode=cardinal has a column 'value', and Kafka's columns have one too"):
        full_schema(read_options({"subscribe": "s", "decode": "cardinal", "columns": "kafka"}))
    assert (
        "value" in full_schema(read_options({"subscribe": "s", "decode": "cardinal", "columns": "stream"})).fieldNames()
    )


def first_at(node: NodeProcess, stream: str, partition: int, time_ms: int) -> int:
    """The first index of a partition with a time of `time_ms` or later, found by looking through all messages."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    rows = [row for row in read(node, subscribe=stream).to_pylist() if row["partition"] == partition]
    return next((row["offset"] for row in rows if row["timestamp"] >= moment), len(rows))


def test_times_bound_each_partition(node: NodeProcess) -> None:
    """Goal: each partition starts and ends by its own time. Method: times of the messages themselves, and the first
    message at or after each, found by looking through all."""
    with blocking.connect(node.address) as client:
        stream = client.create_partitioned("k_times", 2)
        for number in range(200):
            stream.partitions[number % 2].push(b"%d" % number)
    rows = read(node, subscribe="k_times").to_pylist()
    times = [int(row["timestamp"].timestamp() * 1000) for row in rows if row["partition"] == 0]
    start_ms, end_ms, late_ms = (
        {"0": times[20] + 1, "1": times[60]},
        {"0": times[80], "1": times[99] + 10**6},
        times[99] + 10**6,
    )
    start, end = json.dumps({"k_times": start_ms}), json.dumps({"k_times": end_ms})
    expected = [
        (
            first_at(node, "k_times", number, start_ms[str(number)]),
            first_at(node, "k_times", number, end_ms[str(number)]),
        )
        for number in (0, 1)
    ]
    assert 0 < expected[0][0] < expected[0][1] < 100 == expected[1][1]
    bounds = {"startingOffsetsByTimestamp": start, "endingOffsetsByTimestamp": end}
    assert batch_ranges(node, subscribe="k_times", **bounds) == expected
    initial = streaming(node, subscribe="k_times", startingOffsetsByTimestamp=start).initialOffset()
    assert [initial["k_times"][number] for number in ("0", "1")] == [expected[0][0], expected[1][0]]
    late = json.dumps({"k_times": {"0": 0, "1": late_ms}})
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp: k_times/1 has no message as late as that"):
        batch_ranges(node, subscribe="k_times", startingOffsetsByTimestamp=late)
    # Nanoseconds are no milliseconds.
    with pytest.raises(OptionError, match="startingTimestamp: k_times/0 has no message as late as that"):
        batch_ranges(node, subscribe="k_times", startingTimestamp=str(time.time_ns()))
    assert batch_ranges(node, subscribe="k_times", endingTimestamp=str(time.time_ns())) == [(0, 100)] * 2
    loose = {"startingOffsetsByTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert batch_ranges(node, subscribe="k_times", **loose) == [(0, 100)]
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp has no offset for k_times/1"):
        batch_ranges(node, subscribe="k_times", startingOffsetsByTimestamp='{"k_times":{"0":1}}')


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_streaming_read_has_no_end(option: str) -> None:
    """Goal: as in Kafka's source, an end is refused at the start of a streaming query."""
    value = {"endingOffsets": '{"s":{"0":4}}', "endingTimestamp": "5", "endingOffsetsByTimestamp": '{"s":{"0":4}}'}
    with pytest.raises(OptionError, match="for batch reads; a streaming read has no end"):
        StreamReader(read_options({"subscribe": "s", option: value[option]}))


def test_a_query_waits_for_enough_messages(node: NodeProcess) -> None:
    """Goal: `minOffsetsPerTrigger` holds a micro-batch back until there are so many, or `maxTriggerDelay` has passed.

    Method: the first micro-batch of a query, which does not wait; then fewer, then enough; then a delay of nothing.
    """
    fill(node, "k_min", [3])
    asked = {"subscribe": "k_min", "startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    reader = streaming(node, **asked)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first["k_min"]["0"] == 3
    fill(node, "k_min", [9])
    assert reader.latestOffset(first, limit) == first
    assert reader.latestOffset(first, ReadAllAvailable())["k_min"]["0"] == 12
    fill(node, "k_min", [1])
    assert reader.latestOffset(first, limit)["k_min"]["0"] == 13
    impatient = streaming(node, **asked, maxTriggerDelay="0s")
    impatient.latestOffset(first, limit)
    assert impatient.latestOffset(first, limit)["k_min"]["0"] == 13
    both = streaming(node, **asked, maxOffsetsPerTrigger="11")
    assert both.getDefaultReadLimit() == ReadMaxRows(11)
    both.latestOffset(first, ReadMaxRows(11))
    assert both.latestOffset(both.initialOffset(), ReadMaxRows(11))["k_min"]["0"] == 11


def test_neither_an_end_nor_a_loss_waits(node: NodeProcess) -> None:
    """Goal: an AvailableNow query takes the little that is there, and a deletion is found at once."""
    fill(node, "k_end", [3])
    asked = {"subscribe": "k_end", "minOffsetsPerTrigger": "10"}
    reader = streaming(node, **asked)
    start: dict[str, Any] = {"k_end": {"0": 1}}
    limit = reader.getDefaultReadLimit()
    reader.latestOffset(start, limit)
    assert reader.latestOffset(start, limit) == start
    ending = streaming(node, **asked)
    ending.prepareForTriggerAvailableNow()
    for _ in range(2):
        assert ending.latestOffset(start, limit)["k_end"]["0"] == 3
    with blocking.connect(node.address) as client:
        client.create("k_end").delete()
    with pytest.raises(DataLoss):
        reader.partitions(start, reader.latestOffset(start, limit))


def progress(end: Any, latest: Any) -> SourceProgress:
    return SourceProgress("", "", end, latest, 0, 0.0, 0.0, {})


def test_lag_is_counted_as_kafkas_source_counts() -> None:
    """Goal: the average, largest and smallest lag of the partitions; a partition that is not yet read counts whole."""
    end = '{"a":{"0":5,"1":7,"created_us":{"0":1,"1":1}}}'
    latest = '{"a":{"0":9,"1":7,"created_us":{"0":1,"1":1}},"b":{"0":2}}'
    expected = {"avgOffsetsBehindLatest": 2.0, "maxOffsetsBehindLatest": 4, "minOffsetsBehindLatest": 0}
    assert offsets_behind_latest(progress(end, latest)) == expected
    assert offsets_behind_latest(progress(json.loads(end), json.loads(latest))) == expected
    again = '{"a":{"0":3,"created_us":{"0":2}}}'
    assert offsets_behind_latest(progress(end, again))["maxOffsetsBehindLatest"] == 3
    for other in (None, "", "7", '{"a": 5}', "no json"):
        assert offsets_behind_latest(progress(end, other)) == {}


def test_the_lag_of_a_query_counts_all_its_sources() -> None:
    """Goal: a source that is current does not hide one that is behind. Method: a union of two streams and a table."""
    ends = (('{"a":{"0":5,"1":7}}', '{"a":{"0":9,"1":7}}'), ('{"b":{"0":2}}', '{"b":{"0":2}}'), ("7", "8"))
    names = ("description", "numInputRows", "inputRowsPerSecond", "processedRowsPerSecond")
    sources = [
        {**dict.fromkeys(names, 0), "startOffset": "", "endOffset": end, "latestOffset": latest} for end, latest in ends
    ]
    query = StreamingQueryProgress.fromJson(
        {
            **{"id": "b4d5bfd2-6b0d-4ac1-8ba4-3d2a39e5dc11", "runId": "b4d5bfd2-6b0d-4ac1-8ba4-3d2a39e5dc12"},
            **{"name": "union", "timestamp": "", "batchId": 1, "batchDuration": 1, "durationMs": {}},
            **{"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "observedMetrics": {}},
            **{"eventTime": {}, "stateOperators": [], "sources": sources},
            "sink": {"description": "", "numOutputRows": 1, "metrics": {}},
        }
    )
    reports: list[dict[str, float]] = []
    listener = LagListener(lambda _, lag: reports.append(lag))
    listener.onQueryProgress(QueryProgressEvent(query))
    expected = {"avgOffsetsBehindLatest": 4 / 3, "maxOffsetsBehindLatest": 4, "minOffsetsBehindLatest": 0}
    assert listener.lags == {"union": expected}
    assert reports == [expected]
