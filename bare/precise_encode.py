"""The precise encoder: encodes a value step by step. Its error names the part of the value that does not fit its type.

Compiled encoders pass every unusual value to it, so it can be slow and is written plainly. It defines which values are
accepted: the exact Python types, `bytearray` and `memoryview` for data, and for a float an int that the float
represents exactly. Subclasses are accepted too (such as an `IntEnum` for an int), except for structs, enums and the
members of a union whose values are not `Tagged`."""

from __future__ import annotations

import struct
from typing import Any

from bare import model
from bare.errors import EncodeError
from bare.limits import Limits
from bare.model import INT_MAX, INT_MIN, UINT_MAX, BareType, python_types
from bare.types import Some, Tagged
from bare.varint import encode_uint

_MISSING = object()


def encode_precisely(node: BareType, limits: Limits, heads: frozenset[int], value: Any) -> bytes:
    """Encodes a value and returns the message. Raises only EncodeError. heads: the result of `cycle_heads`."""
    writer = _Writer(limits, heads)
    try:
        writer.value(node, value)
    except RecursionError as error:
        raise EncodeError("value is nested deeper than the stack allows", writer.path()) from error
    if len(writer.out) > limits.message_bytes_max:
        raise EncodeError(f"message of {len(writer.out)} bytes is over the limit of {limits.message_bytes_max}")
    return bytes(writer.out)


class _Writer:
    """A writer of one message. Invariant: `_steps` is the path to the value that is being written to `out`."""

    def __init__(self, limits: Limits, heads: frozenset[int]) -> None:
        self.out = bytearray()
        self._limits = limits
        self._heads = heads
        self._steps: list[str] = []
        self._depth = 0
        self._left = limits.items_max

    def path(self) -> str:
        """Returns the path from the root value to the value being written, such as `$.messages[3].data`."""
        return "$" + "".join(self._steps)

    def error(self, what: str) -> EncodeError:
        return EncodeError(what, self.path())

    def value(self, node: BareType, value: Any) -> None:
        if id(node) not in self._heads:
            self._plain_value(node, value)
            return
        self._depth += 1
        if self._depth > self._limits.depth_max:
            raise self.error(f"value is nested deeper than the limit of {self._limits.depth_max}")
        self._plain_value(node, value)
        self._depth -= 1

    def _plain_value(self, node: BareType, value: Any) -> None:
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

    def _step(self, node: BareType, step: str, value: Any) -> None:
        """Writes a part of a value. step: its position in the value, such as `.data` or `[3]`."""
        self._steps.append(step)
        self.value(node, value)
        self._steps.pop()

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
