"""The precise codec: encodes and decodes a message step by step. Its errors say what is wrong, and where.

Compiled codecs pass everything unusual to it, so it can be slow and is written plainly. It defines what is accepted.

Values to encode: the exact Python types, `bytearray` and `memoryview` for data, and for a float an int that the float
represents exactly. Subclasses are accepted too (such as an `IntEnum` for an int), except for structs, enums and the
members of a union whose values are not `Tagged`. An EncodeError names the part of the value that does not fit its type.

Messages to decode: the offset of a DecodeError is that of the first wrong byte: the start of a wrong number, the first
bad byte of a string, the start of a value whose bytes are missing, or the start of a repeated key."""

from __future__ import annotations

import struct
from typing import Any

from bare import model
from bare.errors import BareError, DecodeError, EncodeError
from bare.limits import Limits
from bare.model import INT_MAX, INT_MIN, UINT_MAX, BareType, Number, Shape, python_types
from bare.types import Some, Tagged
from bare.varint import VARINT_BYTES_MAX, encode_uint

_MISSING = object()


def decode_precisely(
    node: BareType, limits: Limits, shape: Shape, data: bytes, at: int, whole: bool
) -> tuple[Any, int]:
    """Decodes the value at the offset `at`. Returns the value and the offset after the value. Raises only DecodeError.

    whole: whether the value must end at the end of `data`."""
    reader = _Reader(limits, shape, data, at)
    try:
        if len(data) > limits.message_bytes_max:
            raise reader.error(f"message of {len(data)} bytes is over the limit of {limits.message_bytes_max}", at)
        value = reader.value(node)
    except RecursionError as error:
        raise DecodeError("value is nested deeper than the stack allows", reader.at, reader.path()) from error
    if whole and reader.at != len(data):
        raise DecodeError(f"{len(data) - reader.at} bytes after the end of the message", reader.at)
    return value, reader.at


def encode_precisely(node: BareType, limits: Limits, shape: Shape, value: Any) -> bytes:
    """Encodes a value and returns the message. Raises only EncodeError."""
    writer = _Writer(limits, shape)
    try:
        writer.value(node, value)
    except RecursionError as error:
        raise EncodeError("value is nested deeper than the stack allows", writer.path()) from error
    if len(writer.out) > limits.message_bytes_max:
        raise EncodeError(f"message of {len(writer.out)} bytes is over the limit of {limits.message_bytes_max}")
    return bytes(writer.out)


class _Walk:
    """The way through one value. Invariant: `_steps` is the path to the part that is being read or written."""

    def __init__(self, limits: Limits, shape: Shape) -> None:
        self._limits = limits
        self._heads = shape.heads
        self._least = shape.least
        self._steps: list[str] = []
        self._depth = 0
        self._left = limits.items_max

    def path(self) -> str:
        """Returns the path from the root value to the present part, such as `$.messages[3].data`."""
        return "$" + "".join(self._steps)

    def error(self, what: str) -> BareError:
        raise NotImplementedError

    def value(self, node: BareType, *value: Any) -> Any:
        """Reads and returns a value, or writes the given one."""
        if id(node) not in self._heads:
            return self._plain_value(node, *value)
        self._depth += 1
        if self._depth > self._limits.depth_max:
            raise self.error(f"value is nested deeper than the limit of {self._limits.depth_max}")
        done = self._plain_value(node, *value)
        self._depth -= 1
        return done

    def _plain_value(self, node: BareType, *value: Any) -> Any:
        raise NotImplementedError

    def _step(self, node: BareType, step: str, *value: Any) -> Any:
        """Reads or writes a part of a value. step: its position in the value, such as `.data` or `[3]`."""
        self._steps.append(step)
        done = self.value(node, *value)
        self._steps.pop()
        return done


class _Reader(_Walk):
    """A reader of one message. at: the offset of the next byte to read.

    Invariant: 0 <= `at` <= len(data)."""

    def __init__(self, limits: Limits, shape: Shape, data: bytes, at: int) -> None:
        super().__init__(limits, shape)
        self.at = at
        self._data = data

    def error(
        self, what: str, offset: int | None = None, need: int | None = None, have: int | None = None
    ) -> DecodeError:
        return DecodeError(what, self.at if offset is None else offset, self.path(), need, have)

    def _plain_value(self, node: BareType, *value: Any) -> Any:
        match node:
            case model.VarintType(signed=signed):
                number = self._uint("int" if signed else "uint")
                return (number >> 1) ^ -(number & 1) if signed else number
            case model.FixedIntType(name=name, code=code, size=size) | model.FloatType(name=name, code=code, size=size):
                return struct.unpack("<" + code, self._bytes(size, name))[0]
            case model.BoolType():
                return self._flag("bool")
            case model.StrType():
                return self._str()
            case model.DataType(length=length):
                return self._bytes(self._uint("length") if length is None else length, "data")
            case model.VoidType():
                return None
            case model.EnumType(cls=cls, by_value=by_value):
                start = self.at
                number = self._uint(f"enum {cls.__name__}")
                if number not in by_value:
                    raise self.error(f"{number} is not a value of enum {cls.__name__}", start)
                return by_value[number]
            case model.OptionalType(item=item, wrapped=wrapped):
                if not self._flag("optional"):
                    return None
                return Some(self.value(item)) if wrapped else self.value(item)
            case model.ListType():
                return self._list(node)
            case model.MapType():
                return self._map(node)
            case model.UnionType():
                return self._union(node)
            case model.StructType():
                return self._struct(node)
            case model.NamedType(target=target):
                assert target is not None
                return self.value(target)

    def _bytes(self, size: int, what: str) -> bytes:
        have = len(self._data) - self.at
        if size > have:
            raise self.error(f"{what} needs {size} bytes and has {have}", self.at, size, have)
        start, self.at = self.at, self.at + size
        return self._data[start : self.at]

    def _uint(self, what: str) -> int:
        start, value = self.at, 0
        for index in range(VARINT_BYTES_MAX):
            if self.at == len(self._data):
                fault = "ends in the middle" if index else "is missing"
                raise self.error(f"{what} {fault}", start, index + 1, index)
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 127) << index * 7
            if byte < 128:
                # A last byte of zero adds nothing: the number has a shorter form, and only that is valid.
                if index and not byte:
                    raise self.error(f"{what} is not in its shortest form", start)
                if value > UINT_MAX:
                    raise self.error(f"{what} has more than 64 bits", start)
                return value
        raise self.error(f"{what} has more than 64 bits", start)

    def _flag(self, what: str) -> bool:
        byte = self._bytes(1, what)[0]
        if byte > 1:
            raise self.error(f"{what} must start with 00 or 01, not {byte:02x}", self.at - 1)
        return byte == 1

    def _str(self) -> str:
        size = self._uint("length")
        start = self.at
        raw = self._bytes(size, "str")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"str is not UTF-8: {error.reason}", start + error.start) from error

    def _count(self, what: str, limit: int, least: int) -> int:
        """Reads the number of items of a list or map (`what`). Raises DecodeError if it exceeds a limit or the message.

        least: the smallest size of an item in bytes."""
        start = self.at
        count = self._uint(f"{what} count")
        if count > limit:
            raise self.error(f"{what} of {count} is over the limit of {limit}", start)
        self._left -= count
        if self._left < 0:
            raise self.error(f"all lists and maps together are over the limit of {self._limits.items_max} items", start)
        self._room(what, count, least)
        return count

    def _room(self, what: str, count: int, least: int) -> None:
        need, have = count * least, len(self._data) - self.at
        if need > have:
            raise self.error(f"{what} of {count} needs at least {need} bytes and has {have}", self.at, need, have)

    def _list(self, node: model.ListType) -> list[Any]:
        least = self._least[id(node.item)]
        if node.length is None:
            count = self._count("list", self._limits.list_items_max, least)
        else:
            count = node.length
            self._room("list", count, least)
        if isinstance(node.item, Number):
            # All bytes are valid for these numbers, so a long list can be read in one call.
            return list(struct.unpack(f"<{count}{node.item.code}", self._bytes(count * least, "list")))
        return [self._step(node.item, f"[{index}]") for index in range(count)]

    def _map(self, node: model.MapType) -> dict[Any, Any]:
        least = self._least[id(node.key)] + self._least[id(node.value)]
        count = self._count("map", self._limits.map_entries_max, least)
        found: dict[Any, Any] = {}
        for index in range(count):
            start = self.at
            key = self._step(node.key, f".keys[{index}]")
            if key in found:
                self._steps.append(f".keys[{index}]")
                raise self.error("map key is repeated", start)
            found[key] = self._step(node.value, f".values[{index}]")
        return found

    def _union(self, node: model.UnionType) -> Any:
        start = self.at
        tag = self._uint("union tag")
        for known, member in node.members:
            if known == tag:
                value = self.value(member)
                return Tagged(tag, value) if node.tagged else value
        raise self.error(f"{tag} is not a tag of the union", start)

    def _struct(self, node: model.StructType) -> Any:
        start = self.at
        values = [self._step(item, "." + name) for name, item in node.fields]
        named = {name: value for (name, _), value in zip(node.fields, values, strict=True)}
        for name, _ in node.fields[: node.positional]:
            del named[name]
        try:
            return node.cls(*values[: node.positional], **named)
        except Exception as error:  # The class may check its values and raise any error.
            raise self.error(f"{node.cls.__name__} refuses its fields: {error}", start) from error


class _Writer(_Walk):
    """A writer of one message, to `out`."""

    def __init__(self, limits: Limits, shape: Shape) -> None:
        super().__init__(limits, shape)
        self.out = bytearray()

    def error(self, what: str) -> EncodeError:
        return EncodeError(what, self.path())

    def _plain_value(self, node: BareType, *values: Any) -> None:
        (value,) = values
        match node:
            case model.VarintType(signed=True):
                number = self._int("int", INT_MIN, INT_MAX, value)
                self.out += encode_uint(number << 1 if number >= 0 else ~(number << 1))
            case model.VarintType():
                self.out += encode_uint(self._int("uint", 0, UINT_MAX, value))
            case model.FixedIntType(name=name, code=code, low=low, high=high):
                self.out += struct.pack("<" + code, self._int(name, low, high, value))
            case model.FloatType():
                self._float(node, value)
            case model.BoolType():
                if value is not True and value is not False:
                    raise self._wants("bool", value)
                self.out.append(value)
            case model.StrType():
                self._str(value)
            case model.DataType(length=length):
                self._data(length, value)
            case model.VoidType():
                if value is not None:
                    raise self._wants("None", value)
            case model.EnumType(cls=cls):
                if type(value) is not cls:
                    raise self._wants(f"a member of {cls.__name__}", value)
                self.out += encode_uint(value.value)
            case model.OptionalType():
                self._optional(node, value)
            case model.ListType():
                self._list(node, value)
            case model.MapType():
                self._map(node, value)
            case model.UnionType():
                self._union(node, value)
            case model.StructType():
                self._struct(node, value)
            case model.NamedType(target=target):
                assert target is not None
                self.value(target, value)

    def _wants(self, what: str, value: Any) -> EncodeError:
        return self.error(f"wants {what}, not {type(value).__name__}")

    def _int(self, name: str, low: int, high: int, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wants(f"an int for {name}", value)
        if not low <= value <= high:
            raise self.error(f"{name} must be from {low} to {high}")
        return int(value)

    def _float(self, node: model.FloatType, value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wants(f"a float for {node.name}", value)
        try:
            packed = struct.pack("<" + node.code, value)
        except (OverflowError, struct.error) as error:
            raise self.error(f"number is out of the range of {node.name}") from error
        if isinstance(value, int) and struct.unpack("<" + node.code, packed)[0] != value:
            raise self.error(f"{node.name} cannot represent this int exactly")
        self.out += packed

    def _str(self, value: Any) -> None:
        if not isinstance(value, str):
            raise self._wants("a str", value)
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"str has no UTF-8 form: {error.reason} at character {error.start}") from error
        self.out += encode_uint(len(encoded))
        self.out += encoded

    def _data(self, length: int | None, value: Any) -> None:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise self._wants("bytes", value)
        data = bytes(value)
        if length is None:
            self.out += encode_uint(len(data))
        elif len(data) != length:
            raise self.error(f"wants exactly {length} bytes, not {len(data)}")
        self.out += data

    def _optional(self, node: model.OptionalType, value: Any) -> None:
        if value is None:
            self.out.append(0)
            return
        self.out.append(1)
        if not node.wrapped:
            self.value(node.item, value)
        elif type(value) is Some:
            self.value(node.item, value.value)
        else:
            raise self._wants("None or Some", value)

    def _list(self, node: model.ListType, value: Any) -> None:
        if not isinstance(value, list):
            raise self._wants("a list", value)
        if node.length is None:
            if len(value) > self._limits.list_items_max:
                raise self.error(f"list of {len(value)} is over the limit of {self._limits.list_items_max}")
            self._count(len(value))
            self.out += encode_uint(len(value))
        elif len(value) != node.length:
            raise self.error(f"wants exactly {node.length} items, not {len(value)}")
        for index, item in enumerate(value):
            self._step(node.item, f"[{index}]", item)

    def _count(self, items: int) -> None:
        """Subtracts the items of a list or map from those that the message can still have. Raises EncodeError."""
        self._left -= items
        if self._left < 0:
            raise self.error(f"all lists and maps together are over the limit of {self._limits.items_max} items")

    def _map(self, node: model.MapType, value: Any) -> None:
        if not isinstance(value, dict):
            raise self._wants("a dict", value)
        if len(value) > self._limits.map_entries_max:
            raise self.error(f"map of {len(value)} is over the limit of {self._limits.map_entries_max}")
        self._count(len(value))
        self.out += encode_uint(len(value))
        for index, (key, item) in enumerate(value.items()):
            self._step(node.key, f".keys[{index}]", key)
            self._step(node.value, f".values[{index}]", item)

    def _union(self, node: model.UnionType, value: Any) -> None:
        if node.tagged:
            if type(value) is not Tagged:
                raise self._wants("Tagged", value)
            for tag, member in node.members:
                if type(value.tag) is int and value.tag == tag:
                    self.out += encode_uint(tag)
                    self.value(member, value.value)
                    return
            raise self.error(f"{value.tag!r} is not a tag of the union")
        for tag, member in node.members:
            if type(value) in python_types(member):
                self.out += encode_uint(tag)
                self.value(member, value)
                return
        raise self._wants("a member of the union", value)

    def _struct(self, node: model.StructType, value: Any) -> None:
        if type(value) is not node.cls:
            raise self._wants(node.cls.__name__, value)
        for name, item in node.fields:
            part = getattr(value, name, _MISSING)
            if part is _MISSING:
                raise self.error(f"{node.cls.__name__} has no value for its field {name}")
            self._step(item, "." + name, part)
