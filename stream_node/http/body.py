"""RequestBody: the body of one HTTP request, bounded in size and in time. BodyMemory bounds all bodies together."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from typing import Any

import trio
from starlette.requests import Request
from starlette.types import Receive

from stream_node.http.problems import RETRY, Problem

DISCARD_BYTES_MAX = 1024 * 1024
"""If an endpoint does not read the body, at most this many of its bytes are read before the answer is sent. A peer that
is still sending when the connection is closed may lose the answer."""
DISCARD_S_MAX = 1.0
"""The longest time for reading such bytes, in seconds."""
WHOLE_PARTS = 10
"""A whole body must come within this many times the longest time until its next part."""
LARGEST_BODIES_MAX = 16
"""The node holds at most as many bytes of bodies as this many bodies of the largest size have."""
LARGEST_BODIES_PARTY_MAX = 4
"""The same for one party: one identity, or one host without an identity."""


class BodyMemory:
    """Counts the bytes of the bodies that the node holds: in all, and for each party.

    Invariant: `size_bytes` is the sum of what each party holds, and no party is listed that holds nothing.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._held: Counter[str] = Counter()

    def hold(self, party: str, size_bytes: int, body_bytes_max: int) -> None:
        """Counts more bytes for a party. Raises Problem, and counts nothing, if it or all together hold too many.

        body_bytes_max: the size of the largest body.
        """
        if self._held[party] + size_bytes > LARGEST_BODIES_PARTY_MAX * body_bytes_max:
            self._check_empty(party)
            detail = "the requests under way of this identity or host have too many bytes; send fewer at a time"
            raise Problem(503, "too-many-bodies", detail, headers=RETRY)
        if self.size_bytes + size_bytes > LARGEST_BODIES_MAX * body_bytes_max:
            self._check_empty(party)
            detail = "the requests under way at this node have too many bytes; send the request again"
            raise Problem(503, "too-many-bodies", detail, headers=RETRY)
        self._held[party] += size_bytes
        self.size_bytes += size_bytes
        self._check_empty(party)

    def give_back(self, party: str, size_bytes: int) -> None:
        self._held[party] -= size_bytes
        self.size_bytes -= size_bytes
        self._check_empty(party)

    def _check_empty(self, party: str) -> None:
        if not self._held[party]:
            del self._held[party]


class RequestBody:
    """Receives the parts of a body. `receive` is that of ASGI. A context manager: the body's bytes are held until the
    end of the block.

    size_bytes: the bytes received so far. is_complete: whether all of the body was received, or the peer has gone.
    """

    def __init__(self, receive: Receive, *, bytes_max: int, part_s: float, memory: BodyMemory, party: str) -> None:
        """bytes_max: the largest body. part_s: the longest time until the next part, in seconds. party: who sends it,
        as `ockam.usage.party_key` names it."""
        self._receive = receive
        self._bytes_max = bytes_max
        self._part_s = part_s
        self._memory = memory
        self._party = party
        self._held_bytes = 0
        self._until_s = trio.current_time() + WHOLE_PARTS * part_s
        self.size_bytes = 0
        self.is_complete = False
        self._first: Any = None
        self._completed = trio.Event()
        self._gone = trio.Event()

    def __enter__(self) -> RequestBody:
        return self

    def __exit__(self, *exception: object) -> None:
        self._memory.give_back(self._party, self._held_bytes)
        self._held_bytes = 0

    async def receive(self) -> Any:
        """Returns the next event. Raises Problem if the body is too large or too slow, or if the node holds too many
        bytes of bodies already."""
        if self._first is not None:
            event, self._first = self._first, None
            return event
        # After the body, the only event is the end of the connection, which may come much later.
        if self.is_complete:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        with trio.move_on_at(min(self._until_s, trio.current_time() + self._part_s)) as scope:
            event = await self._next()
        if scope.cancelled_caught:
            detail = (
                f"the next part of the body did not come within {self._part_s:g} s (http_body_timeout_s), or the whole "
                f"body within {WHOLE_PARTS * self._part_s:g} s; send faster"
            )
            raise Problem(408, "body-timeout", detail)
        if self.size_bytes > self._bytes_max:
            raise self.too_large()
        part_bytes = len(event.get("body", b""))
        self._memory.hold(self._party, part_bytes, self._bytes_max)
        self._held_bytes += part_bytes
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


async def read_small(request: Request, bytes_max: int) -> bytes:
    """Returns the body of a request that has only a few members or fields. Raises Problem if it is larger."""
    body = bytearray()
    async with aclosing(request.stream()) as parts:
        async for part in parts:
            body += part
            if len(body) > bytes_max:
                detail = f"the body has at most {bytes_max:,} bytes here; send a smaller one"
                raise Problem(413, "body-too-large", detail)
    return bytes(body)
