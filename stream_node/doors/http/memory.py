"""RequestMemory counts the bytes that the node holds for one HTTP request, before they are made: for the connection's
identity (else its host), for the caller if a token proves another one, and for the node (`ockam.quotas`).
RequestBody decodes the body of a request, and bounds its size, its time, and the bytes of all bodies of its party."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import trio
from starlette.requests import Request
from starlette.types import Receive

from ockam.quotas.memory import Holdings, PeerMemory
from ockam.quotas.usage import Usage, Usages
from stream_node.doors.http.guard import place_of
from stream_node.doors.http.problems import RETRY, Problem
from stream_node.node.config import Config

READINGS_SHARE = 4
"""The pages that are read at one moment take at most the fraction 1/READINGS_SHARE of the memory for all peers."""


class Readings:
    """The pages that all requests read at present. A request waits until its page fits into their share of the memory.
    Invariant: `size_bytes` is at most this share (1/READINGS_SHARE), or only one page is being read."""

    def __init__(self, memory: PeerMemory) -> None:
        self._memory = memory
        self._turn = trio.StrictFIFOLock()
        self._ended = trio.Event()
        self.size_bytes = 0

    async def begin(self, size_bytes: int) -> None:
        async with self._turn:
            while self.size_bytes and self.size_bytes + size_bytes > self._memory.bytes_max // READINGS_SHARE:
                self._ended = trio.Event()
                await self._ended.wait()
            self.size_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        self.size_bytes -= size_bytes
        self._ended.set()


class RequestMemory:
    """The bytes that the node holds for one request: its body, the data for the answer, and the part being sent.
    Invariant: each of `_counted` and the holdings of the connection count the sum of these three."""

    def __init__(
        self, usages: Usages, holdings: Holdings, key: str, readings: Readings, bodies: Counter[str], *, page_bytes: int
    ) -> None:
        """holdings: those of the connection. key: its party (`party_key`). bodies: by party, the held bytes of bodies.
        page_bytes: the usual size of a page."""
        self._readings = readings
        self.page_bytes = page_bytes
        self._usages = usages
        self._holdings = holdings
        self._keys = [key]
        self._bodies = bodies
        self._counted: list[Usage] = []
        self._total_bytes = 0
        self.body_bytes = self.made_bytes = self.sent_bytes = 0

    def __enter__(self) -> RequestMemory:
        self._holdings.watch(self, self._note_end)
        return self

    def __exit__(self, *exception: object) -> None:
        self.note(body_bytes=0, made_bytes=0, sent_bytes=0)
        self._holdings.unwatch(self)

    def _note_end(self, has_ended: bool) -> None:
        # A connection that is closed to free memory frees it at once. Else all the others would be closed, too.
        if has_ended:
            self._holdings.note_waiting(-self.body_bytes)

    def count_for(self, key: str) -> None:
        if key not in self._keys:
            self._count(0)
            self._keys.append(key)
            self.note()

    async def wait_room(self) -> None:
        """Waits while an identity has more bytes than it may hold. The request holds nothing that others wait for."""
        while (over := self._find_over()) is not None:
            await over.wait_room()

    @asynccontextmanager
    async def making(self, size_bytes: int) -> AsyncIterator[None]:
        """Waits for room for the bytes that the block makes, and counts them until `note` gets their number."""
        self.note(made_bytes=0)
        while True:
            await self.wait_room()
            await self._readings.begin(size_bytes)
            # While this request waited for its turn, its identity may have got more than it may hold.
            if self._find_over() is None:
                break
            self._readings.end(size_bytes)
        try:
            self.note(made_bytes=size_bytes)
            yield
        finally:
            self._readings.end(size_bytes)

    def note(
        self, *, body_bytes: int | None = None, made_bytes: int | None = None, sent_bytes: int | None = None
    ) -> None:
        """Sets the numbers of held bytes from now on. None: that number stays."""
        before_bytes, party = self.body_bytes, self._keys[0]
        self.body_bytes = self.body_bytes if body_bytes is None else body_bytes
        self.made_bytes = self.made_bytes if made_bytes is None else made_bytes
        self.sent_bytes = self.sent_bytes if sent_bytes is None else sent_bytes
        self._count(self.body_bytes + self.made_bytes + self.sent_bytes)
        if self.body_bytes != before_bytes:
            self._bodies[party] += self.body_bytes - before_bytes
            if not self._bodies[party]:
                del self._bodies[party]
        # Last, because this may end the connections that hold most, even this one.
        self._holdings.note_waiting(0 if self._holdings.has_ended else self.body_bytes - before_bytes)
        self._holdings.note(0, self.made_bytes + self.sent_bytes)

    @property
    def party_body_bytes(self) -> int:
        """The bytes of all bodies that the node holds for the party of the connection."""
        return self._bodies[self._keys[0]]

    def _count(self, total_bytes: int) -> None:
        # An identity that uses nothing may be forgotten, so it is looked up when something is counted again.
        if not self._total_bytes:
            self._counted = self._find()
        for usage in self._counted:
            usage.hold(total_bytes - self._total_bytes)
        self._total_bytes = total_bytes

    def _find_over(self) -> Usage | None:
        return next((each for each in self._find() if each.counts_bytes and each.is_over), None)

    def _find(self) -> list[Usage]:
        return [self._usages.get(key, trio.current_time()) for key in self._keys]


DISCARD_BYTES_MAX = 1024 * 1024
"""How much of an unread body is read before the answer: a peer that still sends may lose its answer."""
DISCARD_S_MAX = 1.0
WHOLE_PARTS = 10
"""A whole body must come within this many times the longest time for one part of it (`http_body_timeout_s`)."""
LARGEST_BODIES_PARTY_MAX = 4
"""The node holds at most this many of the largest bodies for one party: an identity, or a host without identity."""
GZIP = ("gzip", "x-gzip")
"""The names of the one coding of bodies that is decoded (RFC 9110, section 8.4.1.3)."""
GZIP_BITS = 31
"""The window of `zlib` for gzip: the largest one, with the head and the checksum of gzip."""
DECODED_BYTES = 64 * 1024
"""At most this many bytes are decoded before they are counted."""
MEMBERS_MAX = 1_000
"""A body in gzip has at most this many members. Each one takes time, however few bytes it has."""


class RequestBody:
    """Receives the parts of a body, whose bytes `memory` counts until the end of the request.
    is_complete: whether all of the body was received, or the peer has gone."""

    def __init__(self, request: Request, receive: Receive, config: Config, memory: RequestMemory) -> None:
        self._receive = receive
        self._on_complete = place_of(request).note_received
        # Whether the sender waits until its body is wanted.
        self._is_on_demand = request.headers.get("expect", "").lower() == "100-continue"
        self._coding = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
        self._decoder = _Gunzip() if self._coding in GZIP else None
        # The largest body, also after decoding, and the longest time until its next part.
        self._bytes_max, self._part_s = config.http_body_bytes_max, config.http_body_timeout_s
        self._memory = memory
        self._until_s = trio.current_time() + WHOLE_PARTS * self._part_s
        self.size_bytes = 0
        self.is_complete = False
        self._first: Any = None
        self._completed = trio.Event()
        self._gone = trio.Event()

    async def receive(self) -> Any:
        """Returns the next event. Raises Problem if the body is too large or slow, or too many bytes are held."""
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
        part = event.get("body", b"")
        # Only a request that holds no bytes yet waits here, so nobody waits for bytes of a waiting request.
        if part and not self._memory.body_bytes:
            await self._memory.wait_room()
        if self._decoder is None:
            self._hold(len(part))
        elif event["type"] == "http.request":
            event["body"] = self._decoded(part, is_last=not event.get("more_body", False))
        return event

    def _hold(self, size_bytes: int) -> None:
        if self._memory.party_body_bytes + size_bytes > LARGEST_BODIES_PARTY_MAX * self._bytes_max:
            detail = "the requests under way of this identity or host have too many bytes; send fewer at a time"
            raise Problem(503, "too-many-bodies", detail, headers=RETRY)
        self._memory.note(body_bytes=self._memory.body_bytes + size_bytes)

    def _decoded(self, part: bytes, *, is_last: bool) -> bytes:
        """Returns the decoded bytes of a part. They can be a thousand times as many, so small pieces are counted."""
        assert self._decoder is not None, "called with gzip only"
        pieces = []
        for piece in self._decoder.feed(part):
            self._hold(len(piece))
            if self._memory.body_bytes > self._bytes_max:
                raise self.too_large()
            pieces.append(piece)
        if is_last and self.size_bytes and not self._decoder.is_complete:
            raise Problem(400, "invalid-request", "the body is no gzip, or its end is missing; nothing is stored")
        return b"".join(pieces)

    async def read_ahead(self) -> None:
        """Receives the first event of a request that needs no body, so that `watch` sees the end of the connection."""
        self._first = await self.receive()

    async def watch(self, scope: trio.CancelScope) -> None:
        """Cancels the scope when the peer has gone. This can be seen only after the whole body has come."""
        await self._completed.wait()
        while not self._gone.is_set():
            self._note(await self._receive())
        scope.cancel()

    def check_announced(self, length: str | None) -> None:
        """Raises Problem if the headers announce a body that is too large, or in a coding that is not decoded."""
        if self._coding not in ("", "identity", *GZIP):
            detail = f"bodies are sent as they are or in gzip, not in {self._coding[:80]}; leave out Content-Encoding"
            raise Problem(415, "unsupported-coding", detail, headers={"Accept-Encoding": "gzip"})
        if length is not None and length.isdecimal() and int(length) > self._bytes_max:
            raise self.too_large()

    def too_large(self) -> Problem:
        detail = f"the body is larger than {self._bytes_max} bytes (http_body_bytes_max); send it in several requests"
        return Problem(413, "body-too-large", detail)

    async def discard_some(self) -> None:
        # A sender that still waits would send its body for nothing.
        if self._is_on_demand:
            return
        until_bytes = self.size_bytes + DISCARD_BYTES_MAX
        with trio.move_on_after(DISCARD_S_MAX):
            while not self.is_complete and self.size_bytes < until_bytes:
                await self._next()

    async def _next(self) -> Any:
        self._is_on_demand = False
        event = await self._receive()
        self._note(event)
        return event

    def _note(self, event: Any) -> None:
        self.size_bytes += len(event.get("body", b""))
        is_gone = event["type"] != "http.request"
        if is_gone:
            self._gone.set()
        if is_gone or not event.get("more_body", False):
            if not self.is_complete:
                self._on_complete()
            self.is_complete = True
            self._completed.set()


class _Gunzip:
    """Decodes gzip. is_complete: whether the bytes so far are whole members of gzip, at least one."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=GZIP_BITS)
        self._members = 1
        self.is_complete = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decodes more bytes, in pieces of up to DECODED_BYTES. Raises Problem if they are no gzip."""
        while data:
            if self._member.eof:
                # gzip files that follow each other are one file.
                self._members += 1
                if self._members > MEMBERS_MAX:
                    detail = f"the body has more than {MEMBERS_MAX:,} members of gzip; compress it as one"
                    raise Problem(400, "invalid-request", detail)
                self._member = zlib.decompressobj(wbits=GZIP_BITS)
            try:
                piece = self._member.decompress(data, DECODED_BYTES)
            except zlib.error as error:
                raise Problem(400, "invalid-request", f"the body is no gzip: {error}; nothing is stored") from error
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            self.is_complete = self._member.eof
            yield piece


async def read_small(request: Request, bytes_max: int) -> bytes:
    """Returns a body of a few members or fields. Raises Problem if it is larger."""
    body = bytearray()
    async with aclosing(request.stream()) as parts:
        async for part in parts:
            body += part
            if len(body) > bytes_max:
                detail = f"the body has at most {bytes_max:,} bytes here; send a smaller one"
                raise Problem(413, "body-too-large", detail)
    return bytes(body)
