"""The errors of this package. They carry positions as attributes; nothing here formats a position for a
terminal.

All are `ValueError`s: a caller that guards against bad values catches them without knowing BARE.
"""

from __future__ import annotations


class BareError(ValueError):
    """Base of every error that a message, a value or a schema text can cause."""


class EncodeError(BareError):
    """A value does not fit its type. `path` leads to it from the root, as `$.messages[3].data`."""

    def __init__(self, what: str, path: str = "$") -> None:
        super().__init__(what, path)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{self.what} - at {self.path}"


class DecodeError(BareError):
    """Bytes are not a message of the type.

    `offset` is in bytes from the start of the buffer and names the first byte of the irregular thing; `path`
    leads to the value it belongs to. `need` and `have` (bytes, counted from `offset`) are set when bytes are
    missing, else None.
    """

    def __init__(
        self, what: str, offset: int, path: str = "$", need: int | None = None, have: int | None = None
    ) -> None:
        super().__init__(what, offset, path, need, have)
        self.what = what
        self.offset = offset
        self.path = path
        self.need = need
        self.have = have

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset}, {self.path}"


class SchemaError(BareError):
    """A schema text is wrong. `line` and `column` count from 1; a column is one character."""

    def __init__(self, what: str, line: int, column: int) -> None:
        super().__init__(what, line, column)
        self.what = what
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.what}"


class Irregular(Exception):
    """Raised by compiled codecs for anything unusual; never leaves this package.

    It carries nothing: the precise codec goes over the same input again and finds out what was wrong and
    where.
    """
