"""Turns the columns of messages, and of a decoder, into the columns that a query requests."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_export.decode.decoding import OWN_COLUMNS, decoder
from spark_export.errors import OptionError
from spark_export.source.options import ReadOptions
from spark_export.source.schema import requested_schema, with_kafka_names
from spark_export.source.spark_versions import arrow_schema_of


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


class Projection:
    """A conversion of record batches to the requested schema; `options` leave out unrequested data and headers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises OptionError if the options do not provide the requested columns with their types and nullability."""
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
        self._schema = arrow_schema_of(schema)
        asked = [field for field in self._schema if field.name not in whole.names]
        if len(own):
            # Spark 4.0 does not tell Arrow which parts of a list cannot be null. The types are compared above.
            asked = [own.field(field.name) for field in asked]
        self._decoder = None if options.decode is None else decoder(options.decode, asked, options.decode_options)
        self.options = replace(
            options,
            include_data=("value" if options.kafka_columns else "data") in names
            or self._decoder is not None
            or options.verify_checksums,
            include_headers="headers" in names or (self._decoder is not None and self._decoder.needs_headers),
            marks=options.kafka_columns and "value" in names,
        )

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts a batch with the schema `schema.arrow_schema(self.options)` to the requested schema."""
        if batch.schema.equals(self._schema):
            return batch
        read = {name: batch.column(name) for name in batch.schema.names}
        columns = with_kafka_names(read, batch.num_rows) if self.options.kafka_columns else read
        if self._decoder is not None:
            made = self._decoder.arrays(read["key"], read["data"], read.get("headers"))
            columns = columns | {field.name: array for field, array in zip(self._decoder.fields, made, strict=True)}
        arrays = [columns[field.name].cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
