"""Updates the tables silver/messages, gold/rates, gold/latency and gold/index_gaps with new messages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_export.pipeline.block_rows import STREAM_PREFIX
from spark_export.pipeline.event_time import EVENT_TIME_HEADER
from spark_export.pipeline.tables.new_messages import ReadFiles, sorted_groups
from spark_export.pipeline.versions import Version

TIME = pa.timestamp("us", tz="UTC")
MESSAGES, RATES, LATENCY, INDEX_GAPS = "silver/messages", "gold/rates", "gold/latency", "gold/index_gaps"
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000
_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,100}\s*", re.ASCII)

SCHEMAS = {
    MESSAGES: pa.schema(
        [
            ("stream", pa.string()),
            ("era", pa.int32()),
            ("partition", pa.int32()),
            ("index", pa.int64()),
            ("timestamp", TIME),
            ("key", pa.binary()),
            ("data_bytes", pa.int32()),
            ("text", pa.string()),
            ("event_time", TIME),
        ]
    ),
    RATES: pa.schema(
        [
            ("stream", pa.string()),
            ("minute", TIME),
            ("messages", pa.int64()),
            ("bytes", pa.int64()),
            ("mean_bytes", pa.float64()),
            ("max_bytes", pa.int32()),
        ]
    ),
    LATENCY: pa.schema(
        [
            ("stream", pa.string()),
            ("minute", TIME),
            ("messages", pa.int64()),
            ("p50_ms", pa.float64()),
            ("p99_ms", pa.float64()),
            ("max_ms", pa.float64()),
        ]
    ),
    INDEX_GAPS: pa.schema(
        [
            ("stream", pa.string()),
            ("era", pa.int32()),
            ("partition", pa.int32()),
            ("first", pa.int64()),
            ("last", pa.int64()),
            ("missing", pa.int64()),
            ("after", TIME),
            ("before", TIME),
        ]
    ),
}
Minute: TypeAlias = tuple[str, int]
"""A stream, and the start of a minute in microseconds since 1970."""


class MessageTables:
    """The tables of all messages: `prepare` and `write` add to silver/messages, `finish` updates the gold tables."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._rates: dict[Minute, list[int]] = {}
        self._touched: set[Minute] = set()

    def prepare(self, rows: pa.Table) -> pa.Table:
        """Counts new messages for gold/rates. Returns their rows of silver/messages."""
        event_time = read_event_times(rows["headers"])
        data = rows["data"].combine_chunks()
        silver = pa.table(
            {
                "stream": rows["stream"],
                "era": rows["era"],
                "partition": rows["partition"],
                "index": rows["index"],
                "timestamp": rows["timestamp"],
                "key": rows["key"],
                "data_bytes": pc.binary_length(data),
                "text": decode_texts(data),
                "event_time": event_time,
            },
            schema=SCHEMAS[MESSAGES],
        )
        minutes = silver.append_column("minute", minutes_of(silver["timestamp"]))
        counted = minutes.group_by(["stream", "minute"]).aggregate(
            [("data_bytes", "count"), ("data_bytes", "sum"), ("data_bytes", "max")]
        )
        for each in counted.to_pylist():
            found = self._rates.setdefault((each["stream"], each["minute"]), [0, 0, 0])
            found[0] += each["data_bytes_count"]
            found[1] += each["data_bytes_sum"]
            found[2] = max(found[2], each["data_bytes_max"])
        self.touch(minutes.filter(pc.field("event_time").is_valid()).select(["stream", "minute"]))
        return silver

    def write(self, parts: list[pa.Table]) -> None:
        if parts:
            self._version.write(MESSAGES, pa.concat_tables(parts))

    def touch(self, minutes: pa.Table) -> None:
        """Notes the minutes whose latency must be computed again."""
        for each in minutes.group_by(["stream", "minute"]).aggregate([]).to_pylist():
            self._touched.add((each["stream"], each["minute"]))

    def finish(self, taken: ReadFiles, blocks: str | None) -> None:
        """Updates the gold tables. `blocks` is a table of blocks whose rows count as events for gold/latency."""
        for day, minutes in _by_day(self._rates).items():
            self._finish_rates(day, minutes)
        for day, minutes in _by_day(self._touched).items():
            self._finish_latency(day, set(minutes), blocks)
        gaps = [
            (*source, gap.first, gap.last, gap.last - gap.first + 1, gap.first_us, gap.last_us)
            for source, spans in sorted(taken.intervals.items())
            for gap in spans.gaps()
        ]
        replace_table(self._version, INDEX_GAPS, table_of(SCHEMAS[INDEX_GAPS], gaps))

    def _finish_rates(self, day: str, minutes: Iterable[Minute]) -> None:
        found = {minute: list(self._rates[minute]) for minute in minutes}
        for path in self._version.files(RATES, day):
            for row in _read_minutes(path):
                known = found.setdefault((row["stream"], row["minute"]), [0, 0, 0])
                known[0] += row["messages"]
                known[1] += row["bytes"]
                known[2] = max(known[2], row["max_bytes"])
            path.unlink()
        rows = [(*minute, n, size, size / n, largest) for minute, (n, size, largest) in sorted(found.items())]
        self._version.write(RATES, table_of(SCHEMAS[RATES], rows), day)

    def _finish_latency(self, day: str, touched: set[Minute], blocks: str | None) -> None:
        """Computes the rows of gold/latency for the minutes `touched` of one day."""
        kept = [
            tuple(row.values())
            for path in self._version.files(LATENCY, day)
            for row in _read_minutes(path)
            if (row["stream"], row["minute"]) not in touched
        ]
        streams = {stream for stream, _ in touched}
        chains = {stream.removeprefix(STREAM_PREFIX) for stream in streams if stream.startswith(STREAM_PREFIX)}
        begin = min(minute for _, minute in touched)
        end = max(minute for _, minute in touched) + MINUTE_US
        events = []
        for table, name, wanted_names in ((MESSAGES, "stream", streams), (blocks, "chain", chains)):
            if table is not None:
                wanted = (
                    (pc.field("timestamp") >= pa.scalar(begin, TIME))
                    & (pc.field("timestamp") < pa.scalar(end, TIME))
                    & pc.field(name).isin(pa.array(sorted(wanted_names), pa.string()))
                    & pc.field("event_time").is_valid()
                )
                source = ds.dataset([str(path) for path in self._version.files(table)], format="parquet")
                if source.files:
                    found = source.to_table(columns=[name, "timestamp", "event_time"], filter=wanted)
                    found = found.rename_columns(["stream", "timestamp", "event_time"])
                    if name == "chain":
                        # A chain and a stream may have the same name, so a block counts for the stream that stores it.
                        full = pc.binary_join_element_wise(STREAM_PREFIX, found["stream"], "")
                        found = found.set_column(0, "stream", full)
                    events.append(found)
        rows = [row for row in summarise_latency(pa.concat_tables(events)) if (row[0], row[1]) in touched]
        for path in self._version.files(LATENCY, day):
            path.unlink()
        self._version.write(LATENCY, table_of(SCHEMAS[LATENCY], sorted(kept + rows)), day)


def summarise_latency(events: pa.Table) -> list[tuple[Any, ...]]:
    """Returns a row of gold/latency for each stream and minute.

    p99_ms is the smallest latency that at least 99 % of the events do not exceed; p50_ms likewise for 50 %.
    """
    passed = pc.subtract(events["timestamp"].cast(pa.int64()), events["event_time"].cast(pa.int64()))
    each = pa.table({"stream": events["stream"], "minute": minutes_of(events["timestamp"]), "us": passed})
    each = each.sort_by([("stream", "ascending"), ("minute", "ascending"), ("us", "ascending")])
    rows: list[tuple[Any, ...]] = []
    for place, group in sorted_groups(each.combine_chunks(), ["stream", "minute"]):
        count = group.num_rows
        ranks = (-(-count * 50 // 100), -(-count * 99 // 100), count)
        rows.append((*place, count, *(group["us"][rank - 1].as_py() / 1000.0 for rank in ranks)))
    return rows


def minutes_of(times: Any) -> Any:
    return pc.floor_temporal(times, unit="minute").cast(pa.int64())


def read_event_times(headers: Any) -> pa.Array:
    """Returns the event time of each message, from its first header `event_time_us`; null without a valid one."""
    headers = headers.combine_chunks()
    if isinstance(headers, pa.ChunkedArray):
        headers = pa.concat_arrays(headers.chunks) if headers.num_chunks else pa.nulls(0, headers.type)
    found: dict[int, int] = {}
    seen: set[int] = set()
    flat = pc.list_flatten(headers)
    rows = pc.list_parent_indices(headers)
    if len(flat):
        wanted = pc.equal(pc.struct_field(flat, "key"), EVENT_TIME_HEADER)
        values = pc.struct_field(flat, "value").filter(wanted).to_pylist()
        for row, value in zip(rows.filter(wanted).to_pylist(), values, strict=True):
            if row in seen:
                continue
            seen.add(row)
            text = value.decode("ascii", "replace")
            if _WHOLE_NUMBER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
                found[row] = int(text)
    return pa.array([found.get(row) for row in range(len(headers))], pa.int64()).cast(TIME)


def decode_texts(data: Any) -> pa.Array:
    """Decodes the data of each message as UTF-8; null if it is not UTF-8."""
    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks()
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        if len(data) > 64:
            half = len(data) // 2
            return pa.concat_arrays([decode_texts(data.slice(0, half)), decode_texts(data.slice(half))])
    return pa.array([_text(each) for each in data.to_pylist()], pa.string())


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def table_of(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Builds a table from rows with times in microseconds since 1970."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array(column, pa.int64()).cast(TIME) if field.type == TIME else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Returns an iterator over the rows of a table, with times in microseconds since 1970."""
    columns = [column.cast(pa.int64()) if column.type == TIME else column for column in table.columns]
    return zip(*(column.to_pylist() for column in columns), strict=True)


def replace_table(version: Version, table: str, rows: pa.Table) -> None:
    """Replaces all rows of a small table."""
    before = version.files(table)
    if len(before) == 1 and pq.read_table(before[0], schema=rows.schema).equals(rows):
        return
    for path in before:
        path.unlink()
    if rows.num_rows:
        version.write(table, rows)


def _read_minutes(path: Any) -> list[dict[str, Any]]:
    """Returns the rows of a file of a gold table, by column name."""
    rows = pq.ParquetFile(path).read()
    return [dict(zip(rows.column_names, row, strict=True)) for row in rows_of(rows)]


def _by_day(minutes: Iterable[Minute]) -> dict[str, list[Minute]]:
    days: dict[str, list[Minute]] = defaultdict(list)
    for minute in minutes:
        days[datetime.fromtimestamp(minute[1] // DAY_US * 86_400, UTC).strftime("%Y-%m-%d")].append(minute)
    return days
