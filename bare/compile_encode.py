"""Compiles an encoder for one type. The compiled Python source handles only the usual case of every part of the type.

The compiled code does not describe errors. If anything in a value is unusual, the code raises an exception. Then
`precise` encodes the value again from the start, and either accepts the value (for example a `bytearray` as
data) or raises an error.

The source for `struct { request_id: uint data: data }`, in short:

    def encode(value):
        try:
            if value.__class__ is not PushRequest: raise Irregular
            v1 = value.request_id
            if v1.__class__ is not int or v1 < 0: raise Irregular
            ...
            out = (ONE[v1] if v1 < 128 else encode_uint(v1)) + ...
            return out
        except Exception:
            pass
        return careful(value)"""

from __future__ import annotations

import keyword
import struct
from collections.abc import Callable
from itertools import groupby
from typing import Any

from bare import model
from bare.compiler import CHAIN_MEMBERS_MAX, Compiler, joined
from bare.limits import Limits
from bare.model import BareType, Number, Shape, python_types
from bare.varint import FIRST_BYTE, ONE_BYTE, encode_uint


def compile_encoder(
    node: BareType, limits: Limits, shape: Shape, careful: Callable[[Any], bytes]
) -> Callable[[Any], bytes]:
    """Returns a compiled function that encodes a value and returns the message.

    careful: encodes unusual values, or raises the error."""
    compiler = _EncoderCompiler(
        "write", "value", limits, shape, ONE=ONE_BYTE, MORE=FIRST_BYTE, encode_uint=encode_uint, careful=careful
    )
    with compiler.codec("encode", "value"):
        compiler.line(f"out = {joined(compiler.root(node))}")
        compiler.line(f"if len(out) > {limits.message_bytes_max}: raise Irregular")
        compiler.line("return out")
    return compiler.made("encode")


def _is_not(value: str, type_name: str) -> str:
    return f"if {value}.__class__ is not {type_name}: raise Irregular"


def _uint(value: str) -> str:
    two = f"MORE[{value} & 127] + ONE[{value} >> 7]"
    return f"(ONE[{value}] if {value} < 128 else {two} if {value} < 16384 else encode_uint({value}))"


class _EncoderCompiler(Compiler):
    """A writer of encoders.

    Each method takes a type and the name of a local variable with a value. It writes the statements that check the
    value, and returns expressions for bytes, which together are the encoding of the value."""

    def root(self, node: BareType) -> list[str]:
        return self._call(node, "value") if id(node) in self._heads else self._written(node, "value")

    def _write_body(self, node: BareType) -> None:
        self.line(f"return {joined(self._written(node, 'value'))}")

    def _part(self, node: BareType, value: str) -> list[str]:
        return self._call(node, value) if self._is_called(node) else self._written(node, value)

    def _call(self, node: BareType, value: str) -> list[str]:
        return [f"{self._function(node)}({value}{self._shared})"]

    def _written(self, node: BareType, value: str) -> list[str]:
        match node:
            case model.VarintType(signed=signed):
                return self._varint(signed, value)
            case model.FixedIntType() | model.FloatType():
                return self._numbers([node], [value])
            case model.BoolType():
                self.line(f"if {value} is not True and {value} is not False: raise Irregular")
                return [f"ONE[{value}]"]
            case model.StrType():
                encoded = self.name("e")
                self.line(_is_not(value, "str"))
                self.line(f"{encoded} = {value}.encode()")
                return [self._length(encoded), encoded]
            case model.DataType(length=None):
                self.line(_is_not(value, "bytes"))
                return [self._length(value), value]
            case model.DataType(length=length):
                self.line(f"if {value}.__class__ is not bytes or len({value}) != {length}: raise Irregular")
                return [value]
            case model.VoidType():
                self.line(f"if {value} is not None: raise Irregular")
                return []
            case model.EnumType(cls=cls, by_value=by_value):
                self.line(_is_not(value, self.constant(cls)))
                # The members of an enum are few, so all are encoded when the codec is compiled.
                encoded_by_value = {number: encode_uint(number) for number in by_value}
                return [f"{self.constant(encoded_by_value)}[{value}._value_]"]
            case model.OptionalType():
                return self._optional(node, value)
            case model.ListType():
                return self._list(node, value)
            case model.MapType():
                return self._map(node, value)
            case model.UnionType():
                return self._union(node, value)
            case model.StructType():
                return self._struct(node, value)
            case model.NamedType(target=target):
                assert target is not None
                return self._part(target, value)

    def _varint(self, signed: bool, value: str) -> list[str]:
        if not signed:
            self.line(f"if {value}.__class__ is not int or {value} < 0: raise Irregular")
            return [_uint(value)]
        folded = self.name("z")
        self.line(_is_not(value, "int"))
        self.line(f"{folded} = {value} << 1 if {value} >= 0 else ~({value} << 1)")
        return [_uint(folded)]

    def _length(self, value: str) -> str:
        length = self.name("n")
        self.line(f"{length} = len({value})")
        return _uint(length)

    def _numbers(self, nodes: list[Number], values: list[str]) -> list[str]:
        """Writes the type checks of adjacent numbers of fixed size. Returns one `pack` call that encodes all of them.

        The call raises an error for a number out of range."""
        for node, value in zip(nodes, values, strict=True):
            self.line(_is_not(value, "float" if isinstance(node, model.FloatType) else "int"))
        pack = self.constant(struct.Struct("<" + "".join(node.code for node in nodes)).pack)
        return [f"{pack}({', '.join(values)})"]

    def _optional(self, node: model.OptionalType, value: str) -> list[str]:
        out = self.name("o")
        with self.block(f"if {value} is None:"):
            self.line(f"{out} = ONE[0]")
        with self._nested("else:"):
            inner = value
            if node.wrapped:
                inner = self.name("v")
                self.line(_is_not(value, "Some"))
                self.line(f"{inner} = {value}.value")
            self.line(f"{out} = {joined(['ONE[1]', *self._part(node.item, inner)])}")
        return [out]

    def _list(self, node: model.ListType, value: str) -> list[str]:
        self.line(_is_not(value, "list"))
        count = self.name("n")
        self.line(f"{count} = len({value})")
        if node.length is None:
            self.line(f"if {count} > {self._limits.list_items_max}: raise Irregular")
            self._count_items(count)
            head = [_uint(count)]
        else:
            self.line(f"if {count} != {node.length}: raise Irregular")
            head = []
        if isinstance(node.item, Number):
            # A list of numbers of fixed size is checked and packed as a whole, without a loop over its items.
            only = self.constant({float} if isinstance(node.item, model.FloatType) else {int})
            self.line(f"if {count} and set(map(type, {value})) != {only}: raise Irregular")
            if node.item.code == "B":
                return [*head, f"bytes({value})"]
            pack = self.constant(struct.pack)
            return [*head, f'{pack}(f"<{{{count}}}{node.item.code}", *{value})']
        # Any other item has statements of its own, which append its parts to one list.
        out, item = self.name("o"), self.name("v")
        self.line(f"{out} = []")
        with self._nested(f"for {item} in {value}:"):
            self._append(out, self._part(node.item, item))
        return [*head, f'b"".join({out})']

    def _append(self, out: str, parts: list[str]) -> None:
        self.line(f"{out}.append({parts[0]})" if len(parts) == 1 else f"{out} += ({', '.join(parts)},)")

    def _map(self, node: model.MapType, value: str) -> list[str]:
        self.line(_is_not(value, "dict"))
        count, out = self.name("n"), self.name("o")
        key, item = self.name("k"), self.name("v")
        self.line(f"{count} = len({value})")
        self.line(f"if {count} > {self._limits.map_entries_max}: raise Irregular")
        self._count_items(count)
        self.line(f"{out} = []")
        with self._nested(f"for {key}, {item} in {value}.items():"):
            self._append(out, [*self._part(node.key, key), *self._part(node.value, item)])
        return [_uint(count), f'b"".join({out})']

    def _union(self, node: model.UnionType, value: str) -> list[str]:
        kind, out, inner = self.name("t"), self.name("o"), value
        if node.tagged:
            inner = self.name("v")
            self.line(_is_not(value, "Tagged"))
            self.line(f"{kind} = {value}.tag")
            self.line(_is_not(kind, "int"))
            self.line(f"{inner} = {value}.value")
        else:
            self.line(f"{kind} = {value}.__class__")
        # The tag, or the exact type of the value, selects the member: by a table, or by a chain of tests.
        if len(node.members) > CHAIN_MEMBERS_MAX:
            return self._member_by_table(node, kind, inner)
        for index, (tag, member) in enumerate(node.members):
            test = str(tag)
            if not node.tagged:
                test = self.constant(python_types(member))
            with self._nested(f"{'elif' if index else 'if'} {kind} {'==' if node.tagged else 'in'} {test}:"):
                parts = [self.constant(encode_uint(tag)), *self._part(member, inner)]
                self.line(f"{out} = {joined(parts)}")
        with self.block("else:"):
            self.line("raise Irregular")
        return [out]

    def _member_by_table(self, node: model.UnionType, kind: str, inner: str) -> list[str]:
        """Returns the expressions that encode a union member with a function from a table. An unknown key raises
        KeyError.

        kind: the expression for the key, which is the tag or the Python type of the value."""
        tags: dict[Any, bytes] = {}
        table: dict[Any, Any] = {}
        for tag, member in node.members:
            for known in (tag,) if node.tagged else python_types(member):
                tags[known] = encode_uint(tag)
                self._tables.append((table, known, self._function(member)))
        write = f"{self.constant(table)}[{kind}]"
        return [f"{self.constant(tags)}[{kind}]", f"{write}({inner}{self._shared})"]

    def _struct(self, node: model.StructType, value: str) -> list[str]:
        self.line(_is_not(value, self.constant(node.cls)))
        parts: list[str] = []
        # Adjacent numbers of fixed size are packed with one call.
        for _, run in groupby(node.fields, lambda field: isinstance(field[1], Number)):
            numbers: dict[str, Number] = {}
            for name, item in run:
                field = self.name("v")
                read = f"getattr({value}, {name!r})" if keyword.iskeyword(name) else f"{value}.{name}"
                self.line(f"{field} = {read}")
                if isinstance(item, Number):
                    numbers[field] = item
                else:
                    parts += self._part(item, field)
            if numbers:
                parts += self._numbers(list(numbers.values()), list(numbers))
        return parts
