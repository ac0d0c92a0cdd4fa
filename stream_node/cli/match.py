"""Match: what somebody looks for in messages. It reads no messages itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stream_client import RichMessage

LOOKED_MAX = 10_000
"""The number of messages that a search looks at unless it is told another one. A stream may have no end."""


class Match(NamedTuple):
    """What a message must have: a text in its key, a header with a text in its value, and a text in its data. An empty
    text asks for nothing, and an empty name of a header for any header. Bytes are compared as they are stored; A is
    not a."""

    key: bytes = b""
    header: str = ""
    header_value: bytes = b""
    data: bytes = b""

    @classmethod
    def of(cls, key: str | None, header: str | None, data: str | None) -> Match | None:
        """Returns what three texts of a user ask for; None if they ask for nothing. header: NAME or NAME=TEXT."""
        if not (key or header or data):
            return None
        name, _, value = (header or "").partition("=")
        return cls((key or "").encode(), name, value.encode(), (data or "").encode())

    def fits(self, message: RichMessage) -> bool:
        return (
            (not self.key or self.key in (message.key or b""))
            and self.data in message.data
            and (
                not (self.header or self.header_value)
                or any(self.header in ("", each.name) and self.header_value in each.value for each in message.headers)
            )
        )
