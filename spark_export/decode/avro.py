"""Decodes messages that consist of one Avro record. The schema is an option, or comes from a schema registry.

If both are given, the registry has the schemas of the messages, and the messages are converted to the schema of the
option by the Avro specification's rules. READERS replace the readers of logical types of `fastavro`, which refuse the
whole message for a time outside Python's range, and change values that the type does not allow.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import fastavro

from spark_export.decode.options import DecodeOptions
from spark_export.decode.registry import Registry, split_header
from spark_export.decode.values import Day, Float32, Instant, LocalTime, Malformed, TimeOfDay, scaled
from spark_export.errors import OptionError


def avro_reader(options: DecodeOptions) -> Callable[[bytes], Mapping[str, Any]]:
    """Returns a function that decodes one message, and raises Malformed and RegistryFailed. Raises OptionError."""
    given = None
    if options.avro_schema is not None:
        try:
            given = parsed([options.avro_schema])
        except Exception as error:
            raise OptionError(f"avroSchema is no Avro schema: {error or type(error).__name__}") from error
    if options.registry is None:
        return lambda message: read_record(message, given, None)
    registry, writers = Registry(options.registry, "AVRO"), dict[int, Any]()

    def read(message: bytes) -> Mapping[str, Any]:
        number, rest = split_header(message)
        if number not in writers:
            texts = [text for _, text in registry.schemas(number)]
            try:
                writers[number] = parsed(texts)
            except Exception as error:
                raise Malformed(f"schema {number} of the registry is no Avro schema: {error}") from error
        return read_record(rest, writers[number], given)

    return read


def read_record(message: bytes, writer: Any, reader: Any) -> Mapping[str, Any]:
    """Returns the values of a record by field name, converted to the schema `reader`, if any. Raises Malformed."""
    source = io.BytesIO(message)
    try:
        found = fastavro.schemaless_reader(source, writer, reader)
    except MemoryError:
        raise
    except Exception as error:
        # fastavro raises errors of many types for wrong bytes, from EOFError to IndexError.
        raise Malformed(f"the message is not of its Avro schema: {error or type(error).__name__}") from error
    if source.tell() != len(message):
        raise Malformed(f"{len(message) - source.tell()} bytes follow the Avro record")
    if not isinstance(found, dict):
        raise Malformed("the Avro schema of the message is no record")
    return found


def parsed(texts: list[str]) -> Any:
    """Returns the schema of the last text, with the logical types of READERS. A schema may refer to the schemas of
    earlier texts. Raises errors of many types."""
    plain, names, schema = dict[str, Any](), dict[str, Any](), None
    for text in texts:
        # A schema is checked as it is written, since fastavro checks only the logical types that it knows.
        fastavro.parse_schema(json.loads(text), plain)
        schema = fastavro.parse_schema(_with_own_names(json.loads(text)), names)
    return schema


def _with_own_names(part: Any) -> Any:
    """Replaces the logical types of a schema by our own names, and gives each `float` a logical type of our own."""
    if isinstance(part, list):
        return [_with_own_names(each) for each in part]
    part = {"type": "float"} if part == "float" else part
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    logical = "float" if kind == "float" else part.get("logicalType")
    if f"{kind}-{logical}" in READERS:
        return {**part, "logicalType": f"{OWN_NAMES}{logical}"}
    made = {**part, **{name: _with_own_names(part[name]) for name in ("type", "items", "values") if name in part}}
    if isinstance(part.get("fields"), list):
        # In a schema that is not a record, `fields` is an attribute that the user has added.
        made["fields"] = [_field_with_own_names(each) if isinstance(each, dict) else each for each in part["fields"]]
    return made


def _field_with_own_names(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replaces the logical types of a record's field by our own names. Converts a default that is a whole number."""
    kind, default = field.get("type"), field.get("default")
    # The default of a union is of its first type.
    first = kind[0] if isinstance(kind, list) and kind else kind
    if isinstance(first, dict) and type(default) is int:
        reader = READERS.get(f"{first.get('type')}-{first.get('logicalType')}")
        field = field if reader is None else {**field, "default": reader(default, first)}
    return {**field, "type": _with_own_names(kind)}


def _decimal(data: bytes, schema: Mapping[str, Any], *_: Any) -> Decimal:
    return scaled(int.from_bytes(data, "big", signed=True), -schema.get("scale", 0))


OWN_NAMES = "stream-node:"
READERS: Mapping[str, Callable[..., Any]] = {
    "long-timestamp-millis": lambda data, *_: Instant(data * 1000),
    "long-timestamp-micros": lambda data, *_: Instant(data),
    "long-local-timestamp-millis": lambda data, *_: LocalTime(data * 1000),
    "long-local-timestamp-micros": lambda data, *_: LocalTime(data),
    "int-date": lambda data, *_: Day(data),
    "int-time-millis": lambda data, *_: TimeOfDay(data * 1000),
    "long-time-micros": lambda data, *_: TimeOfDay(data),
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "string-uuid": lambda data, *_: data,
    "float-float": lambda data, *_: Float32(data),
}
"""By Avro type and logical type, the function that reads a value. The logical type of `float` is our own."""
# The readers are added under names of our own, since other code in this process may use fastavro, too.
for kind, reader in READERS.items():
    base, _, logical = kind.partition("-")
    fastavro.read.LOGICAL_READERS[f"{base}-{OWN_NAMES}{logical}"] = reader
