"""The precise decoder: decodes a message step by step. Its error describes what is wrong in the message, and where.

Compiled decoders pass every unusual message to it, so it can be slow and is written plainly. It defines which messages
are accepted. The offset of an error is that of the first wrong byte: the start of a wrong number, the first bad byte of
a string, the start of a value whose bytes are missing, or the start of a repeated key."""

from __future__ import annotations

import struct
from typing import Any

from bare import model
from bare.errors import DecodeError
from bare.limits import Limits
from bare.model import UINT_MAX, BareType, Sizes
from bare.types import Some, Tagged
from bare.varint import VARINT_BYTES_MAX


def decode_precisely(
    node: BareType, limits: Limits, heads: frozenset[int], data: bytes, at: int, whole: bool
) -> tuple[Any, int]:
    """Decodes the value at the offset `at`. Returns the value and the offset after the value. Raises only DecodeError.

    heads: the result of `cycle_heads`. whole: whether the value must end at the end of `data`."""
    reader = _Reader(limits, heads, data, at)
    try:
        if len(data) > limits.message_bytes_max:
            raise reader.error(f"message of {len(data)} bytes is over the limit of {limits.message_bytes_max}", at)
        value = reader.value(node)
    except RecursionError as error:
        raise DecodeError("value is nested deeper than the stack allows", reader.at, reader.path()) from error
    if whole and reader.at != len(data):
        raise DecodeError(f"{len(data) - reader.at} bytes after the end of the message", reader.at)
    return value, reader.at


class _Reader:
    """A reader of one message. at: the offset of the next byte to read.

    Invariant: 0 <= `at` <= len(data). `_steps` is the path to the value that is being read."""

    def __init__(self, limits: Limits, heads: frozenset[int], data: bytes, at: int) -> None:
        self.at = at
        self._limits = limits
        self._heads = heads
        self._sizes = Sizes()
        self._data = data
        self._steps: list[str] = []
        self._depth = 0
        self._left = limits.items_max

    def path(self) -> str:
        """Returns the path from the root value to the value being read, such as `$.messages[3].data`."""
        return "$" + "".join(self._steps)

    def error(self, what: str, offset: int) -> DecodeError:
        return DecodeError(what, offset, self.path())

    def value(self, node: BareType) -> Any:
        if id(node) not in self._heads:
            return self._plain_value(node)
        self._depth += 1
        if self._depth > self._limits.depth_max:
            raise self.error(f"value is nested deeper than the limit of {self._limits.depth_max}", self.at)
        value = self._plain_value(node)
        self._depth -= 1
        return value

    def _plain_value(self, node: BareType) -> Any:
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
            case model.EnumType():
                return self._enum(node)
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

    def _step(self, node: BareType, step: str) -> Any:
        """Reads and returns a part of a value. step: its position in the value, such as `.data` or `[3]`."""
        self._steps.append(step)
        value = self.value(node)
        self._steps.pop()
        return value

    def _bytes(self, size: int, what: str) -> bytes:
        have = len(self._data) - self.at
        if size > have:
            raise DecodeError(f"{what} needs {size} bytes and has {have}", self.at, self.path(), size, have)
        start, self.at = self.at, self.at + size
        return self._data[start : self.at]

    def _uint(self, what: str) -> int:
        start, value = self.at, 0
        for index in range(VARINT_BYTES_MAX):
            if self.at == len(self._data):
                raise DecodeError(
                    f"{what} ends in the middle" if index else f"{what} is missing",
                    start,
                    self.path(),
                    index + 1,
                    index,
                )
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

    def _enum(self, node: model.EnumType) -> Any:
        start = self.at
        number = self._uint(f"enum {node.cls.__name__}")
        if number not in node.by_value:
            raise self.error(f"{number} is not a value of enum {node.cls.__name__}", start)
        return node.by_value[number]

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
            raise DecodeError(
                f"{what} of {count} needs at least {need} bytes and has {have}",
                self.at,
                self.path(),
                need,
                have,
            )

    def _list(self, node: model.ListType) -> list[Any]:
        least = self._sizes.least(node.item)
        if node.length is None:
            count = self._count("list", self._limits.list_items_max, least)
        else:
            count = node.length
            self._room("list", count, least)
        if isinstance(node.item, model.FixedIntType | model.FloatType):
            # All bytes are valid for these numbers, so a long list can be read in one call.
            return list(struct.unpack(f"<{count}{node.item.code}", self._bytes(count * least, "list")))
        return [self._step(node.item, f"[{index}]") for index in range(count)]

    def _map(self, node: model.MapType) -> dict[Any, Any]:
        least = self._sizes.least(node.key) + self._sizes.least(node.value)
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
