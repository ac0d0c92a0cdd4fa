"""Keeps the options of a Spark table: `CREATE TABLE … USING stream_node OPTIONS (…)`.

Spark 4.3 passes the options of a table to a Python data source when the table is created, mixed with Spark's own table
properties. When the table is read, Spark passes only the columns and the options of the query. Therefore this module
stores the options in the metadata of the first column. Spark keeps this metadata with the table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import StructField, StructType

from spark_export.errors import OptionError
from spark_export.source.options import READ_OPTIONS, WRITE_OPTIONS

METADATA = "stream_node.options"
"""The key of the options in the metadata of the first column of a table."""
PROVIDER = "provider"
"""The Spark property that a read of a table has, and every other read lacks."""
OPTION = "option."
"""Spark passes each option in `OPTIONS (…)` also under this prefix. A name without it can be a table property."""


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the options without the properties that Spark adds for a table."""
    if not is_table(given):
        return dict(given)
    found = {name[len(OPTION) :]: value for name, value in given.items() if name.lower().startswith(OPTION)}
    # Spark removes the option `path`, and passes its value as the location of the table.
    location = next((value for name, value in given.items() if name.lower() == "path"), None)
    if location is not None:
        # Spark makes an address such as file:/data from a path.
        found["path"] = unquote(urlsplit(location).path) if location.startswith("file:") else location
    return found


def is_table(given: Mapping[str, str]) -> bool:
    return any(name.lower() == PROVIDER for name in given)


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Returns the schema with the options added to the metadata of its first column."""
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def recall(
    schema: StructType, options: Mapping[str, str], names: Collection[str] = READ_OPTIONS
) -> tuple[StructType, dict[str, str]]:
    """Returns the schema without the metadata of `remember`, and the options for a query: the given ones, and those in
    `names` that the table has."""
    kept: dict[str, str] = {}
    fields = []
    for field in schema.fields:
        metadata = dict(field.metadata or {})
        if METADATA in metadata:
            kept |= json.loads(metadata.pop(METADATA))
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    wanted = {name.lower() for name in names} - {name.lower() for name in options}
    table = {name: value for name, value in kept.items() if name.lower() in wanted}
    return StructType(fields), {**table, **options}


def recall_for_write(schema: StructType, options: Mapping[str, str]) -> tuple[StructType, dict[str, str]]:
    """Returns the schema without metadata, and the options for a write.

    The rows of an INSERT INTO go to the stream of the table's option `stream`, or to the one stream that the table
    reads. Raises OptionError for a table that reads a data directory and names no node.
    """
    plain, found = recall(schema, options, WRITE_OPTIONS)
    if not is_insert(schema):
        return plain, found
    table = recall(schema, {}, (*READ_OPTIONS, *WRITE_OPTIONS))[1]
    kept = {name.lower(): value for name, value in table.items()}
    given = {name.lower() for name in found}
    if "path" in kept and "endpoint" not in given:
        raise OptionError(
            "this table reads a data directory, and rows are written to a node: create the table with endpoint too"
        )
    subscribed = kept.get("subscribe", "")
    if "stream" not in given and subscribed and "," not in subscribed:
        found["stream"] = subscribed.strip()
    return plain, found


def is_insert(schema: StructType) -> bool:
    """Returns whether rows with this schema come from an INSERT INTO a table, not from another write."""
    is_of_table = any(METADATA in (field.metadata or {}) for field in schema.fields)
    return is_of_table and not {"index", "offset"}.isdisjoint(schema.fieldNames())
