"""The options of a table: `CREATE TABLE … USING stream_node OPTIONS (…)`.

Spark 4.3 gives the options of a table to a Python data source when the table is created, mixed with Spark's own
properties of tables. When the table is read, Spark gives only the columns, and the options of the one query. So the
options are put into the metadata of the first column, which Spark keeps with the table and gives back.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import StructField, StructType

from spark_export.options import READ_OPTIONS

METADATA = "stream_node.options"
"""The key in the metadata of a table's first column."""
PROVIDER = "provider"
"""The property, of Spark, that every table has, and that no read has."""
OPTION = "option."
"""Spark repeats each name in OPTIONS (…) with this prefix. Names without it may be properties of the table."""


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the options without the properties that Spark adds for a table. Without a table, returns all."""
    if not is_table(given):
        return dict(given)
    found = {name[len(OPTION) :]: value for name, value in given.items() if name.lower().startswith(OPTION)}
    # Spark takes the option `path` out, and gives it as the location of the table.
    location = next((value for name, value in given.items() if name.lower() == "path"), None)
    return found if location is None else {**found, "path": _plain_path(location)}


def is_table(given: Mapping[str, str]) -> bool:
    return any(name.lower() == PROVIDER for name in given)


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Returns the schema with the options in the metadata of its first column."""
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def recall(
    schema: StructType, options: Mapping[str, str], names: Collection[str] = READ_OPTIONS
) -> tuple[StructType, dict[str, str]]:
    """Returns the schema without the metadata that `remember` added, and the options of the table and of the query.

    names: the options of the table that are wanted. An option of the query replaces the option of the table that has
    the same name."""
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


def _plain_path(value: str) -> str:
    """Spark turns a path into an address such as file:/data."""
    return unquote(urlsplit(value).path) if value.startswith("file:") else value
