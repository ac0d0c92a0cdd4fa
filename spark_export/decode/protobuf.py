"""Decodes Protobuf messages. A descriptor file or a schema registry describes the messages.

In the wire format of the registry, positions after the header identify the message type. The first position is the
number of a message type in the schema file, from 0. The next position is the number of a type that is nested in this
type, and so on. Spark workers need the package `protobuf`.

An enum value is decoded to its name. An absent field becomes null if the field has presence in Protobuf. An absent
proto3 field without `optional` becomes its default value, because Protobuf does not write default values.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from spark_export.decode.json_text import Malformed
from spark_export.decode.registry import Registry, RegistryFailed, split_header
from spark_export.decode.rows import Load, NamedColumns, RowRules
from spark_export.decode.schema_options import SchemaOptions
from spark_export.decode.value_text import Instant
from spark_export.errors import OptionError

WELL_KNOWN = "google/protobuf/"
"""The folder of the schema files that every Protobuf library contains."""
DEPTH_MAX = 100
"""The largest number of positions in a message's header."""
FILES_MAX = 1000
"""The largest number of files of a schema with all files that it imports."""


class ProtobufMessages(NamedColumns):
    def __init__(self, rules: RowRules, schemas: SchemaOptions) -> None:
        super().__init__(rules)
        self._schemas = schemas
        # Each task creates this function at its first page, so that descriptors are fetched and loaded once per task.
        self._find: Callable[[bytes], tuple[Any, bytes]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_find": None}

    def check(self, fields: Sequence[pa.Field]) -> None:
        super().check(fields)
        if self._schemas.descriptor is not None:
            described_type(self._schemas.descriptor, self._schemas.message or "")

    def _loader(self, fields: Sequence[pa.Field]) -> Load:
        if self._find is None:
            self._find = type_finder(self._schemas)
        find, names = self._find, {field.name for field in fields}

        def read(message: bytes) -> Mapping[str, Any]:
            kind, rest = find(message)
            return read_message(kind, rest, names)

        return read


def type_finder(schemas: SchemaOptions) -> Callable[[bytes], tuple[Any, bytes]]:
    """Returns a function that gives the Protobuf class of a message, and its bytes without the registry's header.

    The function raises Malformed and RegistryFailed; `type_finder` raises OptionError.
    """
    _protobuf()
    given = None if schemas.descriptor is None else described_type(schemas.descriptor, schemas.message or "")
    if given is not None and schemas.registry is None:
        return lambda message: (given, message)
    assert schemas.registry is not None, "`schema_options` asks for one of the two"
    registry, files, kinds = Registry(schemas.registry), dict[int, Any](), dict[tuple[int, tuple[int, ...]], Any]()

    def find(message: bytes) -> tuple[Any, bytes]:
        number, rest = split_header(message)
        indexes, rest = split_indexes(rest)
        if (number, indexes) not in kinds:
            if number not in files:
                # The file of the descriptor replaces the file of the registry, so that the registry is not asked.
                files[number] = registered_file(registry, number) if given is None else given.DESCRIPTOR.file
            kinds[number, indexes] = type_at(files[number], indexes)
        kind = kinds[number, indexes]
        if schemas.message not in (None, kind.DESCRIPTOR.full_name):
            raise Malformed(f"the message is a {kind.DESCRIPTOR.full_name}, not a {schemas.message}")
        return kind, rest

    return find


def split_indexes(rest: bytes) -> tuple[tuple[int, ...], bytes]:
    """Splits off the positions that identify the message type in its schema file. Raises Malformed.

    The bytes begin with the number of positions, then each position, all as zigzag varints. The number 0 stands for one
    position 0, the first type of the file.
    """
    count, at = _varint(rest, 0)
    if not 0 <= count <= DEPTH_MAX:
        raise Malformed(f"the header names a message {count} messages deep")
    indexes = []
    for _ in range(count):
        index, at = _varint(rest, at)
        indexes.append(index)
    return tuple(indexes) or (0,), rest[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("the header of the schema registry is cut off")
        raw |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return (raw >> 1) ^ -(raw & 1), at


def read_message(kind: Any, message: bytes, names: set[str]) -> Mapping[str, Any]:
    """Parses a message of the class `kind`. Returns the values of the fields `names`. Raises Malformed."""
    made = kind()
    try:
        made.ParseFromString(message)
    except _protobuf().message.DecodeError as error:
        raise Malformed(f"the message is no {kind.DESCRIPTOR.full_name}: {error}") from error
    return {field.name: field_value(made, field) for field in kind.DESCRIPTOR.fields if field.name in names}


def field_value(message: Any, field: Any) -> Any:
    """Returns the value of a field as basic Python types, lists and dicts; None for an absent field."""
    value = getattr(message, field.name)
    if field.is_repeated:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            inner = entry.fields_by_name["value"]
            return {_key(name): plain_value(each, inner) for name, each in value.items()}
        return [plain_value(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return plain_value(value, field)


def _key(name: Any) -> str:
    return str(name).lower() if isinstance(name, bool) else str(name)


def plain_value(value: Any, field: Any) -> Any:
    """Converts one value: an enum to its name, a Timestamp to an Instant, a wrapper to its value, any other message to
    a dict. All other values stay as they are."""
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    kind = field.message_type
    if kind is None:
        return value
    if kind.full_name == "google.protobuf.Timestamp":
        return Instant(value.seconds * 1_000_000 + value.nanos // 1000)
    if kind.file.name == "google/protobuf/wrappers.proto":
        return value.value
    return {each.name: field_value(value, each) for each in kind.fields}


def described_type(descriptor: bytes, name: str) -> Any:
    """Returns the Protobuf class of a type in a serialized FileDescriptorSet. Raises OptionError."""
    protobuf = _protobuf()
    try:
        listed = protobuf.descriptor_pb2.FileDescriptorSet.FromString(descriptor).file
        pool = pool_of({each.name: each for each in listed})
        return protobuf.message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError as error:
        raise OptionError(
            f"protobufMessage={name}: protobufDescriptor describes no message of this full name"
        ) from error
    except (protobuf.message.DecodeError, TypeError, ValueError) as error:
        raise OptionError(f"protobufDescriptor is no complete set of file descriptors: {error}") from error


def pool_of(files: Mapping[str, Any]) -> Any:
    """Returns a descriptor pool with these files and the library's own. Raises TypeError or ValueError."""
    protobuf = _protobuf()
    pool, added = protobuf.descriptor_pool.DescriptorPool(), set[str]()
    # A stack with two entries for each file: the first entry adds the imports of the file, and the second entry, which
    # is processed after the imports, adds the file to the pool.
    waiting, steps = [(name, False) for name in files], 0
    while waiting:
        name, is_ready = waiting.pop()
        steps += 1
        if name in added:
            continue
        if steps > FILES_MAX * 10:
            raise ValueError("the files import each other in a circle, or there are too many")
        file = files[name] if name in files else _own_file(name)
        if is_ready:
            pool.Add(file)
            added.add(name)
        else:
            waiting += [(name, True), *((each, False) for each in file.dependency)]
    return pool


def _own_file(name: str) -> Any:
    if not name.startswith(WELL_KNOWN):
        raise ValueError(f"the file {name} is missing; was the descriptor written with --include_imports?")
    try:
        own = import_module(f"google.protobuf.{name[len(WELL_KNOWN) : -len('.proto')].replace('/', '.')}_pb2")
    except ImportError as error:
        raise ValueError(f"the file {name} is missing, and not one of Protobuf's own") from error
    return _protobuf().descriptor_pb2.FileDescriptorProto.FromString(own.DESCRIPTOR.serialized_pb)


def registered_file(registry: Registry, number: int) -> Any:
    """Fetches the schema file with this number, and all files that it imports. Raises Malformed, RegistryFailed."""
    first = registry.schema(number, "PROTOBUF", "serialized")
    waiting, files, main = [("", first)], dict[str, Any](), ""
    while waiting:
        name, found = waiting.pop()
        file = _decoded_file(found["schema"], number)
        # Other files import a file by the name in the reference, so the file gets this name.
        file.name = name or file.name or f"schema-{number}.proto"
        main = main or file.name
        files[file.name] = file
        for reference in found.get("references") or []:
            other = str(reference.get("name", "")) if isinstance(reference, dict) else ""
            if other not in files and len(files) < FILES_MAX:
                waiting.append((other, registry.reference(reference, "PROTOBUF", "serialized")))
    try:
        return pool_of(files).FindFileByName(main)
    except (TypeError, ValueError, KeyError) as error:
        raise Malformed(f"schema {number} of the registry is no complete Protobuf schema: {error}") from error


def _decoded_file(text: str, number: int) -> Any:
    protobuf = _protobuf()
    try:
        return protobuf.descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, protobuf.message.DecodeError) as error:
        raise RegistryFailed(
            f"the registry does not give schema {number} in the format `serialized`; give protobufDescriptor"
        ) from error


def type_at(file: Any, indexes: tuple[int, ...]) -> Any:
    """Returns the Protobuf class at a position in the file, at a position in that type, and so on. Raises Malformed."""
    proto = _protobuf().descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
    kinds, path = proto.message_type, [proto.package] if proto.package else []
    for index in indexes:
        if not 0 <= index < len(kinds):
            raise Malformed(f"the schema has no message at the positions {list(indexes)} of the header")
        path.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return _protobuf().message_factory.GetMessageClass(file.pool.FindMessageTypeByName(".".join(path)))


def _protobuf() -> Any:
    try:
        for name in ("descriptor_pb2", "descriptor_pool", "message", "message_factory"):
            import_module(f"google.protobuf.{name}")
        return import_module("google.protobuf")
    except ImportError as error:
        raise OptionError(
            "decode=protobuf needs the package protobuf on the driver and on every worker; install the extra `protobuf`"
        ) from error
