"""Turns the columns of messages, and of a decoder, into the columns that a query requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from spark_export.errors import OptionError
from spark_export.source.decoding import find_decoder
from spark_export.source.options import ReadOptions
from spark_export.source.schema import spark_schema, with_kafka_names


def full_schema(options: ReadOptions) -> StructType:
    """Returns the schema of a read without `.schema(…)`. Raises OptionError if the decoder needs `.schema(…)`."""
    decoder = find_decoder(options)
    if decoder is None:
        return spark_schema(options)
    columns = decoder.columns()
    if columns is None:
        raise OptionError(
            f"decode={options.decode}: say which columns you want by .schema('…'), such as 'index LONG, amount INT'"
        )
    _check_distinct(options, columns)
    return spark_schema(options, columns)


def _check_distinct(options: ReadOptions, decoded: Sequence[StructField]) -> None:
    twice = {field.name for field in decoded} & set(spark_schema(options).fieldNames())
    if twice:
        raise OptionError(
            f"decode={options.decode} has a column {min(twice)!r} of its own, and so has columns=kafka; "
            "leave columns=kafka out"
        )


def _has_required(field: StructField) -> bool:
    """Returns whether a type forbids null inside. Such a type is refused, because a message can lack any value."""
    waiting = [field.dataType]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, StructType):
            if not all(each.nullable for each in kind.fields):
                return True
            waiting += [each.dataType for each in kind.fields]
        elif isinstance(kind, ArrayType):
            if not kind.containsNull:
                return True
            waiting.append(kind.elementType)
        elif isinstance(kind, MapType):
            if not kind.valueContainsNull:
                return True
            waiting.append(kind.valueType)
    return False


class Projection:
    """A conversion of record batches to the requested schema; `options` leave out unrequested data and headers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Checks that the options provide the requested columns, with their types and null. Raises OptionError."""
        self._decoder = find_decoder(options)
        whole = {field.name: field for field in spark_schema(replace(options, include_headers=True, include_data=True))}
        decoded = None if self._decoder is None else self._decoder.columns()
        _check_distinct(options, decoded or ())
        offered = {**whole, **{field.name: field for field in decoded or ()}}
        for field in schema.fields:
            known = offered.get(field.name)
            if known is None and (self._decoder is None or decoded is not None):
                raise OptionError(f"there is no column {field.name!r}; there are {', '.join(offered)}")
            if known is not None and known.dataType.simpleString() != field.dataType.simpleString():
                raise OptionError(f"the column {field.name!r} is {known.dataType.simpleString()}; ask for it as that")
            if (not field.nullable and (known is None or known.nullable)) or (known is None and _has_required(field)):
                raise OptionError(f"the column {field.name!r} can be null in some message; leave out NOT NULL")
        names = schema.fieldNames()
        self.options = replace(
            options,
            include_data=("value" if options.kafka_columns else "data") in names
            or self._decoder is not None
            or options.verify_checksums,
            include_headers="headers" in names or (self._decoder is not None and self._decoder.needs_headers),
            marks=options.kafka_columns and "value" in names,
        )
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._decoded = [field for field in self._schema if field.name not in whole]
        if self._decoder is not None:
            self._decoder.check(self._decoded)
        plain = spark_schema(self.options)
        self._is_plain = not options.kafka_columns and schema.fieldNames() == plain.fieldNames() and schema == plain

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts a batch with the schema `schema.arrow_schema(self.options)` to the requested schema."""
        if self._is_plain:
            return batch
        read = {name: batch.column(name) for name in batch.schema.names}
        columns = with_kafka_names(read, batch.num_rows) if self.options.kafka_columns else read
        if self._decoder is not None and self._decoded:
            made = self._decoder.decode(read["key"], read["data"], read.get("headers"), self._decoded)
            columns = columns | {field.name: array for field, array in zip(self._decoded, made, strict=True)}
        arrays = [columns[field.name].cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
