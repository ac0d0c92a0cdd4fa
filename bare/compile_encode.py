"""Compiles an encoder for one type. The compiled Python source handles only the usual case of every part of the type.

The compiled code does not describe errors. If anything in a value is unusual, the code raises an exception. Then
`precise_encode` encodes the value again from the start, and either accepts the value (for example a `bytearray` as
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
from typing import Any

from bare.errors import Irregular
from bare.inline import CHAIN_MEMBERS_MAX, counts_items, is_called
from bare.limits import Limits
from bare.model import (
    BareType,
    BoolType,
    DataType,
    EnumType,
    FixedIntType,
    FloatType,
    ListType,
    MapType,
    NamedType,
    OptionalType,
    StrType,
    StructType,
    UnionType,
    VarintType,
    VoidType,
    python_types,
)
from bare.source import Source, joined
from bare.types import Some, Tagged
from bare.varint import FIRST_BYTE, ONE_BYTE, encode_uint


def compile_encoder(
    node: BareType, limits: Limits, heads: frozenset[int], careful: Callable[[Any], bytes]
) -> Callable[[Any], bytes]:
    """Returns a compiled function that encodes a value and returns the message.

    heads: the result of `cycle_heads`. careful: encodes unusual values, or raises the error."""
    compiler = _EncoderCompiler(limits, heads, careful)
    source = compiler.source
    with source.block("def encode(value):"):
        with source.block("try:"):
            source.line(f"out = {joined(compiler.root(node, 'value'))}")
            source.line(f"if len(out) > {limits.message_bytes_max}: raise Irregular")
            source.line("return out")
        # Call the careful codec after the handler, so that its error does not have this exception as its context.
        with source.block("except Exception:"):
            source.line("pass")
        source.line("return careful(value)")
    return compiler.made()


def _is_not(value: str, type_name: str) -> str:
    return f"if {value}.__class__ is not {type_name}: raise Irregular"


def _uint(value: str) -> str:
    two = f"MORE[{value} & 127] + ONE[{value} >> 7]"
    return f"(ONE[{value}] if {value} < 128 else {two} if {value} < 16384 else encode_uint({value}))"


class _EncoderCompiler:
    """A writer of encoders, which writes Python statements into `source`.

    Each method takes a type and the name of a local variable with a value. It writes the statements that check the
    value, and returns expressions for bytes, which together are the encoding of the value."""

    def __init__(self, limits: Limits, heads: frozenset[int], careful: Callable[[Any], bytes]) -> None:
        self.source = Source(
            Irregular=Irregular,
            ONE=ONE_BYTE,
            MORE=FIRST_BYTE,
            encode_uint=encode_uint,
            Some=Some,
            Tagged=Tagged,
            careful=careful,
        )
        self._limits = limits
        self._heads = heads
        self._functions: dict[int, str] = {}
        self._called: list[BareType] = []
        self._tables: list[tuple[dict[Any, Any], Any, str]] = []
        self._nest = 0
        self._counts = False
        # The other arguments of every function, besides the value: the depth, and the number of items that the message
        # may still have.
        self._shared = ""

    def root(self, node: BareType, value: str) -> list[str]:
        self._counts = counts_items(node, self._heads, self._limits)
        self._shared = (", depth" if self._heads else "") + (", left" if self._counts else "")
        if self._heads:
            self.source.line("depth = 0")
        if self._counts:
            self.source.line(f"left = [{self._limits.items_max}]")
        return self._call(node, value) if id(node) in self._heads else self._written(node, value)

    def made(self) -> Callable[..., Any]:
        """Writes the functions that `encode` calls, compiles all functions, and returns the compiled `encode`."""
        # A loop and not recursion, so that a long chain of types does not exhaust the stack.
        for node in self._called:
            self._nest = 0
            with self.source.block(f"def {self._functions[id(node)]}(value{self._shared}):"):
                if id(node) in self._heads:
                    self.source.line("depth += 1")
                    self.source.line(f"if depth > {self._limits.depth_max}: raise Irregular")
                self.source.line(f"return {joined(self._written(node, 'value'))}")
        encode = self.source.made("encode")
        for table, kind, name in self._tables:
            table[kind] = self.source.function(name)
        return encode

    def _part(self, node: BareType, value: str) -> list[str]:
        return self._call(node, value) if is_called(node, self._heads, self._nest) else self._written(node, value)

    def _call(self, node: BareType, value: str) -> list[str]:
        return [f"{self._function(node)}({value}{self._shared})"]

    def _function(self, node: BareType) -> str:
        """Returns the name of the function that encodes a value of a type. `made` writes its source later."""
        if id(node) not in self._functions:
            self._functions[id(node)] = self.source.name("write")
            self._called.append(node)
        return self._functions[id(node)]

    def _written(self, node: BareType, value: str) -> list[str]:
        match node:
            case VarintType(signed=signed):
                return self._varint(signed, value)
            case FixedIntType() | FloatType():
                return self._numbers([node], [value])
            case BoolType():
                self.source.line(f"if {value} is not True and {value} is not False: raise Irregular")
                return [f"ONE[{value}]"]
            case StrType():
                encoded = self.source.name("e")
                self.source.line(_is_not(value, "str"))
                self.source.line(f"{encoded} = {value}.encode()")
                return [self._length(encoded), encoded]
            case DataType(length=None):
                self.source.line(_is_not(value, "bytes"))
                return [self._length(value), value]
            case DataType(length=length):
                self.source.line(f"if {value}.__class__ is not bytes or len({value}) != {length}: raise Irregular")
                return [value]
            case VoidType():
                self.source.line(f"if {value} is not None: raise Irregular")
                return []
            case EnumType(cls=cls, by_value=by_value):
                self.source.line(_is_not(value, self.source.constant(cls)))
                # The members of an enum are few, so all are encoded when the codec is compiled.
                encoded_by_value = {number: encode_uint(number) for number in by_value}
                return [f"{self.source.constant(encoded_by_value)}[{value}._value_]"]
            case OptionalType():
                return self._optional(node, value)
            case ListType():
                return self._list(node, value)
            case MapType():
                return self._map(node, value)
            case UnionType():
                return self._union(node, value)
            case StructType():
                return self._struct(node, value)
            case NamedType(target=target):
                assert target is not None
                return self._part(target, value)

    def _varint(self, signed: bool, value: str) -> list[str]:
        if not signed:
            self.source.line(f"if {value}.__class__ is not int or {value} < 0: raise Irregular")
            return [_uint(value)]
        folded = self.source.name("z")
        self.source.line(_is_not(value, "int"))
        self.source.line(f"{folded} = {value} << 1 if {value} >= 0 else ~({value} << 1)")
        return [_uint(folded)]

    def _length(self, value: str) -> str:
        length = self.source.name("n")
        self.source.line(f"{length} = len({value})")
        return _uint(length)

    def _numbers(self, nodes: list[FixedIntType | FloatType], values: list[str]) -> list[str]:
        """Writes the type checks of adjacent numbers of fixed size. Returns one `pack` call that encodes all of them.

        The call raises an error for a number out of range."""
        for node, value in zip(nodes, values, strict=True):
            self.source.line(_is_not(value, "float" if isinstance(node, FloatType) else "int"))
        pack = self.source.constant(struct.Struct("<" + "".join(node.code for node in nodes)).pack)
        return [f"{pack}({', '.join(values)})"]

    def _optional(self, node: OptionalType, value: str) -> list[str]:
        out = self.source.name("o")
        with self.source.block(f"if {value} is None:"):
            self.source.line(f"{out} = ONE[0]")
        with self.source.block("else:"):
            self._nest += 1
            inner = value
            if node.wrapped:
                inner = self.source.name("v")
                self.source.line(_is_not(value, "Some"))
                self.source.line(f"{inner} = {value}.value")
            self.source.line(f"{out} = {joined(['ONE[1]', *self._part(node.item, inner)])}")
            self._nest -= 1
        return [out]

    def _list(self, node: ListType, value: str) -> list[str]:
        self.source.line(_is_not(value, "list"))
        count = self.source.name("n")
        self.source.line(f"{count} = len({value})")
        if node.length is None:
            self.source.line(f"if {count} > {self._limits.list_items_max}: raise Irregular")
            self._count(count)
            head = [_uint(count)]
        else:
            self.source.line(f"if {count} != {node.length}: raise Irregular")
            head = []
        if isinstance(node.item, FixedIntType | FloatType):
            # A list of numbers of fixed size is checked and packed as a whole, without a loop over its items.
            only = self.source.constant({float} if isinstance(node.item, FloatType) else {int})
            self.source.line(f"if {count} and set(map(type, {value})) != {only}: raise Irregular")
            if node.item.code == "B":
                return [*head, f"bytes({value})"]
            pack = self.source.constant(struct.pack)
            return [*head, f'{pack}(f"<{{{count}}}{node.item.code}", *{value})']
        # Any other item has statements of its own, which append its parts to one list.
        out, item = self.source.name("o"), self.source.name("v")
        self.source.line(f"{out} = []")
        with self.source.block(f"for {item} in {value}:"):
            self._nest += 1
            self._append(out, self._part(node.item, item))
            self._nest -= 1
        return [*head, f'b"".join({out})']

    def _count(self, count: str) -> None:
        """Writes the statements that subtract `count` from the number of items that the message can still have.

        count: the expression for the number of items of a list or map."""
        if self._counts:
            with self.source.block(f"if {count}:"):
                self.source.line(f"left[0] -= {count}")
                self.source.line("if left[0] < 0: raise Irregular")

    def _append(self, out: str, parts: list[str]) -> None:
        self.source.line(f"{out}.append({parts[0]})" if len(parts) == 1 else f"{out} += ({', '.join(parts)},)")

    def _map(self, node: MapType, value: str) -> list[str]:
        self.source.line(_is_not(value, "dict"))
        count, out = self.source.name("n"), self.source.name("o")
        key, item = self.source.name("k"), self.source.name("v")
        self.source.line(f"{count} = len({value})")
        self.source.line(f"if {count} > {self._limits.map_entries_max}: raise Irregular")
        self._count(count)
        self.source.line(f"{out} = []")
        with self.source.block(f"for {key}, {item} in {value}.items():"):
            self._nest += 1
            self._append(out, [*self._part(node.key, key), *self._part(node.value, item)])
            self._nest -= 1
        return [_uint(count), f'b"".join({out})']

    def _union(self, node: UnionType, value: str) -> list[str]:
        kind, out, inner = self.source.name("t"), self.source.name("o"), value
        if node.tagged:
            inner = self.source.name("v")
            self.source.line(_is_not(value, "Tagged"))
            self.source.line(f"{kind} = {value}.tag")
            self.source.line(_is_not(kind, "int"))
            self.source.line(f"{inner} = {value}.value")
        else:
            self.source.line(f"{kind} = {value}.__class__")
        # The tag, or the exact type of the value, selects the member: by a table, or by a chain of tests.
        if len(node.members) > CHAIN_MEMBERS_MAX:
            return self._member_by_table(node, kind, inner)
        for index, (tag, member) in enumerate(node.members):
            test = str(tag)
            if not node.tagged:
                test = self.source.constant(python_types(member))
            with self.source.block(f"{'elif' if index else 'if'} {kind} {'==' if node.tagged else 'in'} {test}:"):
                self._nest += 1
                parts = [self.source.constant(encode_uint(tag)), *self._part(member, inner)]
                self.source.line(f"{out} = {joined(parts)}")
                self._nest -= 1
        with self.source.block("else:"):
            self.source.line("raise Irregular")
        return [out]

    def _member_by_table(self, node: UnionType, kind: str, inner: str) -> list[str]:
        """Returns the expressions that encode a union member with a function from a table. An unknown key raises
        KeyError.

        kind: the expression for the key, which is the tag or the Python type of the value."""
        tags: dict[Any, bytes] = {}
        table: dict[Any, Any] = {}
        for tag, member in node.members:
            for known in (tag,) if node.tagged else python_types(member):
                tags[known] = encode_uint(tag)
                self._tables.append((table, known, self._function(member)))
        write = f"{self.source.constant(table)}[{kind}]"
        return [f"{self.source.constant(tags)}[{kind}]", f"{write}({inner}{self._shared})"]

    def _struct(self, node: StructType, value: str) -> list[str]:
        self.source.line(_is_not(value, self.source.constant(node.cls)))
        parts: list[str] = []
        run: list[FixedIntType | FloatType] = []
        values: list[str] = []
        # Adjacent numbers of fixed size are packed with one call.
        for index, (name, item) in enumerate(node.fields):
            field = self.source.name("v")
            read = f"getattr({value}, {name!r})" if keyword.iskeyword(name) else f"{value}.{name}"
            self.source.line(f"{field} = {read}")
            if isinstance(item, FixedIntType | FloatType):
                run.append(item)
                values.append(field)
                following = node.fields[index + 1][1] if index + 1 < len(node.fields) else None
                if not isinstance(following, FixedIntType | FloatType):
                    parts += self._numbers(run, values)
                    run, values = [], []
            else:
                parts += self._part(item, field)
        return parts
