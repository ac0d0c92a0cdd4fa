"""The errors of this package. Each error has its position (path, offset, or line and column) as attributes.

All public errors are subclasses of `ValueError`, so a caller can catch them without importing this package."""

from __future__ import annotations


class BareError(ValueError):
    """The base class of the errors that a wrong message, a wrong value or a wrong schema text causes."""


class EncodeError(BareError):
    """Error: a value that is to be encoded does not fit its type.

    path: the path from the root value to the wrong value, such as `$.messages[3].data`."""

    def __init__(self, what: str, path: str = "$") -> None:
        super().__init__(what, path)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{self.what} - at {self.path}"


class DecodeError(BareError):
    """Error: the bytes to decode are not a message of the type.

    offset: the offset of the first wrong byte, in bytes from the start of the buffer.
    path: the path from the root value to the value that has the wrong byte.
    need, have: if bytes are missing, how many are needed, and how many there are, from `offset` on; otherwise None."""

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
    """Error: a schema text is wrong.

    line, column: the position of the error, counted from 1. A column is one character."""

    def __init__(self, what: str, line: int, column: int) -> None:
        super().__init__(what, line, column)
        self.what = what
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.what}"


class Irregular(Exception):
    """The exception of compiled codecs for any unusual input. The precise codec then processes the input again."""
