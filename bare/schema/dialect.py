"""Dialect: which syntax and which rules apply to a schema text. `parser` has the syntax, and `check` has the rules.

- `current`: the rules of drafts -12 and later. Names are defined before their use, types do not contain themselves,
  tags ascend, and only the current spelling is accepted.
- `legacy`: current and older spelling (`[]T`, `(A | B)`, `string`, `{ .. }`, `enum X { .. }`, `struct X { .. }`).
  Names and tags can be in any order, and types can contain themselves if they have a finite value. The stream
  specification is written in this dialect.
- `auto`: texts of either kind. It is the same as `legacy`, because the legacy rules accept every current text with
  the same meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bare.schema.ast import Definition, Document
from bare.schema.check import check
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
    check(document, known, older=older, pedantic=pedantic)
    return document
