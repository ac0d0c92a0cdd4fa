"""Bytes of one connection in, routed messages out; and back. It does not read sockets.

Frames are taken in runs: everything complete in one read comes out in one call. Routes repeat on a connection, so the
bytes of a frame's header are looked up before they are decoded: first the header of the frame before, then the other
headers seen. Both headers are self-delimiting (see `Wire.decode_routes`), so the shortcut cannot change what is read;
sizes repeat too, so a frame as long as the one before that has the same bytes around its payload is not decoded at all.
`tests/ockam/test_frames.py` shows both equal to the plain path on any bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from ockam.address import Route
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.generation_cache import GenerationCache
from ockam.message import Message, Origin
from ockam.wire import Wire

KNOWN_HEADER_BYTES_MAX = 512
"""A header longer than this is decoded every time: real ones take some tens of bytes."""
KNOWN_SIZES_MAX = 8
"""How many sizes of headers it remembers, since each is one more look-up; real peers use two or three."""
KNOWN_PAYLOAD_SIZES_MAX = 64
"""How many sizes of payload a writer remembers with a header; then it begins anew with that header."""
ENTRY_BYTES = 500
"""What a remembered header takes beside its bytes, by measurement: routes, addresses, dict entries."""
PIECES_BYTES = 120
"""The same of the pieces of one size of payload."""


Pieces: TypeAlias = dict[int, tuple[bytes, bytes]]
"""What stands before and behind payloads in a frame, by the payload's size."""


class Header(NamedTuple):
    """A header seen on this connection: its bytes, and the routes that they mean."""

    raw: bytes
    onward_route: Route
    return_route: Route


class BadFrame(RemoteProtocolError):
    """A frame that cannot be read. messages: the messages of the frames before it, which are good."""

    def __init__(self, error: RemoteProtocolError, messages: tuple[Message, ...]) -> None:
        super().__init__(error.kind, str(error))
        self.messages = messages


class FrameReader:
    """Splits a byte stream into frames and decodes them.

    prefix: addresses that a message's return route gets in front on the way in (the connection itself), by the hop
    rules of facts/ockam.md §1.
    Invariant: `_parts` together are less than the frame they begin, which needs `_need` bytes.
    """

    def __init__(self, wire: Wire, origin: Origin, prefix: Route = ()) -> None:
        self._wire = wire
        self._origin = origin
        self._prefix = prefix
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._need = wire.length_bytes
        self._known = GenerationCache[bytes, Header](_header_bytes)
        self._known_sizes: list[int] = []
        self._last: Header | None = None

    @property
    def known_bytes(self) -> int:
        """What the remembered headers take in memory, by estimate."""
        return self._known.size_bytes

    def forget(self) -> None:
        """Give that memory back."""
        self._known.forget()
        self._known_sizes.clear()
        self._last = None

    @property
    def waiting_bytes(self) -> int:
        """How much of a frame has come without its end; 0 between frames."""
        return self._waiting_bytes

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that are complete now; heartbeats and zero-length frames are skipped. Raises BadFrame."""
        self._parts.append(chunk)
        self._waiting_bytes += len(chunk)
        if self._waiting_bytes < self._need:
            return []
        data = b"".join(self._parts) if len(self._parts) > 1 else chunk
        found: list[Message] = []
        try:
            at = self._take_frames(data, found)
        except RemoteProtocolError as error:
            raise BadFrame(error, tuple(found)) from error
        self._parts = [data[at:]] if at < len(data) else []
        self._waiting_bytes = len(data) - at
        return found

    def _take_frames(self, data: bytes, found: list[Message]) -> int:
        """Append the messages of all whole frames to `found`; return where the first frame that is not whole begins."""
        wire, origin, append, have = self._wire, self._origin, found.append, len(data)
        width, size_max, decode_payload = wire.length_bytes, wire.receive_bytes_max, wire.decode_payload
        known = self._known.young
        raw: bytes | None = None
        onward_route: Route = ()
        return_route: Route = ()
        if self._last is not None:
            raw, onward_route, return_route = self._last
        body_before, same_size, same_body, same_kind = -1, -1, -1, -1
        head = around = tail = b""
        head_bytes = tail_bytes = at = 0
        while have - at >= width:
            start = at + width
            size = int.from_bytes(data[at:start], "big")
            if size > size_max:
                raise RemoteProtocolError("oversized", f"a frame of {size} bytes; this framing allows {size_max}")
            end = start + size
            if end > have:
                self._need = width + size
                return at
            at = end
            if size == same_size and data.startswith(head, start) and data.startswith(tail, end - tail_bytes):
                if onward_route:
                    append(Message(onward_route, return_route, data[start + head_bytes : end - tail_bytes], origin))
                continue
            if raw is None or not data.startswith(raw, start, end):
                if not size:
                    continue
                seen = known.get(data[start : start + len(raw)]) if raw is not None and len(raw) <= size else None
                if seen is None:
                    seen = self._header(data, start, end)
                    known = self._known.young
                raw, onward_route, return_route = seen
            begin = start + len(raw)
            body = end - begin
            if (
                body == same_body
                and data[start] == same_kind
                and data.startswith(around, begin)
                and data.startswith(tail, end - tail_bytes)
            ):
                # Another header of the same kind in front of what is known: a client that sends along many routes.
                payload = data[begin + len(around) : end - tail_bytes]
                same_size, head = size, raw + around
                head_bytes = len(head)
            else:
                payload = decode_payload(data, start, begin, end)
                if body == body_before:
                    around, tail = wire.around_payload(len(payload))
                    tail_bytes = len(tail)
                    # Only a body with nothing but these bytes around its payload tells how another of its size is read.
                    plain = body == len(around) + len(payload) + tail_bytes
                    plain = plain and data.startswith(around, begin) and data.endswith(tail, begin, end)
                    same_body, same_kind = (body, data[start]) if plain else (-1, -1)
                same_size = -1
                body_before = body
            if onward_route:
                append(Message(onward_route, return_route, payload, origin))
        self._need = width
        return at

    def _header(self, data: bytes, start: int, end: int) -> Header:
        """The header of the body `data[start:end]`, from memory where it was seen before."""
        for size in self._known_sizes:
            raw = data[start : start + size]
            seen = self._known.young.get(raw) or self._known.recall(raw)
            if seen is not None and start + size <= end:
                self._last = seen
                return seen
        onward_route, return_route, at = self._wire.decode_routes(data, start, end)
        header = Header(data[start:at], onward_route, self._prefix + return_route)
        if len(header.raw) > KNOWN_HEADER_BYTES_MAX:
            return header
        self._last = header
        if len(self._known_sizes) >= KNOWN_SIZES_MAX and len(header.raw) not in self._known_sizes:
            self._known.forget()
            self._known_sizes.clear()
        self._known.add(header.raw, header)
        if len(header.raw) not in self._known_sizes:
            self._known_sizes.append(len(header.raw))
        return header


class FrameHeads:
    """What stands before and behind a payload in a frame: length, header, head; and tail. By header and size.

    Routes and sizes repeat, so that most frames are made by joining three pieces.
    Invariant: no header is known that is too long, and with each at most KNOWN_PAYLOAD_SIZES_MAX pieces.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known = GenerationCache[bytes, Pieces](_pieces_bytes)

    @property
    def known_bytes(self) -> int:
        """What the remembered pieces take in memory, by estimate."""
        return self._known.size_bytes

    def forget(self) -> None:
        """Give that memory back."""
        self._known.forget()

    def around(self, raw: bytes) -> Pieces:
        """The pieces known for a header, by size of payload; what is missing there, `make` gives."""
        return self._known.young.get(raw) or self._known.recall(raw) or {}

    def make(self, raw: bytes, size_bytes: int) -> tuple[bytes, bytes]:
        """The pieces for a header and a size of payload. Raises FrameTooLarge where this framing cannot carry it."""
        wire = self._wire
        head, tail = wire.around_payload(size_bytes)
        size = len(raw) + len(head) + size_bytes + len(tail)
        if size > wire.send_bytes_max:
            raise FrameTooLarge(size, wire.send_bytes_max)
        pieces = size.to_bytes(wire.length_bytes, "big") + raw + head, tail
        if len(raw) <= KNOWN_HEADER_BYTES_MAX:
            known = self.around(raw)
            if not known:
                known[size_bytes] = pieces
                self._known.add(raw, known)
                return pieces
            if len(known) >= KNOWN_PAYLOAD_SIZES_MAX:
                self._known.resize(-(len(known) * (PIECES_BYTES + len(raw))))
                known.clear()
            known[size_bytes] = pieces
            self._known.resize(PIECES_BYTES + len(raw))
        return pieces


class FrameWriter:
    """Encodes messages as frames of one wire, remembering the headers of the routes it has sent along."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known = GenerationCache[tuple[Route, Route], bytes](_route_bytes)
        self._heads = FrameHeads(wire)

    @property
    def known_bytes(self) -> int:
        """What the remembered routes and pieces take in memory, by estimate."""
        return self._known.size_bytes + self._heads.known_bytes

    def forget(self) -> None:
        """Give that memory back."""
        self._known.forget()
        self._heads.forget()

    def encode(self, messages: Iterable[Message], too_large: Callable[[FrameTooLarge], None]) -> tuple[int, bytes]:
        """How many frames, and the frames: each message's length in front, and without the first hop of its onward
        route (which is us).

        A message that this framing cannot carry is left out and told to `too_large`.
        """
        onward_route = return_route = None
        raw, parts = b"", list[bytes]()
        around: Pieces = {}
        for message in messages:
            if message.onward_route is not onward_route or message.return_route is not return_route:
                onward_route, return_route = message.onward_route, message.return_route
                raw = self._header(onward_route[1:], return_route)
                around = self._heads.around(raw)
            payload = message.payload
            pieces = around.get(len(payload))
            if pieces is None:
                try:
                    pieces = self._heads.make(raw, len(payload))
                    around = self._heads.around(raw)
                except FrameTooLarge as error:
                    too_large(error)
                    continue
            # All are joined once, since a payload may have megabytes.
            parts += (pieces[0], payload, pieces[1])
        return len(parts) // 3, b"".join(parts)

    def _header(self, onward_route: Route, return_route: Route) -> bytes:
        routes = onward_route, return_route
        raw = self._known.young.get(routes) or self._known.recall(routes)
        if raw is None:
            raw = self._wire.encode_routes(onward_route, return_route)
            if len(raw) <= KNOWN_HEADER_BYTES_MAX:
                self._known.add(routes, raw)
        return raw


def _header_bytes(raw: bytes, header: Header) -> int:
    return ENTRY_BYTES + 2 * len(raw)


def _route_bytes(routes: tuple[Route, Route], raw: bytes) -> int:
    return ENTRY_BYTES // 2 + 2 * len(raw)


def _pieces_bytes(raw: bytes, pieces: Pieces) -> int:
    return ENTRY_BYTES // 2 + len(pieces) * (PIECES_BYTES + len(raw))
