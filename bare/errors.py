"""The errors of this package. Each error has its position (path, offset, or line and column) as attributes.

All errors are subclasses of `ValueError`, so a caller that catches errors of bad values need not know BARE.
"""

from __future__ import annotations


class BareError(ValueError):
    """The base class of every error that a message, a value or a schema text can cause."""


class EncodeError(BareError):
    """The error of encoding a value that does not fit its type.

    path: the path from the root value to the wrong value, such as `$.messages[3].data`.
    """

    def __init__(self, what: str, path: str = "$") -> None:
        super().__init__(what, path)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{self.what} - at {self.path}"


class DecodeError(BareError):
    """The error of decoding bytes that are not a message of the type.

    offset: the offset of the first wrong byte, in bytes from the start of the buffer. path: the path from the root
    value to the value that has the wrong byte. need, have: if bytes are missing, the needed and the present number of
    bytes from `offset` on; else None.
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
    """The error of reading a wrong schema text.

    line, column: the place of the error, counted from 1. A column is one character.
    """

    def __init__(self, what: str, line: int, column: int) -> None:
        super().__init__(what, line, column)
        self.what = what
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.what}"


class Irregular(Exception):
    """The exception that compiled codecs raise for any unusual input. It never leaves this package.

    It has no attributes: the precise codec processes the same input again, and finds the error and its place.
    """
