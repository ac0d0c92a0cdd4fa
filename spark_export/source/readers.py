"""The readers that Spark calls for batch queries and for streaming queries.

`spark_export.source.plan` plans the index ranges, and `spark_export.source.range_reader` reads the ranges. Neither
reader implements `pushFilters`. In PySpark 4.3 the filters of one query also apply to all other queries of the same
DataFrame, and so give wrong results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_export.decode.decoding import OWN_COLUMNS, decoder
from spark_export.errors import OptionError
from spark_export.source import plan, spark_versions
from spark_export.source.catalog import find_catalog, is_chosen, resolved_indexes, selected, starting_indexes
from spark_export.source.options import ReadOptions, has_mark
from spark_export.source.plan import EARLIEST, LATEST
from spark_export.source.range_reader import RangeReader, report_losses
from spark_export.source.schema import requested_schema, with_kafka_names


class PlannedReader:
    """The base class of the readers of batch and streaming queries. The driver plans ranges, and each task reads one
    range.

    schema: the requested columns; None for all.
    """

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        """Raises OptionError if the options do not provide the requested columns with their types and nullability."""
        schema = schema or full_schema(options)
        whole = requested_schema(replace(options, include_headers=True, include_data=True))
        own = pa.schema(_own_columns(options))
        offered = {field.name: field for field in from_arrow_schema(pa.schema([*whole, *own]))}
        for field in schema.fields:
            known = offered.get(field.name)
            if known is None and (options.decode is None or len(own)):
                raise OptionError(f"there is no column {field.name!r}; there are {', '.join(offered)}")
            if known is not None and known.dataType.simpleString() != field.dataType.simpleString():
                raise OptionError(f"the column {field.name!r} is {known.dataType.simpleString()}; ask for it as that")
            if (not field.nullable and (known is None or known.nullable)) or (known is None and _has_required(field)):
                raise OptionError(f"the column {field.name!r} can be null in some message; leave out NOT NULL")
        names = schema.fieldNames()
        self._schema = spark_versions.arrow_schema_of(schema)
        asked = [field for field in self._schema if field.name not in whole.names]
        if len(own):
            # Spark 4.0 does not tell Arrow which parts of a list cannot be null. The types are compared above.
            asked = [own.field(field.name) for field in asked]
        made = None if options.decode is None else decoder(options.decode, asked, options.decode_options)
        value = "value" if options.kafka_columns else "data"
        self._decoder = made
        # Data and headers that no column needs are not read.
        self._options = replace(
            options,
            include_data=value in names or made is not None or options.verify_checksums,
            include_headers="headers" in names or (made is not None and made.needs_headers),
            marks=options.kafka_columns and "value" in names,
        )
        self._catalog = find_catalog(self._options)

    def _start(self, default: int) -> tuple[dict[plan.Place, plan.QueryPosition], dict[plan.Place, plan.StreamEnds]]:
        """Returns where a new query begins in each partition, and where each partition begins and ends.
        default: EARLIEST or LATEST.

        A missing index raises DataLoss, or is logged and replaced by the nearest existing index (`failOnDataLoss`).
        """
        ends = selected(self._options, self._catalog)
        wanted = plan.positions(starting_indexes(self._options, self._catalog, ends, default), ends)
        start, losses = plan.nearest_existing(wanted, ends)
        report_losses(losses, self._options.fail_on_data_loss)
        return start, ends

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one task. If no range was planned, Spark passes the value None (4.0: no partition)."""
        if partition is not None and partition.value is not None:
            yield from map(self._projected, RangeReader(partition.value, self._options).batches())

    def _projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts a batch with the schema `schema.arrow_schema(self._options)` to the requested schema."""
        if batch.schema.equals(self._schema):
            return batch
        read = {name: batch.column(name) for name in batch.schema.names}
        columns = with_kafka_names(read, batch.num_rows) if self._options.kafka_columns else read
        if self._decoder is not None:
            made = self._decoder.arrays(read["key"], read["data"], read.get("headers"))
            columns = columns | {field.name: array for field, array in zip(self._decoder.fields, made, strict=True)}
        arrays = [columns[field.name].cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _tasks(self, start: plan.Positions, end: plan.Positions, ends: plan.Ends) -> list[InputPartition]:
        ranges, losses = plan.ranges_between(start, end, ends)
        report_losses(losses, self._options.fail_on_data_loss)
        pieces = plan.split(ranges, self._options.max_records_per_partition, self._options.min_partitions)
        return [InputPartition(each) for each in pieces]


class BatchReader(PlannedReader, DataSourceReader):
    """The reader of batch queries. Every action on one DataFrame reads the same ranges, which are planned once."""

    def partitions(self) -> list[InputPartition]:
        if has_mark(self._options.starting, LATEST):
            raise OptionError("startingOffsets cannot be latest (-1) in a batch read: nothing would be read")
        start, ends = self._start(EARLIEST)
        given = self._options.ending, self._options.ending_time_us
        end = resolved_indexes(self._catalog, ends, *given, "endingOffsets")
        return self._tasks(start, plan.positions(end, ends), ends)


class StreamReader(PlannedReader, DataSourceStreamReader, spark_versions.SupportsTriggerAvailableNow):
    """The reader of streaming queries, used in one process on the driver.

    `_target`: the positions where an AvailableNow query ends, fixed when the query starts; None for other queries.
    `_ended_wait_s`: the monotonic time at which the last wait for `minOffsetsPerTrigger` ended.
    """

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        if options.ending != LATEST or options.ending_time_us is not None:
            raise OptionError("endingOffsets and endingTimestamp are for batch reads; a streaming read has no end")
        limits = options.max_offsets_per_trigger, options.min_offsets_per_trigger
        if limits != (None, None) and not spark_versions.HAS_LIMITS:
            raise OptionError("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2 or later; leave them out")
        super().__init__(options, schema)
        self._target: dict[plan.Place, plan.QueryPosition] | None = None
        self._ended_wait_s = -math.inf

    def initialOffset(self) -> dict[str, Any]:
        """Returns the offsets where a new query begins."""
        start, _ = self._start(LATEST)
        # The end of an AvailableNow query is fixed before this call. If a partition starts after its fixed end, the end
        # moves to the start; the next run reads the later messages.
        if self._target is not None:
            for place, begin in start.items():
                fixed = self._target.get(place)
                if fixed is None or fixed.is_of_another(begin) or fixed.index < begin.index:
                    self._target[place] = begin
        return plan.to_offsets(start)

    def getDefaultReadLimit(self) -> spark_versions.ReadLimit:
        """Returns the limit for `latestOffset`. A query that is triggered once gets ReadAllAvailable from Spark."""
        least, most = self._options.min_offsets_per_trigger, self._options.max_offsets_per_trigger
        if most is not None:
            return spark_versions.ReadMaxRows(most)
        return spark_versions.ReadAllAvailable() if least is None else spark_versions.ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: spark_versions.ReadLimit | None = None
    ) -> dict[str, Any]:
        """Returns the offsets where the next micro-batch ends. Spark before 4.2 gives no arguments.

        After a deletion, the offsets also differ from `start`, so that Spark plans a micro-batch, which finds the loss.
        """
        if start is None:
            return plan.to_offsets(self._latest())
        begin = plan.from_offsets(start)
        now = self._latest() if self._target is None else self._target
        end = plan.reached_positions(begin, now, lambda place: is_chosen(self._options, place))
        if not isinstance(limit, spark_versions.ReadAllAvailable) and self._waits(begin, end):
            return start
        if isinstance(limit, spark_versions.ReadMaxRows):
            end = plan.limited(begin, end, limit.max_rows)
        return plan.to_offsets(end)

    def _waits(self, begin: plan.Positions, end: plan.Positions) -> bool:
        """Returns whether the query waits for more messages, by `minOffsetsPerTrigger` and `maxTriggerDelay`."""
        # As with Spark's Kafka source, the first micro-batch, an AvailableNow query and a loss report do not wait.
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or plan.is_loss(begin, end):
            return False
        now_s = monotonic()
        if plan.count_between(begin, end) >= least or now_s - self._ended_wait_s >= self._options.max_trigger_delay_s:
            self._ended_wait_s = now_s
            return False
        return True

    def reportLatestOffset(self) -> dict[str, Any]:
        return plan.to_offsets(self._latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ends = selected(self._options, self._catalog, must_exist=False)
        begin = plan.from_offsets(start)
        # Spark before 4.2 asks for an end without saying where the micro-batch begins, so partitions can be missing.
        stop = plan.reached_positions(begin, plan.from_offsets(end), lambda place: is_chosen(self._options, place))
        return self._tasks(begin, stop, ends)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing, because Spark does not call it for the last micro-batch of an AvailableNow query."""

    def _latest(self) -> dict[plan.Place, plan.QueryPosition]:
        ends = selected(self._options, self._catalog, must_exist=False)
        return {place: plan.QueryPosition(end.next_index, end.created_us) for place, end in ends.items()}


def full_schema(options: ReadOptions) -> StructType:
    """Returns the schema of a read without `.schema(…)`. Raises OptionError if the decoder needs `.schema(…)`."""
    if options.decode is not None and options.decode.lower() not in OWN_COLUMNS:
        decoder(options.decode, None, options.decode_options)
    return from_arrow_schema(pa.schema([*requested_schema(options), *_own_columns(options)]))


def _own_columns(options: ReadOptions) -> list[pa.Field]:
    """Returns the columns of a decoder that has columns of its own."""
    if options.decode is None or options.decode.lower() not in OWN_COLUMNS:
        return []
    own = decoder(options.decode, None, options.decode_options).fields
    if twice := {field.name for field in own}.intersection(requested_schema(options).names):
        raise OptionError(
            f"decode={options.decode} has a column {min(twice)!r}, and Kafka's columns have one too; set columns=stream"
        )
    return own


def _has_required(field: StructField) -> bool:
    """Returns whether a type forbids null inside. Such a type is refused, because a message can lack any value."""
    kind = field.dataType.json()
    return any(f'"{name}":false' in kind for name in ("nullable", "containsNull", "valueContainsNull"))
