"""The syntax tree of a schema text. This module checks nothing.

Two trees are equal if they mean the same. Positions, comments, the order of definitions, and whether a number is
written in the text (`stated`) do not count. `closing` has the comments before a closing brace or the end; None stands
for an empty line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec


class SourcePosition(NamedTuple):
    line: int
    column: int


# The position of a node that was made by a program and not read from a text.
NOWHERE = SourcePosition(0, 0)


class Comments(msgspec.Struct, frozen=True):
    """The comments of one item of a schema, without the `#`.

    above: the comments on the lines before the item; None stands for an empty line.
    beside: the comment on the item's own line, or None."""

    above: tuple[str | None, ...] = ()
    beside: str | None = None


NO_COMMENTS = Comments()


# The fields that only describe how a node is written. They are ignored when two nodes are compared.
_WRITING = frozenset(("at", "comments", "closing", "stated"))


class _Node(msgspec.Struct, frozen=True):
    """A node of the syntax tree. Two nodes are equal if they differ only in positions, comments and spelling."""

    def _meaning(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name not in _WRITING)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Node) and self._meaning() == other._meaning()

    def __hash__(self) -> int:
        return hash((type(self), self._meaning()))


class Primitive(_Node, frozen=True):
    """A primitive type: uint, int, u8..u64, i8..i64, f32, f64, bool, str, void, or data without a length."""

    name: str
    at: SourcePosition = NOWHERE


class FixedData(_Node, frozen=True):
    length: int
    at: SourcePosition = NOWHERE


class Name(_Node, frozen=True):
    """A reference by name to a type that is defined elsewhere in the schema."""

    name: str
    at: SourcePosition = NOWHERE


class Optional(_Node, frozen=True):
    item: Type
    at: SourcePosition = NOWHERE


class List(_Node, frozen=True):
    """The type list<item>, or list<item>[length] if `length` is not None."""

    item: Type
    length: int | None = None
    at: SourcePosition = NOWHERE


class Map(_Node, frozen=True):
    key: Type
    value: Type
    at: SourcePosition = NOWHERE


class EnumMember(_Node, frozen=True):
    name: str
    value: int
    stated: bool = True
    comments: Comments = NO_COMMENTS
    at: SourcePosition = NOWHERE


class Enum(_Node, frozen=True):
    members: tuple[EnumMember, ...]
    closing: tuple[str | None, ...] = ()
    at: SourcePosition = NOWHERE


class UnionMember(_Node, frozen=True):
    type: Type
    tag: int
    stated: bool = True
    comments: Comments = NO_COMMENTS
    at: SourcePosition = NOWHERE


class UnionNode(_Node, frozen=True):
    members: tuple[UnionMember, ...]
    closing: tuple[str | None, ...] = ()
    at: SourcePosition = NOWHERE


class Field(_Node, frozen=True):
    name: str
    type: Type
    comments: Comments = NO_COMMENTS
    at: SourcePosition = NOWHERE


class Struct(_Node, frozen=True):
    fields: tuple[Field, ...]
    closing: tuple[str | None, ...] = ()
    at: SourcePosition = NOWHERE


Type = Primitive | FixedData | Name | Optional | List | Map | Enum | UnionNode | Struct


class Definition(_Node, frozen=True):
    """A definition of a named type, such as `type Age u8`."""

    name: str
    type: Type
    comments: Comments = NO_COMMENTS
    at: SourcePosition = NOWHERE


class Document(_Node, frozen=True):
    """A whole schema: its definitions by name, in the order of the text."""

    definitions: dict[str, Definition]
    closing: tuple[str | None, ...] = ()


def parts(type_: Type) -> tuple[Type, ...]:
    match type_:
        case Optional(item=item) | List(item=item):
            return (item,)
        case Map(key=key, value=value):
            return (key, value)
        case UnionNode(members=members):
            return tuple(member.type for member in members)
        case Struct(fields=fields):
            return tuple(item.type for item in fields)
        case _:
            return ()


def names_in(type_: Type) -> list[Name]:
    if isinstance(type_, Name):
        return [type_]
    return [name for part in parts(type_) for name in names_in(part)]


def is_in_order(definitions: Iterable[Definition]) -> bool:
    """Whether every definition comes after the definitions that it uses. Undefined names are ignored."""
    listed = list(definitions)
    waiting = {definition.name for definition in listed}
    for definition in listed:
        if any(name.name in waiting for name in names_in(definition.type)):
            return False
        waiting.discard(definition.name)
    return True


def in_order(definitions: Mapping[str, Definition]) -> list[Definition]:
    """Sorts definitions so that each comes after the definitions that it uses. The order changes only where needed.

    If types contain each other in a circle, no such order exists. Then some definition comes too early."""
    placed: dict[str, Definition] = {}
    open_names: set[str] = set()
    for root in definitions.values():
        # Use an explicit stack instead of recursion, since a long chain of definitions could exhaust the interpreter's
        # stack.
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
