"""Creates codecs from schema texts, and Python classes for the structs and enums of the schema. It reads no files.
`blocks` finds the schemas in a Markdown document.

| In the schema | In Python                                                                          |
|---------------|------------------------------------------------------------------------------------|
| struct        | a frozen `msgspec.Struct` class; if it has no name, its path is the class name     |
| enum          | an `enum.IntEnum` class; if it has no name, its path is the class name             |
| union         | the plain value of a member; `bare.Tagged` if members share a Python type          |
| optional<T>   | None or the plain value; None or `bare.Some` if T can itself be None               |
| list, map     | list, dict                                                                         |
| others        | int, float, bool, str, bytes, None                                                 |"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from bare import model
from bare.codec import Buffer, Decoder, Encoder
from bare.limits import LIMITS_DEFAULT, Limits
from bare.model import PRIMITIVES, BareType, NamedType, StructType, needs_some, needs_tags
from bare.resolve import enum_type
from bare.schema import ast
from bare.schema.dialect import Dialect, parse_with


class Schema:
    """The codecs of one schema, by type name. Iterating yields the type names that the schema's text defines.

    document: the syntax tree of the text.
    known: another schema, whose type names the methods accept too. An unknown name raises KeyError.
    types: the Python classes of the structs and enums, by name."""

    def __init__(self, document: ast.Document, known: Schema | None = None, limits: Limits = LIMITS_DEFAULT) -> None:
        self.document = document
        self.limits = limits
        builder = _Builder(document, {} if known is None else known.models)
        for definition in ast.in_order(document.definitions):
            builder.define(definition)
        self.models: dict[str, BareType] = builder.models
        self.types: dict[str, type[Any]] = builder.types
        # The definitions of both schemas by name, each alias (such as `type A B`) replaced by its type.
        before = {} if known is None else known.scope
        self.scope: dict[str, ast.Definition] = dict(before)
        for definition in document.definitions.values():
            type_ = definition.type
            while isinstance(type_, ast.Name):
                type_ = (document.definitions.get(type_.name) or before[type_.name]).type
            self.scope[definition.name] = ast.Definition(definition.name, type_, at=definition.at)
        self._encoders: dict[str, Encoder[Any]] = {}
        self._decoders: dict[str, Decoder[Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.models

    def __iter__(self) -> Iterator[str]:
        return iter(self.document.definitions)

    def encoder(self, name: str) -> Encoder[Any]:
        """Returns the encoder of a type. The encoder is created at the first call."""
        if name not in self._encoders:
            self._encoders[name] = Encoder(self.models[name], self.limits)
        return self._encoders[name]

    def decoder(self, name: str) -> Decoder[Any]:
        """Returns the decoder of a type. The decoder is created at the first call."""
        if name not in self._decoders:
            self._decoders[name] = Decoder(self.models[name], self.limits)
        return self._decoders[name]

    def encode(self, name: str, value: Any) -> bytes:
        """Encodes a value of the type `name` and returns the message. Raises EncodeError."""
        return self.encoder(name).encode(value)

    def decode(self, name: str, data: Buffer) -> Any:
        """Decodes a whole message of the type `name` and returns the value. Raises DecodeError."""
        return self.decoder(name).decode(data)


def load(
    text: str,
    *,
    dialect: Dialect = "auto",
    known: Schema | None = None,
    limits: Limits = LIMITS_DEFAULT,
    line: int = 1,
) -> Schema:
    """Returns the codecs of a schema text. Raises SchemaError.

    known: a schema whose type names the text can use; the result has these names too.
    line: the number of the text's first line, for errors."""
    document = parse_with(text, {} if known is None else known.scope, dialect, line=line)
    return Schema(document, known, limits)


def load_blocks(markdown: str, *, dialect: Dialect = "auto", limits: Limits = LIMITS_DEFAULT) -> list[Schema]:
    """Returns the codecs of each schema block in a Markdown document. Raises SchemaError with lines of the document.

    For a name that a block does not define, the latest definition in an earlier block applies. The stream specification
    needs this: it defines `Request` in several sections, and some sections use names of other sections."""
    schemas: list[Schema] = []
    for block in blocks(markdown):
        known = schemas[-1] if schemas else None
        schemas.append(load(block.text, dialect=dialect, known=known, limits=limits, line=block.line))
    return schemas


class _Builder:
    """A builder of models (`bare.model`) of definitions. Call `define` for a definition after the ones that it uses.

    A type that contains itself is created empty at its first use, and filled when its own definition is built. `place`
    is the path of a type in the schema, such as `Outer.field.2`, which names a class without a name."""

    def __init__(self, document: ast.Document, known: dict[str, BareType]) -> None:
        self.types: dict[str, type[Any]] = {}
        self._own = document.definitions
        self.models = {name: node for name, node in known.items() if name not in self._own}
        self._promised: dict[str, StructType | NamedType] = {}

    def define(self, definition: ast.Definition) -> None:
        name = definition.name
        if isinstance(definition.type, ast.Struct):
            promised = self._promise(name)
            assert isinstance(promised, StructType)
            self.models[name] = self._filled(promised, definition.type, name)
            return
        # Only a struct can be filled later; any other type that was used before its definition is a reference by name.
        node = self._node(definition.type, name)
        named = self._promised.get(name)
        if isinstance(named, NamedType):
            named.target = node
        self.models[name] = named or node

    def _promise(self, name: str) -> StructType | NamedType:
        if name not in self._promised:
            match self._own[name].type:
                case ast.Struct() as struct:
                    self._promised[name] = self._empty(struct, name)
                case ast.List():
                    self._promised[name] = NamedType(name, frozenset((list,)))
                case ast.Map():
                    self._promised[name] = NamedType(name, frozenset((dict,)))
                case _:
                    self._promised[name] = NamedType(name)
        return self._promised[name]

    def _empty(self, struct: ast.Struct, place: str) -> StructType:
        fields = [(item.name, Any) for item in struct.fields]
        cls = msgspec.defstruct(place, fields, frozen=True, module=__name__)
        self.types[place] = cls
        return StructType(cls, positional=len(fields))

    def _filled(self, node: StructType, struct: ast.Struct, place: str) -> StructType:
        node.fields = tuple((item.name, self._node(item.type, f"{place}.{item.name}")) for item in struct.fields)
        return node

    def _node(self, type_: ast.Type, place: str) -> BareType:
        match type_:
            case ast.Primitive(name=name):
                return PRIMITIVES[name]
            case ast.FixedData(length=length):
                return model.DataType(length)
            case ast.Name(name=name):
                return self.models[name] if name in self.models else self._promise(name)
            case ast.Optional():
                item = self._node(type_.item, place)
                return model.OptionalType(item, needs_some(item))
            case ast.List(length=count):
                return model.ListType(self._node(type_.item, place), count)
            case ast.Map(key=key, value=value):
                return model.MapType(self._node(key, f"{place}.keys"), self._node(value, f"{place}.values"))
            case ast.Enum(members=members):
                cls = enum.IntEnum(place, [(member.name, member.value) for member in members])  # type: ignore[misc]
                self.types[place] = cls
                return enum_type(cls)
            case ast.UnionNode(members=parts):
                # Members without a name are named by their tag.
                nodes = tuple((part.tag, self._node(part.type, f"{place}.{part.tag}")) for part in parts)
                return model.UnionType(nodes, needs_tags(nodes))
            case ast.Struct():
                return self._filled(self._empty(type_, place), type_, place)


_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^`]*?)[ \t]*")
_SCHEMA_START = re.compile(r"(?:\s+|#[^\n]*\n)*(?:type|enum)\s+[A-Z]")


class SchemaBlock(NamedTuple):
    """A schema in a Markdown document. text: its text. line: the number of its first line, from 1."""

    text: str
    line: int


def blocks(markdown: str) -> list[SchemaBlock]:
    """Returns the schemas of a Markdown document, in the order of the document: the fenced blocks with the language
    `bare`, and the blocks without a language that begin, after any comments, with `type` or `enum`."""
    found: list[SchemaBlock] = []
    marks, info, start = "", "", 0
    lines = markdown.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        fence = _FENCE.fullmatch(line)
        if not marks and fence:
            marks, info, start = fence["marks"], fence["info"], number + 1
        elif marks and fence and fence["marks"].startswith(marks) and not fence["info"]:
            text = "".join(inner + "\n" for inner in lines[start - 1 : number - 1])
            if info == "bare" or (not info and _SCHEMA_START.match(text)):
                found.append(SchemaBlock(text, start))
            marks = ""
    return found
