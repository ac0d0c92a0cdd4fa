"""Decodes messages that consist of one Avro record. The schema is an option, or comes from a schema registry.

If both are given, the registry has the schemas with which the messages were written, and the option is the schema to
convert them to. The conversion follows the rules for schema resolution in the Avro specification. Spark workers need
the package `fastavro`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_export.decode.json_text import Malformed
from spark_export.decode.registry import Registry, split_header
from spark_export.decode.rows import Load, NamedColumns, RowRules
from spark_export.decode.schema_options import SchemaOptions
from spark_export.decode.value_text import Day, Instant, LocalTime, TimeOfDay, scaled
from spark_export.errors import OptionError

STEPS_MAX = 10_000
"""The largest number of steps to load a schema with all that it refers to, also in a circle; each takes two or more."""


class AvroRecords(NamedColumns):
    def __init__(self, rules: RowRules, schemas: SchemaOptions) -> None:
        super().__init__(rules)
        self._schemas = schemas
        # Each task creates this function at its first page, so that schemas are fetched and parsed once per task.
        self._read: Callable[[bytes], Mapping[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}

    def check(self, fields: Sequence[pa.Field]) -> None:
        super().check(fields)
        if self._schemas.avro_schema is not None:
            parsed(self._schemas.avro_schema)

    def _loader(self, fields: Sequence[pa.Field]) -> Load:
        if self._read is None:
            self._read = avro_reader(self._schemas)
        return self._read


def avro_reader(schemas: SchemaOptions) -> Callable[[bytes], Mapping[str, Any]]:
    """Returns a function that decodes one message, and raises Malformed and RegistryFailed. Raises OptionError."""
    given = None if schemas.avro_schema is None else parsed(schemas.avro_schema)
    if schemas.registry is None:
        return lambda message: read_record(message, given, None)
    registry, writers = Registry(schemas.registry), dict[int, Any]()

    def read(message: bytes) -> Mapping[str, Any]:
        number, rest = split_header(message)
        if number not in writers:
            writers[number] = registered(registry, number)
        return read_record(rest, writers[number], given)

    return read


def read_record(message: bytes, writer: Any, reader: Any) -> Mapping[str, Any]:
    """Returns the values of a record by field name, converted to the schema `reader` unless it is None. Raises
    Malformed."""
    fastavro = _fastavro()
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


def registered(registry: Registry, number: int) -> Any:
    """Fetches and parses the schema with this number, and all to which it refers. Raises Malformed, RegistryFailed."""
    names: dict[str, Any] = {}
    schema, steps, done = None, 0, set[str]()
    # A stack with two entries for each schema: the first entry adds the schemas to which the schema refers, and the
    # second entry, which is processed after those schemas, parses the schema.
    waiting: list[tuple[str, dict[str, Any], bool]] = [("", registry.schema(number, "AVRO"), False)]
    while waiting:
        name, each, is_ready = waiting.pop()
        steps += 1
        if steps > STEPS_MAX:
            raise Malformed(f"schema {number} of the registry refers to itself, or to too many others")
        if name in done:
            continue
        if is_ready:
            try:
                schema = _parsed(each["schema"], names)
            except Exception as error:
                raise Malformed(f"schema {number} of the registry is no Avro schema: {error}") from error
            done.add(name)
            continue
        waiting.append((name, each, True))
        for reference in each.get("references") or []:
            other = json.dumps(reference, sort_keys=True)
            if other not in done:
                waiting.append((other, registry.reference(reference, "AVRO"), False))
    return schema


def parsed(text: str) -> Any:
    try:
        return _parsed(text, {})
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"avroSchema is no Avro schema: {error or type(error).__name__}") from error


def _parsed(text: str, names: dict[str, Any]) -> Any:
    """Parses a schema with the logical types of READERS. It may refer to `names`, to which its own are added."""
    fastavro = _fastavro()
    fastavro.parse_schema(json.loads(text), dict(names))
    # The readers are added under names of our own, since other code in this process may use fastavro, too.
    for kind, reader in READERS.items():
        base, _, logical = kind.partition("-")
        fastavro.read.LOGICAL_READERS[f"{base}-{OWN_NAMES}{logical}"] = reader
    return fastavro.parse_schema(json.loads(text, object_hook=_with_own_names), names)


def _with_own_names(part: dict[str, Any]) -> dict[str, Any]:
    """Gives a part of a schema our own name of its logical type, and a default of that type."""
    logical = part.get("logicalType")
    if f"{part.get('type')}-{logical}" in READERS:
        return {**part, "logicalType": f"{OWN_NAMES}{logical}"}
    # The default of a union is of its first type.
    kind, default = part.get("type"), part.get("default")
    first = kind[0] if isinstance(kind, list) and kind else kind
    if isinstance(first, dict) and type(default) is int:
        reader = READERS.get(f"{first.get('type')}-{str(first.get('logicalType')).removeprefix(OWN_NAMES)}")
        return {**part, "default": default if reader is None else reader(default, first)}
    return part


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
}
"""By Avro type and logical type, the function that reads a value. The readers of fastavro refuse the whole message for
a time that Python's times do not reach, and change what the logical type does not allow."""


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise OptionError(
            "decode=avro needs the package fastavro on the driver and on every worker; install the extra `avro`"
        ) from error
    return fastavro
