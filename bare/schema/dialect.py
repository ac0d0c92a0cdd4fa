"""Chooses the syntax and rules that a schema text is read with. The reading is in `parser`, the rules are in
`check`.

- `current`: drafts -12 on. Names before use, no recursion, ascending tags, current spelling. - `legacy`:
current and older spelling (`[]T`, `(A | B)`, `string`, `type X { .. }`, `enum X { .. }`), names in any order,
  recursion that can end, tags in any order. The stream specification is written so.
- `auto`: whatever either of them takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bare.errors import SchemaError
from bare.schema.ast import Definition, Document
from bare.schema.check import check
from bare.schema.parser import parse_text

Dialect = Literal["auto", "current", "legacy"]


def parse(text: str, dialect: Dialect = "auto", *, pedantic: bool = False, line: int = 1) -> Document:
    """The checked definitions of a schema text, whose first line is number `line` in errors. Raises
    SchemaError.

    `pedantic` wants every enum value and union tag written out.
    """
    return parse_with(text, {}, dialect, pedantic=pedantic, line=line)


def parse_with(
    text: str, known: Mapping[str, Definition], dialect: Dialect, *, pedantic: bool = False, line: int = 1
) -> Document:
    """As `parse`, for a text that may use the definitions of `known`."""
    if dialect not in ("auto", "current", "legacy"):
        raise ValueError(f"dialect must be auto, current or legacy, not {dialect!r}")
    if dialect == "auto":
        try:
            return parse_with(text, known, "current", pedantic=pedantic, line=line)
        except SchemaError as error:
            return _parse_legacy_instead(error, text, known, pedantic, line)
    document = parse_text(text, dialect, line)
    check(document, known, older=dialect == "legacy", pedantic=pedantic)
    return document


def _parse_legacy_instead(
    error: SchemaError, text: str, known: Mapping[str, Definition], pedantic: bool, line: int
) -> Document:
    """Reads as legacy what is not current. If both fail, the one that came further knows better."""
    try:
        return parse_with(text, known, "legacy", pedantic=pedantic, line=line)
    except SchemaError as other:
        if (other.line, other.column) > (error.line, error.column):
            raise other from None
    raise error
