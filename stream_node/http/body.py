"""RequestBody: the body of one HTTP request, bounded in size and in time."""

from __future__ import annotations

from typing import Any

import trio
from starlette.types import Receive

from stream_node.http.problems import Problem

DISCARD_BYTES_MAX = 1024 * 1024
"""If an endpoint does not read the body, at most this many of its bytes are read before the answer is sent. A peer that
is still sending when the connection is closed may lose the answer."""
DISCARD_S_MAX = 1.0
"""The longest time for reading such bytes, in seconds."""


class RequestBody:
    """Receives the parts of a body. `receive` is that of ASGI.

    size_bytes: the bytes received so far. is_complete: whether all of the body was received, or the peer has gone.
    """

    def __init__(self, receive: Receive, *, bytes_max: int, part_s: float) -> None:
        """bytes_max: the largest body. part_s: the longest time until the next part, in seconds."""
        self._receive = receive
        self._bytes_max = bytes_max
        self._part_s = part_s
        self.size_bytes = 0
        self.is_complete = False
        self._first: Any = None
        self._completed = trio.Event()
        self._gone = trio.Event()

    async def receive(self) -> Any:
        """Returns the next event. Raises Problem if the body is too large or too slow."""
        if self._first is not None:
            event, self._first = self._first, None
            return event
        # After the body, the only event is the end of the connection, which may come much later.
        if self.is_complete:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        with trio.move_on_after(self._part_s) as scope:
            event = await self._next()
        if scope.cancelled_caught:
            detail = (
                f"the next part of the body did not come within {self._part_s:g} s (http_body_timeout_s); send faster"
            )
            raise Problem(408, "body-timeout", detail)
        if self.size_bytes > self._bytes_max:
            raise self.too_large()
        return event

    async def read_ahead(self) -> None:
        """Receives the first event of a request that needs no body, so that `watch` sees the end of the connection."""
        self._first = await self.receive()

    async def watch(self, scope: trio.CancelScope) -> None:
        """Cancels the scope when the peer has gone. Until all of the body was received, this cannot be seen."""
        await self._completed.wait()
        while not self._gone.is_set():
            self._note(await self._receive())
        scope.cancel()

    def check_announced(self, length: str | None) -> None:
        """Raises Problem if the header Content-Length announces a body that is too large."""
        if length is not None and length.isdecimal() and int(length) > self._bytes_max:
            raise self.too_large()

    def too_large(self) -> Problem:
        detail = f"the body is larger than {self._bytes_max} bytes (http_body_bytes_max); send it in several requests"
        return Problem(413, "body-too-large", detail)

    async def discard_some(self) -> None:
        """Reads some of the rest of the body and drops it, before an answer is sent."""
        until_bytes = self.size_bytes + DISCARD_BYTES_MAX
        with trio.move_on_after(DISCARD_S_MAX):
            while not self.is_complete and self.size_bytes < until_bytes:
                await self._next()

    async def discard(self) -> None:
        """Reads the rest of the body and drops it, while the answer is sent."""
        while not self.is_complete:
            await self._next()

    async def _next(self) -> Any:
        event = await self._receive()
        self._note(event)
        return event

    def _note(self, event: Any) -> None:
        self.size_bytes += len(event.get("body", b""))
        is_gone = event["type"] != "http.request"
        if is_gone:
            self._gone.set()
        if is_gone or not event.get("more_body", False):
            self.is_complete = True
            self._completed.set()
