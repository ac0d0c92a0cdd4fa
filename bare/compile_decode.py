"""Compiles a decoder for one type. The compiled Python source handles only the usual case of every part of the type.

The compiled code does not describe errors. If anything in a message is unusual, or if a byte is missing, an exception
is raised. Then `precise` decodes the message again from the start. Compiled decoders must agree with
`precise`: a property test compares the two on random bytes.

The source for `struct { request_id: uint data: data }`, in short:

    def decode(data):
        try:
            size = len(data)
            v1 = data[0]
            if v1 < 128: p2 = 1
            else: v1, p2 = long_uint(data, 0)
            ...
            if p6 != size: raise Irregular
            return PushRequest(v1, data[p5:p6])
        except Exception:
            pass
        return careful(data)"""

from __future__ import annotations

import keyword
import struct
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

from bare import model
from bare.compiler import CHAIN_MEMBERS_MAX, Compiler
from bare.limits import Limits
from bare.model import BareType, Number, Shape
from bare.varint import long_uint


class _At(NamedTuple):
    """A position in the message, in the compiled source: `add` bytes after the local variable `name`.

    name: empty for the start of the message."""

    name: str
    add: int = 0

    def __str__(self) -> str:
        if not self.name:
            return str(self.add)
        return f"{self.name} + {self.add}" if self.add else self.name

    def plus(self, size: int) -> _At:
        return _At(self.name, self.add + size)


def compile_decoder(
    node: BareType, limits: Limits, shape: Shape, careful: Callable[..., Any], *, is_prefix: bool = False
) -> Callable[..., Any]:
    """Returns a compiled function that decodes a whole message and returns its value. With `is_prefix`, the function
    decodes the value at an offset (not negative) of a buffer, and returns the value and the offset after it.

    careful: called with the same arguments for an unusual message."""
    compiler = _DecoderCompiler("read", "data, size, start", limits, shape, long_uint=long_uint, careful=careful)
    with compiler.codec("decode", "data, start" if is_prefix else "data"):
        value, at = compiler.root(node, _At("start" if is_prefix else ""))
        compiler.line(f"if {at} {'>' if is_prefix else '!='} size: raise Irregular")
        compiler.line(f"return {value}, {at}" if is_prefix else f"return {value}")
    return compiler.made("decode")


class _DecoderCompiler(Compiler):
    """A writer of decoders.

    Each method takes a type and a position in the message. It writes the statements that read a value of the type
    there, and returns an expression for the value, and the position after it. The expression has no side effects and is
    valid until the end of the loop iteration.

    A slice can reach beyond the end of the message. This is noticed later, because positions only grow: the next read
    finds no byte, or the last position is not the end of the message."""

    def root(self, node: BareType, at: _At) -> tuple[str, _At]:
        self.line("size = len(data)")
        self.line(f"if data.__class__ is not bytes or size > {self._limits.message_bytes_max}: raise Irregular")
        return self._call(node, at) if id(node) in self._heads else self._written(node, at)

    def _write_body(self, node: BareType) -> None:
        value, end = self._written(node, _At("start"))
        self.line(f"return {value}, {end}")

    def _part(self, node: BareType, at: _At) -> tuple[str, _At]:
        return self._call(node, at) if self._is_called(node) else self._written(node, at)

    def _call(self, node: BareType, at: _At) -> tuple[str, _At]:
        return self._called_by(self._function(node), at)

    def _called_by(self, function: str, at: _At) -> tuple[str, _At]:
        value, after = self.name("v"), self.name("p")
        self.line(f"{value}, {after} = {function}(data, size, {at}{self._shared})")
        return value, _At(after)

    def _written(self, node: BareType, at: _At) -> tuple[str, _At]:
        match node:
            case model.VarintType(signed=signed):
                value, at = self._uint(at)
                return (f"({value} >> 1 ^ -({value} & 1))" if signed else value), at
            case model.FixedIntType(name="u8"):
                return self._byte(at), at.plus(1)
            case model.FixedIntType() | model.FloatType():
                return self._numbers([node], at)[0], at.plus(node.size)
            case model.BoolType():
                return self._flag(at) + " == 1", at.plus(1)
            case model.StrType():
                value, at = self._slice(at)
                return f"{value}.decode()", at
            case model.DataType(length=None):
                return self._slice(at)
            case model.DataType(length=length):
                end = at.plus(length or 0)
                return f"data[{at}:{end}]", end
            case model.VoidType():
                return "None", at
            case model.EnumType(by_value=by_value):
                value, at = self._uint(at)
                return f"{self.constant(by_value)}[{value}]", at
            case model.OptionalType():
                return self._optional(node, at)
            case model.ListType():
                return self._list(node, at)
            case model.MapType():
                return self._map(node, at)
            case model.UnionType():
                return self._union(node, at)
            case model.StructType():
                return self._struct(node, at)
            case model.NamedType(target=target):
                assert target is not None
                return self._part(target, at)

    def _byte(self, at: _At) -> str:
        value = self.name("v")
        self.line(f"{value} = data[{at}]")
        return value

    def _uint(self, at: _At) -> tuple[str, _At]:
        value, after = self._byte(at), self.name("p")
        self.line(f"if {value} < 128: {after} = {at.plus(1)}")
        self.line(f"else: {value}, {after} = long_uint(data, {at})")
        return value, _At(after)

    def _flag(self, at: _At) -> str:
        value = self._byte(at)
        self.line(f"if {value} > 1: raise Irregular")
        return value

    def _slice(self, at: _At) -> tuple[str, _At]:
        length, start = self._uint(at)
        end = self.name("p")
        self.line(f"{end} = {start} + {length}")
        return f"data[{start}:{end}]", _At(end)

    def _numbers(self, nodes: list[Number], at: _At) -> list[str]:
        """Writes one `unpack_from` call that reads adjacent numbers of fixed size. Returns one name per number."""
        unpack = self.constant(struct.Struct("<" + "".join(node.code for node in nodes)).unpack_from)
        values = [self.name("v") for _ in nodes]
        self.line(f"{', '.join(values)}, = {unpack}(data, {at})")
        return values

    def _optional(self, node: model.OptionalType, at: _At) -> tuple[str, _At]:
        flag, value, after = self._flag(at), self.name("v"), self.name("p")
        with self._nested(f"if {flag}:"):
            item, end = self._part(node.item, at.plus(1))
            self.line(f"{value} = {f'Some({item})' if node.wrapped else item}")
            self.line(f"{after} = {end}")
        with self.block("else:"):
            self.line(f"{value} = None")
            self.line(f"{after} = {at.plus(1)}")
        return value, _At(after)

    def _count(self, at: _At, limit: int, least: int) -> tuple[str, _At]:
        count, at = self._uint(at)
        self.line(f"if {count} > {limit} or {count} * {least} > size - {at}: raise Irregular")
        self._count_items(count)
        return count, at

    def _list(self, node: model.ListType, at: _At) -> tuple[str, _At]:
        least = self._least[id(node.item)]
        if node.length is None:
            count, at = self._count(at, self._limits.list_items_max, least)
        else:
            count = str(node.length)
            # Without this test, a short message could make a long list before the end is noticed.
            self.line(f"if {node.length * least} > size - ({at}): raise Irregular")
        values = self.name("v")
        if isinstance(node.item, Number):
            # A list of numbers of fixed size is unpacked as a whole, without a loop over its items.
            after = self.name("p")
            self.line(f"{after} = {at} + {count} * {least}")
            if node.item.code == "B":
                self.line(f"{values} = list(data[{at}:{after}])")
            else:
                unpack = self.constant(struct.unpack_from)
                self.line(f'{values} = list({unpack}(f"<{{{count}}}{node.item.code}", data, {at}))')
            return values, _At(after)
        # Any other item is read in a loop, whose position is a variable.
        place = self.name("p")
        self.line(f"{place} = {at}")
        self.line(f"{values} = []")
        with self._nested(f"for _ in range({count}):"):
            item, end = self._part(node.item, _At(place))
            self.line(f"{values}.append({item})")
            self.line(f"{place} = {end}")
        return values, _At(place)

    def _map(self, node: model.MapType, at: _At) -> tuple[str, _At]:
        least = self._least[id(node.key)] + self._least[id(node.value)]
        count, at = self._count(at, self._limits.map_entries_max, least)
        values, place, key = self.name("v"), self.name("p"), self.name("k")
        self.line(f"{place} = {at}")
        self.line(f"{values} = {{}}")
        with self._nested(f"for _ in range({count}):"):
            expression, end = self._part(node.key, _At(place))
            self.line(f"{key} = {expression}")
            item, end = self._part(node.value, end)
            self.line(f"{values}[{key}] = {item}")
            self.line(f"{place} = {end}")
        # A repeated key leaves fewer entries than the count says.
        self.line(f"if len({values}) != {count}: raise Irregular")
        return values, _At(place)

    def _union(self, node: model.UnionType, at: _At) -> tuple[str, _At]:
        tag, at = self._uint(at)
        if len(node.members) > CHAIN_MEMBERS_MAX:
            return self._member_by_table(node, tag, at)
        value, after = self.name("v"), self.name("p")
        for index, (known, member) in enumerate(node.members):
            with self._nested(f"{'elif' if index else 'if'} {tag} == {known}:"):
                item, end = self._part(member, at)
                self.line(f"{value} = {f'Tagged({known}, {item})' if node.tagged else item}")
                self.line(f"{after} = {end}")
        with self.block("else:"):
            self.line("raise Irregular")
        return value, _At(after)

    def _member_by_table(self, node: model.UnionType, tag: str, at: _At) -> tuple[str, _At]:
        """Writes the call that reads a union member. A table maps tags to functions; an unknown tag raises KeyError."""
        table: dict[int, Any] = {}
        self._tables += [(table, known, self._function(member)) for known, member in node.members]
        value, at = self._called_by(f"{self.constant(table)}[{tag}]", at)
        return (f"Tagged({tag}, {value})" if node.tagged else value), at

    def _struct(self, node: model.StructType, at: _At) -> tuple[str, _At]:
        values: list[str] = []
        # Adjacent numbers of fixed size are unpacked with one call; a single u8 is read by its index.
        for _, run in groupby((item for _, item in node.fields), lambda item: isinstance(item, Number)):
            items = list(run)
            numbers = [item for item in items if isinstance(item, Number)]
            if numbers:
                values += [self._byte(at)] if [each.code for each in numbers] == ["B"] else self._numbers(numbers, at)
                at = at.plus(sum(each.size for each in numbers))
                continue
            for item in items:
                value, at = self._part(item, at)
                values.append(value)
        # A keyword of Python can be the name of a field, but not of an argument in a call.
        arguments = values[: node.positional]
        late = list(zip(node.fields, values, strict=True))[node.positional :]
        named = [f"{name!r}: {value}" for (name, _), value in late]
        if named and any(keyword.iskeyword(name) for (name, _), _ in late):
            arguments.append(f"**{{{', '.join(named)}}}")
        else:
            arguments += [f"{name}={value}" for (name, _), value in late]
        return f"{self.constant(node.cls)}({', '.join(arguments)})", at
