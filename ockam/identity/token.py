"""Token: a secret by which a client proves its name to a node: `sntok_` and 64 hexadecimal digits, 256 random bits.

Programs that look for secrets find tokens by the pattern TOKEN. A token never appears in a log line, an error or a
`repr`."""

from __future__ import annotations

import os
import re
import secrets
import stat
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

PREFIX = "sntok_"
SECRET_BYTES = 32
TOKEN = re.compile(PREFIX + "[0-9a-f]{64}")
_SECRET = re.compile(PREFIX + "[0-9a-fA-F]+")
FILE_BYTES_MAX = 4096
"""The most bytes that are read of a file with a token. A token has 70; the rest can be white space."""


class TokenError(ValueError):
    """Error: a client finds no token, or a text that is no token. The error does not show that text."""


class Token:
    """The token of a client, or the location where the client finds it.

    file: the file with the token; it is read again for each connection, so a new token can be put there.
    variable: the environment variable with the token.

    Both are None if the program gave the text of the token itself. Such a token cannot be pickled, so it cannot get
    into a plan or a cache by accident."""

    __slots__ = ("_piped", "_text", "file", "variable")

    def __init__(
        self, text: str | None = None, *, file: str | os.PathLike[str] | None = None, variable: str = ""
    ) -> None:
        """text: the token itself. Exactly one of the three arguments must be given. Raises TokenError."""
        if (text is not None) + (file is not None) + bool(variable) != 1:
            raise TokenError("a token is given as its text, by a file or by an environment variable; give one of these")
        self._text = None if text is None else _checked(text, "the text that was given")
        self.file = None if file is None else os.fspath(file)
        self.variable = variable or None
        self._piped: str | None = None

    def read(self) -> str:
        """Returns the text of the token. Raises TokenError, which says where the token should be."""
        if self._text is not None:
            return self._text
        if self.variable is not None:
            text = os.environ.get(self.variable)
            if not text:
                raise TokenError(f"there is no token: the environment variable {self.variable} is not set")
            return _checked(text, f"the environment variable {self.variable}")
        assert self.file is not None
        if self._piped is not None:
            return self._piped
        try:
            with Path(self.file).open("rb") as opened:
                found = opened.read(FILE_BYTES_MAX)
                is_file = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
        except OSError as error:
            shown = hide_tokens(self.file)
            if shown != self.file:
                raise TokenError(f"{shown} is a token; write it into a file, and name the file") from None
            raise TokenError(f"cannot read the token file {self.file}: {error.strerror or error}") from error
        text = _checked(found.decode("ascii", "replace"), f"the file {self.file}")
        # A pipe, such as that of `<(…)` in a shell, can be read once only.
        self._piped = None if is_file else text
        return text

    def __repr__(self) -> str:
        if self._text is not None:
            return f"Token({PREFIX}…)"
        return f"Token(file={self.file!r})" if self.file is not None else f"Token(variable={self.variable!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and self._place() == other._place()

    def __hash__(self) -> int:
        return hash(self._place())

    def __reduce__(self) -> tuple[Any, ...]:
        if self._text is not None:
            raise TypeError("the text of a token is not pickled; give Token(file=…) or Token(variable=…)")
        return _at, (self.file, self.variable)

    def __copy__(self) -> Token:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Token:
        return self

    def _place(self) -> tuple[str | None, ...]:
        return self._text, self.file, self.variable


def _at(file: str | None, variable: str | None) -> Token:
    return Token(file=file, variable=variable or "")


def _checked(text: str, where: str) -> str:
    text = text.strip()
    if not TOKEN.fullmatch(text):
        raise TokenError(
            f"{where} is no token: a token is {PREFIX} and 64 hexadecimal digits, as `token create` shows it"
        )
    return text


def hide_tokens(text: str) -> str:
    """Returns a text without the secrets of tokens in it, for example for an error about a setting with a token."""
    return _SECRET.sub(f"{PREFIX}…", text)


def new_token() -> str:
    return PREFIX + secrets.token_hex(SECRET_BYTES)


def is_this_machine(host: str) -> bool:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
