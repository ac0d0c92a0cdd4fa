"""Decodes Protobuf messages. A descriptor file or a schema registry describes the messages.

An enum value is decoded to its name. An absent field becomes null if the field has presence in Protobuf. An absent
proto3 field that is not optional becomes its default value, because Protobuf does not write default values.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from spark_export.decode.options import DecodeOptions
from spark_export.decode.registry import Registry, RegistryFailed, split_header
from spark_export.decode.values import Float32, Instant, Malformed
from spark_export.errors import OptionError

WELL_KNOWN = "any api descriptor duration empty field_mask source_context struct timestamp type wrappers"
"""The schema files of `google/protobuf/` that every Protobuf library contains."""
DEPTH_MAX = 100
"""The largest number of positions in a message's header."""


def protobuf_reader(options: DecodeOptions, names: frozenset[str]) -> Callable[[bytes], Mapping[str, Any]]:
    """Returns a function that decodes the fields `names` of a message, and raises Malformed and RegistryFailed."""
    find = _type_finder(options)

    def read(message: bytes) -> Mapping[str, Any]:
        kind, rest = find(message)
        made = kind()
        try:
            made.ParseFromString(rest)
        except DecodeError as error:
            raise Malformed(f"the message is no {kind.DESCRIPTOR.full_name}: {error}") from error
        return {field.name: field_value(made, field) for field in kind.DESCRIPTOR.fields if field.name in names}

    return read


def _type_finder(options: DecodeOptions) -> Callable[[bytes], tuple[Any, bytes]]:
    """Returns a function that gives the Protobuf class of a message, and its bytes without the registry's header."""
    given = None if options.descriptor is None else _described_type(options.descriptor, options.message or "")
    if options.registry is None:
        return lambda message: (given, message)
    registry = Registry(options.registry, "PROTOBUF", "?format=serialized")
    files: dict[int, Any] = {} if given is None else {0: given.DESCRIPTOR.file}
    kinds: dict[tuple[int, tuple[int, ...]], Any] = {}

    def find(message: bytes) -> tuple[Any, bytes]:
        number, rest = split_header(message)
        if given is not None:
            # The file of the descriptor replaces all files of the registry, so the registry is not asked. The numbers
            # are not kept, because publishers choose them.
            number = 0
        indexes, rest = split_indexes(rest)
        if (number, indexes) not in kinds:
            if number not in files:
                files[number] = _registered_file(registry, number)
            kinds[number, indexes] = _type_at(files[number], indexes)
        kind = kinds[number, indexes]
        if options.message not in (None, kind.DESCRIPTOR.full_name):
            raise Malformed(f"the message is a {kind.DESCRIPTOR.full_name}, not a {options.message}")
        return kind, rest

    return find


def split_indexes(rest: bytes) -> tuple[tuple[int, ...], bytes]:
    """Splits off the positions that identify the message type in its schema file. Raises Malformed.

    The first position is the number of a message type in the file, from 0, the next one that of a type nested in this
    type, and so on. The bytes begin with the number of positions, then each position, all as zigzag varints. The number
    0 stands for one position 0.
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


def field_value(message: Any, field: Any) -> Any:
    """Returns the value of a field as basic Python types, lists and dicts; None for an absent field."""
    value, kind = getattr(message, field.name), field.message_type
    if field.is_repeated and kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        keys = {name: str(name).lower() if isinstance(name, bool) else str(name) for name in value}
        return {keys[name]: plain_value(each, inner) for name, each in value.items()}
    if field.is_repeated:
        return [plain_value(each, field) for each in value]
    return None if field.has_presence and not message.HasField(field.name) else plain_value(value, field)


def plain_value(value: Any, field: Any) -> Any:
    """Converts one value: an enum to its name, a Timestamp to an Instant, a wrapper to its value, any other message to
    a dict. All other values stay as they are."""
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    kind = field.message_type
    if kind is None:
        return Float32(value) if field.type == field.TYPE_FLOAT else value
    if kind.full_name == "google.protobuf.Timestamp":
        return Instant(value.seconds * 1_000_000 + value.nanos // 1000)
    if kind.file.name == "google/protobuf/wrappers.proto":
        return plain_value(value.value, kind.fields_by_name["value"])
    return {each.name: field_value(value, each) for each in kind.fields}


def _described_type(descriptor: bytes, name: str) -> Any:
    """Returns the Protobuf class of a type in a serialized FileDescriptorSet. Raises OptionError."""
    try:
        listed = descriptor_pb2.FileDescriptorSet.FromString(descriptor).file
        found = _pool_of(listed).FindMessageTypeByName(name)
    except KeyError as error:
        text = f"protobufMessage={name}: protobufDescriptor describes no message of this full name"
        raise OptionError(text) from error
    except (DecodeError, TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            "protobufDescriptor is no complete set of file descriptors (was it written with --include_imports?): "
            f"{error}"
        ) from error
    return message_factory.GetMessageClass(found)


def _pool_of(files: Iterable[Any]) -> Any:
    """Returns a descriptor pool with these files and the library's. Raises TypeError, ValueError, RecursionError."""
    pool, given = descriptor_pool.DescriptorPool(), {each.name: each for each in files}
    for name in WELL_KNOWN.split():
        own = descriptor_pb2.FileDescriptorProto()
        import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(own)
        given.setdefault(own.name, own)
    # GetMessages adds the files in the order of their imports.
    message_factory.GetMessages(list(given.values()), pool)
    return pool


def _registered_file(registry: Registry, number: int) -> Any:
    """Fetches the schema file with this number, and all files that it imports. Raises Malformed, RegistryFailed."""
    files, main = list[Any](), ""
    for name, text in registry.schemas(number):
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError, DecodeError) as error:
            raise RegistryFailed(
                f"the registry does not give schema {number} in the format `serialized`; give protobufDescriptor"
            ) from error
        # Other files import a file by the name in the reference, so the file gets this name.
        main = file.name = name or file.name or f"schema-{number}.proto"
        files.append(file)
    try:
        return _pool_of(files).FindFileByName(main)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise Malformed(f"schema {number} of the registry is no complete Protobuf schema: {error}") from error


def _type_at(file: Any, indexes: tuple[int, ...]) -> Any:
    """Returns the Protobuf class that the positions of a header (`split_indexes`) identify. Raises Malformed."""
    found, kinds = None, list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(kinds):
            raise Malformed(f"the schema has no message at the positions {list(indexes)} of the header")
        found = kinds[index]
        kinds = list(found.nested_types)
    return message_factory.GetMessageClass(found)
