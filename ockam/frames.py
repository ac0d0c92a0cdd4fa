"""Frames of one connection: turns bytes into routed messages, and messages into bytes. It does not read sockets.

All frames that one read completes come out in one call. The frames of a connection resemble each other, so the reader
compares a frame with what earlier frames have taught before it decodes anything: the header first, then the bytes
around the payload. The comparison is exact, so that a shortcut cannot change what is read; `tests/ockam/test_frames.py`
compares every shortcut with decoding each frame by itself.
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
"""How many sizes of headers a reader remembers. Each size is one more look-up; real peers use two or three."""
KNOWN_PAYLOAD_SIZES_MAX = 64
"""How many sizes of payload a writer remembers with one header. At the next size it forgets those of that header."""
ENTRY_BYTES = 500
"""Memory that a remembered header takes beside its bytes, by measurement: routes, addresses, dict entries."""
PIECES_BYTES = 120
"""Memory that the pieces for one size of payload take beside their bytes, by measurement."""


Pieces: TypeAlias = dict[int, tuple[bytes, bytes]]
"""Size of a payload -> the bytes that stand before and behind such a payload in a frame."""


class Header(NamedTuple):
    """A header seen on this connection: its bytes, and the two routes that they encode."""

    raw: bytes
    onward_route: Route
    return_route: Route


NO_ENVELOPE = -1, -1, b"", b""
"""The envelope that fits no frame: no body has that size. See `FrameReader._learn_envelope`."""


class BadFrame(RemoteProtocolError):
    """A frame that cannot be read. messages: the messages of the frames before it, which are good."""

    def __init__(self, error: RemoteProtocolError, messages: tuple[Message, ...]) -> None:
        super().__init__(error.kind, str(error))
        self.messages = messages


class FrameReader:
    """Splits a byte stream into frames and decodes them.

    prefix: goes in front of each message's return route: the address of the connection itself (facts/ockam.md §1).
    Invariant: `_parts` together are less than one frame; nothing can be decoded until they have `_need` bytes.
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
        """The estimated memory of the remembered headers."""
        return self._known.size_bytes

    def forget(self) -> None:
        """Forget all headers, to free their memory; the next frames teach them again."""
        self._known.forget()
        self._known_sizes.clear()
        self._last = None

    @property
    def waiting_bytes(self) -> int:
        """The size of the part of an unfinished frame that has come; 0 between frames."""
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
        """Append the messages of all whole frames to `found`; return the place of the first frame that is not whole.

        Comparing bytes gives the same messages as decoding does, since a header is self-delimiting
        (`Wire.decode_routes`) and the bytes around a payload depend on its size alone (`Wire.around_payload`).
        """
        width, size_max = self._wire.length_bytes, self._wire.receive_bytes_max
        have, at, young = len(data), 0, self._known.young
        raw: bytes | None = None
        onward_route: Route = ()
        return_route: Route = ()
        if self._last is not None:
            raw, onward_route, return_route = self._last
        kind, body_bytes, head, tail = NO_ENVELOPE
        body_bytes_before = -1
        while have - at >= width:
            # Find the end of the frame. A length that no peer may send is refused before the frame has come, because
            # waiting for its end would fill the memory.
            start = at + width
            size = int.from_bytes(data[at:start], "big")
            if size > size_max:
                raise RemoteProtocolError("oversized", f"a frame of {size} bytes; this framing allows {size_max}")
            end = start + size
            if end > have:
                self._need = width + size
                return at

            # Find the routes. The header is mostly that of the frame before; then one of the same size that was seen
            # before, which is worth a look-up without a call. Some peers send an empty frame as a heartbeat.
            if raw is None or not data.startswith(raw, start, end):
                if not size:
                    at = end
                    continue
                header = young.get(data[start : start + len(raw)]) if raw is not None and len(raw) <= size else None
                if header is None:
                    header = self._find_header(data, start, end)
                    young = self._known.young
                raw, onward_route, return_route = header
            begin = start + len(raw)

            # Find the payload, which is the body (the frame without its header) less the bytes around it. They are
            # learnt once two bodies of one size have come in a row, so that a lone frame does not pay for learning;
            # from then on the payload of such a body is cut out without decoding.
            if (
                end - begin == body_bytes
                and data[start] == kind
                and data.startswith(head, begin)
                and data.startswith(tail, end - len(tail))
            ):
                # The next frame has the same header: take all frames that differ in nothing but their payload. A busy
                # publisher sends such runs, so that nearly all of its messages pass here.
                if onward_route and data.startswith(raw, end + width):
                    prefix = data[at : begin + len(head)]
                    at = self._take_alike(data, at, end - at, prefix, tail, onward_route, return_route, found)
                    continue
                payload = data[begin + len(head) : end - len(tail)]
            else:
                payload = self._wire.decode_payload(data, start, begin, end)
                if end - begin == body_bytes_before and end < have:
                    kind, body_bytes, head, tail = self._learn_envelope(data, start, begin, end, len(payload))
                body_bytes_before = end - begin
            # A message without an onward route is the heartbeat of the head framing.
            if onward_route:
                found.append(Message(onward_route, return_route, payload, self._origin))
            at = end
        self._need = width
        return at

    def _take_alike(
        self,
        data: bytes,
        at: int,
        frame_bytes: int,
        prefix: bytes,
        tail: bytes,
        onward_route: Route,
        return_route: Route,
        found: list[Message],
    ) -> int:
        """Take the frame at `at` and those behind it that differ from it in nothing but their payload.

        prefix, tail: the bytes of that frame before and behind its payload. Returns the end of the last frame taken.
        """
        have, prefix_bytes, tail_bytes, origin = len(data), len(prefix), len(tail), self._origin
        end = at + frame_bytes
        while end <= have and data.startswith(prefix, at) and data.startswith(tail, end - tail_bytes):
            found.append(Message(onward_route, return_route, data[at + prefix_bytes : end - tail_bytes], origin))
            at, end = end, end + frame_bytes
        return at

    def _learn_envelope(
        self, data: bytes, start: int, begin: int, end: int, payload_bytes: int
    ) -> tuple[int, int, bytes, bytes]:
        """The envelope of a body: the first byte of its frame's content (at `start`), the size of the body (at
        `data[begin:end]`), and the bytes before and behind its payload.

        NO_ENVELOPE if the body holds more than these bytes and the payload, such as a tracing context: another body of
        that size may then have a payload of another size.
        """
        head, tail = self._wire.around_payload(payload_bytes)
        is_plain = (
            end - begin == len(head) + payload_bytes + len(tail)
            and data.startswith(head, begin)
            and data.endswith(tail, begin, end)
        )
        return (data[start], end - begin, head, tail) if is_plain else NO_ENVELOPE

    def _find_header(self, data: bytes, start: int, end: int) -> Header:
        """The header of a frame whose content is `data[start:end]`, remembered from earlier or decoded now."""
        known = self._known
        # Nothing says how long a header is before it is decoded, so each size that was seen is tried.
        for size in self._known_sizes:
            raw = data[start : start + size]
            header = known.young.get(raw) or known.recall(raw)
            # A header that was seen in a longer frame must not reach beyond the end of this one.
            if header is not None and start + size <= end:
                self._last = header
                return header
        onward_route, return_route, at = self._wire.decode_routes(data, start, end)
        header = Header(data[start:at], onward_route, self._prefix + return_route)
        # A peer that sends ever longer or ever other headers must not fill the memory with them.
        if len(header.raw) > KNOWN_HEADER_BYTES_MAX:
            return header
        self._last = header
        if len(header.raw) not in self._known_sizes:
            if len(self._known_sizes) >= KNOWN_SIZES_MAX:
                known.forget()
                self._known_sizes.clear()
            self._known_sizes.append(len(header.raw))
        known.add(header.raw, header)
        return header


class FrameHeads:
    """Remembers the bytes before a payload in a frame (length, header, head) and behind it (tail).

    They depend on the header and the size of the payload, both of which repeat, so that most frames are made by joining
    three pieces.
    Invariant: no header longer than KNOWN_HEADER_BYTES_MAX is remembered, and none with the pieces for more than
    KNOWN_PAYLOAD_SIZES_MAX sizes.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known = GenerationCache[bytes, Pieces](_pieces_bytes)

    @property
    def known_bytes(self) -> int:
        """The estimated memory of the remembered pieces."""
        return self._known.size_bytes

    def forget(self) -> None:
        """Forget all pieces, to free their memory."""
        self._known.forget()

    def around(self, raw: bytes) -> Pieces:
        """The pieces that are remembered for a header, by size of payload. `make` makes the missing ones."""
        return self._known.young.get(raw) or self._known.recall(raw) or {}

    def make(self, raw: bytes, size_bytes: int) -> tuple[bytes, bytes]:
        """The pieces for a header and a size of payload. Raises FrameTooLarge if the framing cannot carry it."""
        wire = self._wire
        head, tail = wire.around_payload(size_bytes)
        size = len(raw) + len(head) + size_bytes + len(tail)
        if size > wire.send_bytes_max:
            raise FrameTooLarge(size, wire.send_bytes_max)
        # The head and the header are joined here, once, and not for every frame.
        pieces = size.to_bytes(wire.length_bytes, "big") + raw + head, tail
        if len(raw) <= KNOWN_HEADER_BYTES_MAX:
            known = self.around(raw)
            if not known:
                known[size_bytes] = pieces
                self._known.add(raw, known)
                return pieces
            # A peer that is sent ever other sizes must not fill the memory with their pieces.
            if len(known) >= KNOWN_PAYLOAD_SIZES_MAX:
                self._known.resize(-(len(known) * (PIECES_BYTES + len(raw))))
                known.clear()
            known[size_bytes] = pieces
            self._known.resize(PIECES_BYTES + len(raw))
        return pieces


class FrameWriter:
    """Encodes messages as frames of one framing. It remembers the encoded headers of the routes that it has used."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known = GenerationCache[tuple[Route, Route], bytes](_route_bytes)
        self._heads = FrameHeads(wire)

    @property
    def known_bytes(self) -> int:
        """The estimated memory of the remembered routes and pieces."""
        return self._known.size_bytes + self._heads.known_bytes

    def forget(self) -> None:
        """Forget all routes and pieces, to free their memory."""
        self._known.forget()
        self._heads.forget()

    def encode(self, messages: Iterable[Message], too_large: Callable[[FrameTooLarge], None]) -> tuple[int, bytes]:
        """The number of frames, and their bytes. The first hop of each onward route, this connection, is left out.

        A message that the framing cannot carry is left out too, after a call of `too_large`.
        """
        onward_route = return_route = None
        raw, parts = b"", list[bytes]()
        around: Pieces = {}
        for message in messages:
            # The answers to one peer mostly have the very same routes, whose header and pieces are looked up once.
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
            # The parts are joined once, at the end, since a payload may have megabytes.
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
