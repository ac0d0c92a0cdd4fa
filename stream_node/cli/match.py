"""Match: the condition of a search for messages. It reads no messages itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stream_client import RichMessage

LOOKED_MAX = 10_000
"""The number of messages that a search reads by default. A stream may have no end."""


class Match(NamedTuple):
    """The bytes that a message must have in its key, a header and its data. An empty text fits everything."""

    key: bytes = b""
    header: str = ""
    header_value: bytes = b""
    data: bytes = b""

    @classmethod
    def of(cls, key: str | None, header: str | None, data: str | None) -> Match | None:
        """Returns the condition of a user's three texts; None if all are empty. header: NAME or NAME=TEXT."""
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
