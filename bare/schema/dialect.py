"""Parses a schema text, and checks its meaning: names, numbers, map keys, the use of void, and recursive types. The
dialect says which syntax (`parser`) and which rules apply.

- `current`: the rules of drafts -12 and later. Names are defined before their use, types do not contain themselves,
  tags ascend, and only the current spelling is accepted.
- `legacy`: current and older spelling (`[]T`, `(A | B)`, `string`, `{ .. }`, `enum X { .. }`, `struct X { .. }`).
  Names and tags can be in any order, and types can contain themselves if they have a finite value. The stream
  specification is written in this dialect.
- `auto`: texts of either kind. It is the same as `legacy`, because the legacy rules accept every current text with
  the same meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from bare.errors import SchemaError
from bare.model import UINT_MAX
from bare.schema import ast
from bare.schema.ast import Definition, Document, SourcePosition, Type, in_order, names_in, parts
from bare.schema.parser import parse_text

Dialect = Literal["auto", "current", "legacy"]
"""The syntax and rules of a schema text: "current" for drafts -12 and later, "legacy" or "auto" for older ones too."""


def parse(text: str, dialect: Dialect = "auto", *, pedantic: bool = False, line: int = 1) -> Document:
    """Returns the checked definitions of a schema text. Raises SchemaError.

    pedantic: require that the text states every enum value and union tag.
    line: the number of the text's first line, for errors."""
    return parse_with(text, {}, dialect, pedantic=pedantic, line=line)


def parse_with(
    text: str, known: Mapping[str, Definition], dialect: Dialect, *, pedantic: bool = False, line: int = 1
) -> Document:
    """Returns the checked definitions of a schema text that can use the definitions in `known`. See `parse`."""
    if dialect not in ("auto", "current", "legacy"):
        raise ValueError(f"dialect must be auto, current or legacy, not {dialect!r}")
    older = dialect != "current"
    document = parse_text(text, older, line)
    checker = _Checker(document.definitions, known, older, pedantic)
    checker.names()
    checker.endless()
    for definition in document.definitions.values():
        checker.type(definition.type)
    return document


class _Checker:
    """The check of one schema. Call `names`, `endless` and `type` in this order: each relies on those before it. A
    method raises SchemaError for the first mistake.

    older: allow what drafts before -06 allowed: names used before their definition, types that contain themselves, and
    values and tags out of order."""

    def __init__(
        self, definitions: Mapping[str, Definition], known: Mapping[str, Definition], older: bool, pedantic: bool
    ) -> None:
        self._own = definitions
        self._all = {**known, **definitions}
        self._known = known
        self._older = older
        self._pedantic = pedantic

    def names(self) -> None:
        """Checks that every used name is defined. In the current dialect, the definition must come before the use."""
        before: set[str] = set(self._known) - set(self._own)
        for definition in self._own.values():
            for name in names_in(definition.type):
                if name.name not in self._all:
                    raise _error(f"{name.name} is not defined", name.at)
                if not self._older and name.name == definition.name:
                    raise _error(f"{name.name} contains itself, which only older drafts allow (legacy)", name.at)
                if not self._older and name.name not in before:
                    raise _error(
                        f"{name.name} is used before its definition: move that up, or read it as legacy",
                        name.at,
                    )
            before.add(definition.name)

    def endless(self) -> None:
        """Checks that every type has a finite value."""
        finite: set[str] = set(self._known) - set(self._own)
        ordered = in_order(self._own)
        # A type is finite if `_blocking` finds no name in it. A new finite type can make others finite, so the search
        # is repeated until it finds no new finite type.
        grown = True
        while grown:
            grown = False
            for definition in ordered:
                if definition.name not in finite and _blocking(definition.type, finite) is None:
                    finite.add(definition.name)
                    grown = True
        # For the error, the circle of types is followed to where it closes.
        for definition in self._own.values():
            blocking = _blocking(definition.type, finite)
            seen = {definition.name}
            while blocking is not None:
                if blocking.name in seen:
                    what = f"{blocking.name} contains itself without end: make it optional, a list or a map here"
                    raise _error(what, blocking.at)
                seen.add(blocking.name)
                blocking = _blocking(self._own[blocking.name].type, finite)

    def type(self, type_: Type) -> None:
        match type_:
            case ast.Enum(members=members):
                _check_some("an enum must have at least one member", type_, members)
                _check_unique("member", members)
                self._numbers("value", [(member.value, member.stated, member.at) for member in members])
            case ast.UnionNode(members=members):
                _check_some("a union must have at least one member", type_, members)
                types: set[Type] = set()
                for member in members:
                    if member.type in types:
                        raise _error("a type is a member twice: give one of them a name of its own", member.at)
                    types.add(member.type)
                self._numbers("tag", [(member.tag, member.stated, member.at) for member in members])
            case ast.Struct(fields=fields):
                _check_some("a struct must have at least one field", type_, fields)
                _check_unique("field", fields)
            case ast.Map(key=key):
                kind = self._resolved(key)
                is_plain = isinstance(kind, ast.Primitive) and kind.name not in ("f32", "f64", "void")
                if not is_plain and not isinstance(kind, ast.Enum | ast.FixedData):
                    raise _error("the key of a map must be an enum or a primitive, not f32, f64 or void", key.at)
        for part in parts(type_):
            if not isinstance(type_, ast.UnionNode) and self._resolved(part) == ast.Primitive("void"):
                raise _error("void may only be a member of a union, or a whole message", part.at)
            self.type(part)

    def _resolved(self, type_: Type) -> Type:
        while isinstance(type_, ast.Name):
            type_ = self._all[type_.name].type
        return type_

    def _numbers(self, what: str, numbers: list[tuple[int, bool, SourcePosition]]) -> None:
        seen: set[int] = set()
        last = -1
        for number, stated, at in numbers:
            if number > UINT_MAX:
                raise _error(f"{what} {number}, which follows from the one before, has more than 64 bits", at)
            if number in seen:
                raise _error(f"{what} {number} is used twice", at)
            if number < last and not self._older:
                raise _error(f"{what} {number} follows {last}: they must ascend", at)
            if self._pedantic and not stated:
                raise _error(f"the {what} must be written out: add `= {number}`", at)
            seen.add(number)
            last = number


def _check_some(what: str, type_: Type, parts_of_it: Sequence[object]) -> None:
    if not parts_of_it:
        raise _error(what, type_.at)


def _check_unique(what: str, items: Sequence[ast.EnumMember] | Sequence[ast.Field]) -> None:
    names: set[str] = set()
    for item in items:
        if item.name in names:
            raise _error(f"{item.name} is a {what} twice: names are unique", item.at)
        names.add(item.name)


def _blocking(type_: Type, finite: set[str]) -> ast.Name | None:
    """Returns the first name that prevents a type from having a finite value, or None."""
    match type_:
        case ast.Name():
            return None if type_.name in finite else type_
        case ast.UnionNode(members=members):
            each = [_blocking(member.type, finite) for member in members]
            return None if not each or None in each else each[0]
        case ast.Struct() | ast.List(length=int()):
            return next((name for part in parts(type_) if (name := _blocking(part, finite)) is not None), None)
        case _:
            return None


def _error(what: str, at: SourcePosition) -> SchemaError:
    return SchemaError(what, at.line, at.column)
