"""The commands of a transaction that wait for the next trip to the server."""

from __future__ import annotations


class Unsent:
    """Commands that are not sent yet, in their order. Invariant: a COPY with its rows is the last one, so that it can
    be sent with the commands before it."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._payload: bytes | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    @property
    def has_rows(self) -> bool:
        """Whether the last command is a COPY, so that no further one can be added."""
        return self._payload is not None

    def add(self, text: bytes, payload: bytes | None = None) -> None:
        assert self._payload is None, "nothing follows a COPY"
        self._texts.append(text)
        self._payload = payload

    def take(self, *last: bytes) -> tuple[bytes, bytes | None]:
        """Returns and forgets the text of all commands, with `last`, which may follow a COPY, and the rows of the
        COPY."""
        text, payload = b"; ".join([*self._texts, *last]), self._payload
        self.clear()
        return text, payload

    def clear(self) -> None:
        self._texts.clear()
        self._payload = None
