"""Decodes Protobuf messages. A descriptor file or a schema registry describes the messages.

In the registry's wire format, positions after the header name the type of the message: the position of a message type
in its file, then the position of a type inside this type, and so on. Workers need the package `protobuf`.

The value of an enum is its name. An absent field is null if Protobuf knows that the field is absent. A field of proto3
without `optional` has its default value instead, because Protobuf does not write default values.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField

from spark_export.decode.json_text import Malformed
from spark_export.decode.registry import Registry, RegistryFailed, split_header
from spark_export.decode.rows import RowMaker, RowRules
from spark_export.decode.schema_options import SchemaOptions
from spark_export.decode.typed_values import EPOCH
from spark_export.errors import OptionError

WELL_KNOWN = "google/protobuf/"
"""The folder of the files that every Protobuf library contains."""
DEPTH_MAX = 100
"""The largest number of positions in the header of a message."""
FILES_MAX = 1000
"""The largest number of files that a schema imports, directly or indirectly."""


class ProtobufMessages:
    """The decoder of Protobuf messages. The user names the fields that become columns."""

    needs_headers = False

    def __init__(self, rules: RowRules, schemas: SchemaOptions) -> None:
        self._rules = rules
        self._schemas = schemas
        # Made at the first page, by each task for itself: descriptors are loaded and fetched once.
        self._find: Callable[[bytes], tuple[Any, bytes]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_find": None}

    def columns(self) -> list[StructField] | None:
        return None

    def check(self, fields: Sequence[pa.Field]) -> None:
        RowMaker(fields, self._rules)
        if self._schemas.descriptor is not None:
            described_type(self._schemas.descriptor, self._schemas.message or "")

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        if self._find is None:
            self._find = type_finder(self._schemas)
        find, names = self._find, {field.name for field in fields}

        def read(message: bytes) -> Mapping[str, Any]:
            kind, rest = find(message)
            return read_message(kind, rest, names)

        return RowMaker(fields, self._rules).columns(data, read)


def type_finder(schemas: SchemaOptions) -> Callable[[bytes], tuple[Any, bytes]]:
    """Returns a function that returns a message's type, and the message without the registry's header.

    The function raises Malformed and RegistryFailed. This call raises OptionError if the descriptor file is wrong or
    the package protobuf is missing.
    """
    _protobuf()
    if schemas.descriptor is not None:
        given, has_header = described_type(schemas.descriptor, schemas.message or ""), schemas.registry is not None
        return lambda message: (given, split_indexes(split_header(message)[1])[1] if has_header else message)
    assert schemas.registry is not None, "`schema_options` asks for one of the two"
    registry, files, kinds = Registry(schemas.registry), dict[int, Any](), dict[tuple[int, tuple[int, ...]], Any]()

    def find(message: bytes) -> tuple[Any, bytes]:
        number, rest = split_header(message)
        indexes, rest = split_indexes(rest)
        if (number, indexes) not in kinds:
            if number not in files:
                files[number] = registered_file(registry, number)
            kinds[number, indexes] = type_at(files[number], indexes)
        kind = kinds[number, indexes]
        if schemas.message not in (None, kind.DESCRIPTOR.full_name):
            raise Malformed(f"the message is a {kind.DESCRIPTOR.full_name}, not a {schemas.message}")
        return kind, rest

    return find


def split_indexes(rest: bytes) -> tuple[tuple[int, ...], bytes]:
    """Returns the positions that name the type of a message, and the message after them. Raises Malformed.

    The number of positions and each position are zigzag varints. A single zero stands for the one position 0.
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
    """Returns the fields `names` of a message. Raises Malformed."""
    made = kind()
    try:
        made.ParseFromString(message)
    except _protobuf().message.DecodeError as error:
        raise Malformed(f"the message is no {kind.DESCRIPTOR.full_name}: {error}") from error
    return {field.name: field_value(made, field) for field in kind.DESCRIPTOR.fields if field.name in names}


def field_value(message: Any, field: Any) -> Any:
    """Returns the value of a field as Python's own types; None for a field that is absent."""
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
    """Returns one value of a field: the name of an enum's value, a time, or a message as a mapping."""
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    kind = field.message_type
    if kind is None:
        return value
    if kind.full_name == "google.protobuf.Timestamp":
        try:
            return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        except OverflowError:
            pass
    if kind.file.name == "google/protobuf/wrappers.proto":
        return value.value
    return {each.name: field_value(value, each) for each in kind.fields}


def described_type(descriptor: bytes, name: str) -> Any:
    """Returns the class of the message `name` in a FileDescriptorSet. Raises OptionError."""
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
    """Returns a descriptor pool with these files, and with the files of Protobuf itself that these files import.

    files: file descriptors by name. Raises TypeError or ValueError if the files contradict each other, or if an
    imported file is missing.
    """
    protobuf = _protobuf()
    pool, added = protobuf.descriptor_pool.DescriptorPool(), set[str]()
    # A file is added after those that it imports: it is met twice, and its imports lie between.
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
    """Returns the descriptor of a file that the Protobuf library contains. Raises ValueError if it is no such file."""
    if not name.startswith(WELL_KNOWN):
        raise ValueError(f"the file {name} is missing; was the descriptor written with --include_imports?")
    try:
        own = import_module(f"google.protobuf.{name[len(WELL_KNOWN) : -len('.proto')].replace('/', '.')}_pb2")
    except ImportError as error:
        raise ValueError(f"the file {name} is missing, and not one of Protobuf's own") from error
    return _protobuf().descriptor_pb2.FileDescriptorProto.FromString(own.DESCRIPTOR.serialized_pb)


def registered_file(registry: Registry, number: int) -> Any:
    """Fetches the file with this number, and all files that it imports. Returns the descriptor of the first file.

    Raises Malformed if the registry has no such Protobuf schema, and RegistryFailed if the registry cannot be asked.
    """
    first = registry.schema(number, "PROTOBUF", "serialized")
    waiting, files, main = [("", first)], dict[str, Any](), ""
    while waiting:
        name, found = waiting.pop()
        file = _decoded_file(found["schema"], number)
        # An importing file knows a file by the name of the reference.
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
    """Returns the class of the message type at these positions in a file. Raises Malformed."""
    proto = _protobuf().descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
    kinds, path = proto.message_type, [proto.package] if proto.package else []
    for index in indexes:
        if not 0 <= index < len(kinds):
            raise Malformed(f"the schema has no message at the positions {list(indexes)} of the header")
        path.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return _protobuf().message_factory.GetMessageClass(file.pool.FindMessageTypeByName(".".join(path)))


def _protobuf() -> Any:
    """Returns the package `google.protobuf` with the modules that this one uses."""
    try:
        for name in ("descriptor_pb2", "descriptor_pool", "message", "message_factory"):
            import_module(f"google.protobuf.{name}")
        return import_module("google.protobuf")
    except ImportError as error:
        raise OptionError(
            "decode=protobuf needs the package protobuf on the driver and on every worker; install the extra `protobuf`"
        ) from error
