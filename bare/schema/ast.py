"""What a schema text says, as a tree. It checks nothing and knows no codec.

Trees compare by meaning: positions, comments and whether a tag was written out do not count, nor does the
order of definitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Position(NamedTuple):
    """A place in a text; both count from 1."""

    line: int
    column: int


# The position of what was made by a program.
NOWHERE = Position(0, 0)


@dataclass(frozen=True, slots=True)
class Comments:
    """Comments of one item, without the `#`: those above it (None is an empty line), the one beside it."""

    above: tuple[str | None, ...] = ()
    beside: str | None = None


NO_COMMENTS = Comments()


@dataclass(frozen=True, slots=True)
class Primitive:
    """uint, int, u8..u64, i8..i64, f32, f64, bool, str, void; and data without a length."""

    name: str
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class FixedData:
    """data[length]."""

    length: int
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A type defined elsewhere."""

    name: str
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Optional:
    """optional<item>."""

    item: Type
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class List:
    """list<item>, or list<item>[length]."""

    item: Type
    length: int | None = None
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Map:
    """map<key><value>."""

    key: Type
    value: Type
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A name and its number; `stated` if the number was written out."""

    name: str
    value: int
    stated: bool = field(default=True, compare=False)
    comments: Comments = field(default=NO_COMMENTS, compare=False)
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Enum:
    """enum { members }. `closing` holds the comments before the closing brace."""

    members: tuple[EnumMember, ...]
    closing: tuple[str | None, ...] = field(default=(), compare=False)
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class UnionMember:
    """A type and its tag; `stated` if the tag was written out."""

    type: Type
    tag: int
    stated: bool = field(default=True, compare=False)
    comments: Comments = field(default=NO_COMMENTS, compare=False)
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Union:
    """union { members }."""

    members: tuple[UnionMember, ...]
    closing: tuple[str | None, ...] = field(default=(), compare=False)
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    name: str
    type: Type
    comments: Comments = field(default=NO_COMMENTS, compare=False)
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Struct:
    """struct { fields }."""

    fields: tuple[Field, ...]
    closing: tuple[str | None, ...] = field(default=(), compare=False)
    at: Position = field(default=NOWHERE, compare=False)


Type = Primitive | FixedData | Name | Optional | List | Map | Enum | Union | Struct


@dataclass(frozen=True, slots=True)
class Definition:
    """type name type."""

    name: str
    type: Type
    comments: Comments = field(default=NO_COMMENTS, compare=False)
    at: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Document:
    """A whole schema: its definitions by name, in the order of the text."""

    definitions: dict[str, Definition]
    closing: tuple[str | None, ...] = field(default=(), compare=False)


def parts(type_: Type) -> tuple[Type, ...]:
    """The types that a type is directly made of."""
    match type_:
        case Optional(item=item) | List(item=item):
            return (item,)
        case Map(key=key, value=value):
            return (key, value)
        case Union(members=members):
            return tuple(member.type for member in members)
        case Struct(fields=fields):
            return tuple(item.type for item in fields)
        case _:
            return ()


def names_in(type_: Type) -> list[Name]:
    """The names that a type uses, in the order of the text."""
    if isinstance(type_, Name):
        return [type_]
    return [name for part in parts(type_) for name in names_in(part)]


def in_order(definitions: dict[str, Definition]) -> list[Definition]:
    """Definitions with those that they use before them, else in their own order. Where types contain each
    other there is no such order, and the one met first comes last.
    """
    placed: dict[str, Definition] = {}
    open_names: set[str] = set()
    for root in definitions.values():
        # An explicit stack, so that a long chain of definitions is no deeper than the interpreter's stack.
        stack = [root]
        while stack:
            definition = stack[-1]
            if definition.name in placed:
                stack.pop()
                continue
            first_visit = definition.name not in open_names
            open_names.add(definition.name)
            used = [definitions[name.name] for name in names_in(definition.type) if name.name in definitions]
            waiting = [other for other in used if other.name not in placed and other.name not in open_names]
            if first_visit and waiting:
                stack += reversed(waiting)
            else:
                placed[definition.name] = stack.pop()
    return list(placed.values())
