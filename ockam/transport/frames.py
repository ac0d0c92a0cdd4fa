"""FrameReader and FrameWriter: decode bytes into routed messages, and encode messages into bytes. They read no sockets.
GenerationCache: their bounded cache of headers, which forgets the entries that were not used lately.

Two words name the bytes around a payload. The header is the two encoded routes. The envelope is all bytes of a frame
before and after its payload, the header included. The frames of a connection resemble each other, so only a header or
an envelope that is new is decoded or encoded; a known one is found by comparing bytes. Equal bytes have an equal
meaning, so the results are the same (`tests/ockam/test_frames.py`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from ockam.actors.address import Route
from ockam.actors.message import Message, Origin
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.transport.wire import Wire

KNOWN_HEADER_BYTES_MAX = 512
"""The length in bytes of the longest header that is remembered. Real headers have a few tens of bytes."""
KNOWN_SIZES_MAX = 8
"""The most header sizes that a reader remembers. It does one look-up for each; real peers use two or three sizes."""
KNOWN_PAYLOAD_SIZES_MAX = 64
"""The most payload sizes that a writer remembers for one header. A further size makes it forget the earlier ones."""
ENTRY_BYTES = 500
"""The measured memory, in bytes, of the objects for one remembered header: routes, addresses, dict entries."""
WHOLE_HEADER_BYTES = 32 * 1024
"""The beginning of a frame with at least this many bytes has the whole header: two routes have at most some 18 KiB."""
PIECES_BYTES = 120
"""The measured memory, in bytes, of the objects for one remembered envelope, without its bytes."""
GENERATION_MIN = 64
"""The first size of a generation, in entries. Real peers use a few routes on a connection."""
GENERATION_MAX = 16_384
"""The largest size, in entries: enough for a client that alternates between ten thousand streams."""
GENERATION_BYTES_MAX = 8 * 1024 * 1024
"""The largest estimated memory of a generation. The entry that exceeds it is still added, as the last one."""
FORGOTTEN_BITS = 1 << 16
"""The number of bits in the record of forgotten keys. Each forgotten key sets one bit, which its hash selects."""
FORGOTTEN_MAX = GENERATION_MAX
"""After this many forgotten keys, their record is cleared, so a new key is seldom mistaken for a forgotten one."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


Pieces: TypeAlias = dict[int, tuple[bytes, bytes]]
"""The envelopes of one header: for each payload size, the bytes before and after a payload of this size."""


class FrameHeader(NamedTuple):
    raw: bytes
    onward_route: Route
    return_route: Route


NO_ENVELOPE = -1, -1, b"", b""
"""The value while no envelope is known. No frame matches it, because no frame has the size -1."""


class BadFrame(RemoteProtocolError):
    """Error: a frame cannot be decoded. messages: the messages of the valid frames before the bad frame."""

    def __init__(self, error: RemoteProtocolError, messages: tuple[Message, ...]) -> None:
        super().__init__(error.kind, str(error))
        self.messages = messages


class GenerationCache(Generic[K, V]):
    """A cache of keys and values. size_of: returns the estimated memory of an entry, in bytes.

    A used entry belongs to the young generation. When the young generation is full, it replaces the old generation.
    If at least half of the keys in a full generation had been forgotten before, the next generation holds up to twice
    as many entries. Keys that never come again do not make the cache grow.

    Invariant: `size_bytes` is the sum of `size_of` for all entries, measured when each was added, plus all changes
    passed to `resize`."""

    __slots__ = (
        "_came_again",
        "_forgotten",
        "_forgotten_count",
        "_most",
        "_old",
        "_old_bytes",
        "_size_of",
        "_young_bytes",
        "young",
    )

    def __init__(self, size_of: Callable[[K, V], int]) -> None:
        self._size_of = size_of
        self.forget()

    def forget(self) -> None:
        self.young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._young_bytes = self._old_bytes = 0
        self._most = GENERATION_MIN
        self._came_again = 0
        self._forgotten: bytearray | None = None
        self._forgotten_count = 0

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    @property
    def size_bytes(self) -> int:
        return self._young_bytes + self._old_bytes

    def recall(self, key: K) -> V | None:
        """Returns the value of a key in the old generation, or None. The entry moves to the young generation."""
        value = self._old.pop(key, None)
        if value is not None:
            self._old_bytes = max(0, self._old_bytes - self._size_of(key, value))
            self._put(key, value)
        return value

    def add(self, key: K, value: V) -> None:
        """Adds a key that is in neither generation: not in `young`, and not found by `recall`."""
        if self._forgotten is not None:
            place = hash(key) % FORGOTTEN_BITS
            self._came_again += self._forgotten[place >> 3] >> (place & 7) & 1
        self._put(key, value)

    def resize(self, change_bytes: int) -> None:
        """Records that a value in the young generation has grown, or shrunk, by this many bytes."""
        self._young_bytes += change_bytes

    def _put(self, key: K, value: V) -> None:
        # A full generation becomes the old one before the entry is added, so that the entry is young.
        if len(self.young) >= self._most or self._young_bytes >= GENERATION_BYTES_MAX:
            self._age()
        self.young[key] = value
        self._young_bytes += self._size_of(key, value)

    def _age(self) -> None:
        # Most connections never fill a generation, so the bits are allocated only here.
        if self._forgotten is None:
            self._forgotten = bytearray(FORGOTTEN_BITS // 8)
        # Only a larger cache would have found the keys that came again, so only these make it grow.
        if self._came_again * 2 >= len(self.young):
            self._most = min(self._most * 2, GENERATION_MAX)
        self._came_again = 0
        # The old generation is dropped, and each of its keys leaves one bit.
        for key in self._old:
            if self._forgotten_count >= FORGOTTEN_MAX:
                self._forgotten = bytearray(FORGOTTEN_BITS // 8)
                self._forgotten_count = 0
            place = hash(key) % FORGOTTEN_BITS
            self._forgotten[place >> 3] |= 1 << (place & 7)
            self._forgotten_count += 1
        self._old, self._old_bytes = self.young, self._young_bytes
        self.young, self._young_bytes = {}, 0


class FrameReader:
    """Splits a byte stream into frames and decodes them.

    origin: the origin of the next messages. waiting_bytes: the number of bytes of the unfinished frame.
    prefix: the connection's address, the new first hop of each message's return route (facts/ockam.md §1).

    Invariant: `_parts` are the bytes of the unfinished frame. No frame is complete until `_parts` have `_need` bytes.
    """

    def __init__(self, wire: Wire, origin: Origin, prefix: Route = ()) -> None:
        self._wire = wire
        self.origin = origin
        self._prefix = prefix
        self._parts: list[bytes] = []
        self.waiting_bytes = 0
        self._need = wire.length_bytes
        self._known = GenerationCache[bytes, FrameHeader](_header_bytes)
        self._known_sizes: list[int] = []
        self._last: FrameHeader | None = None

    @property
    def known_bytes(self) -> int:
        return self._known.size_bytes

    def forget(self) -> None:
        self._known.forget()
        self._known_sizes.clear()
        self._last = None

    def feed(self, chunk: bytes) -> list[Message]:
        """Processes the next bytes. Returns the messages of all frames that are now complete. Raises BadFrame.
        Heartbeats and empty frames are left out."""
        self._parts.append(chunk)
        self.waiting_bytes += len(chunk)
        if self.waiting_bytes < self._need:
            return []
        found: list[Message] = []
        data, at = chunk, 0
        try:
            if len(self._parts) > 1:
                # Only the first frame has bytes of several parts. The frames behind it are not copied.
                at = self._need - self.waiting_bytes + len(chunk)
                if self._need > self._wire.length_bytes:
                    self._take_first(at, found)
                else:
                    data, at = b"".join(self._parts), 0
            at = self._take_frames(data, at, found)
        except RemoteProtocolError as error:
            self._parts = []
            raise BadFrame(error, tuple(found)) from error
        self._parts = [data[at:]] if at < len(data) else []
        self.waiting_bytes = len(data) - at
        return found

    def drop_partial(self) -> None:
        self._parts = []

    def _take_first(self, end: int, found: list[Message]) -> None:
        """Appends the message of the first frame, from the first of `_parts` to `end` in the last one."""
        parts, width, wire = self._parts, self._wire.length_bytes, self._wire
        first, last = parts[0], parts[-1]
        if len(first) >= WHOLE_HEADER_BYTES:
            raw, onward_route, return_route = self._find_header(first, width, len(first))
            begin = width + len(raw)
            body_bytes = self._need - begin
            payload_bytes = body_bytes - sum(map(len, wire.around_payload(body_bytes)))
            head, tail = wire.around_payload(payload_bytes)
            # If the envelope is the usual one, only the payload is joined: it may have megabytes, which would be
            # copied twice with the frame.
            if (
                onward_route
                and len(head) + payload_bytes + len(tail) == body_bytes
                and first.startswith(head, begin)
                and last.endswith(tail, 0, end)
            ):
                view = memoryview(first)[begin + len(head) :]
                payload = b"".join((view, *parts[1:-1], memoryview(last)[: end - len(tail)]))
                found.append(Message(onward_route, return_route, payload, self.origin))
                return
        self._take_frames(b"".join((*parts[:-1], memoryview(last)[:end])), 0, found)

    def _take_frames(self, data: bytes, at: int, found: list[Message]) -> int:
        """Appends the messages of all complete frames from `at` on to `found`. Returns the position after them."""
        width, size_max = self._wire.length_bytes, self._wire.receive_bytes_max
        have, young = len(data), self._known.young
        # Begin with the last header of the chunk before: a peer mostly goes on with the same routes.
        raw: bytes | None = None
        onward_route: Route = ()
        return_route: Route = ()
        if self._last is not None:
            raw, onward_route, return_route = self._last
        kind, body_bytes, head, tail = NO_ENVELOPE
        body_bytes_before = -1
        while have - at >= width:
            # Find the end of the frame. A length above the limit is refused at once, because waiting for the end of
            # such a frame would fill the memory.
            start = at + width
            size = int.from_bytes(data[at:start], "big")
            if size > size_max:
                raise RemoteProtocolError("oversized", f"a frame of {size} bytes; this framing allows {size_max}")
            end = start + size
            if end > have:
                self._need = width + size
                return at

            # Find the routes. Mostly the header is the same as in the frame before, or else a known header of the same
            # size, which is looked up here without a function call. Some peers send an empty frame as a heartbeat.
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

            # Find the payload. An envelope is learned when two frames in a row have the same number of bytes after the
            # header, and more frames follow: learning for a single frame would not pay. After that, the payloads of
            # such frames are cut out without decoding.
            if (
                end - begin == body_bytes
                and data[start] == kind
                and data.startswith(head, begin)
                and data.startswith(tail, end - len(tail))
            ):
                # The next frame has the same header, so take all frames that differ only in their payload. A busy
                # publisher sends such frames, so nearly all of its messages are taken here.
                if onward_route and data.startswith(raw, end + width):
                    prefix = data[at : begin + len(head)]
                    at = self._take_alike(data, at, end - at, prefix, tail, onward_route, return_route, found=found)
                    continue
                payload = data[begin + len(head) : end - len(tail)]
            else:
                payload = self._wire.decode_payload(data, start, begin, end)
                if end - begin == body_bytes_before and end < have:
                    kind, body_bytes, head, tail = self._learn_envelope(data, start, begin, end, len(payload))
                body_bytes_before = end - begin
            # A message without an onward route is a heartbeat of the head framing.
            if onward_route:
                found.append(Message(onward_route, return_route, payload, self.origin))
            at = end
        # Too few bytes are left for the length field of the next frame, so its size is not known yet.
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
        """Appends the messages of the frames from `at` on with this envelope. Returns the position after them."""
        have, prefix_bytes, tail_bytes, origin = len(data), len(prefix), len(tail), self.origin
        # Comparing the bytes before and after the payload with those of the frame before is enough: decoding the frame
        # would give the same routes.
        end = at + frame_bytes
        while end <= have and data.startswith(prefix, at) and data.startswith(tail, end - tail_bytes):
            found.append(Message(onward_route, return_route, data[at + prefix_bytes : end - tail_bytes], origin))
            at, end = end, end + frame_bytes
        return at

    def _learn_envelope(
        self, data: bytes, start: int, begin: int, end: int, payload_bytes: int
    ) -> tuple[int, int, bytes, bytes]:
        """Returns the envelope of a frame (first byte, size after the header, bytes before and after the payload).
        start: the position of the header. begin, end: the bounds of the bytes after it."""
        # A frame may have further parts, such as a tracing context. Then its size does not tell the size of its
        # payload, so no envelope is learned from it.
        head, tail = self._wire.around_payload(payload_bytes)
        is_plain = (
            end - begin == len(head) + payload_bytes + len(tail)
            and data.startswith(head, begin)
            and data.endswith(tail, begin, end)
        )
        return (data[start], end - begin, head, tail) if is_plain else NO_ENVELOPE

    def _find_header(self, data: bytes, start: int, end: int) -> FrameHeader:
        known = self._known
        # The size of a header is unknown before it is decoded, so each known size is tried.
        for size in self._known_sizes:
            raw = data[start : start + size]
            header = known.young.get(raw) or known.recall(raw)
            # A header known from a longer frame must not reach beyond the end of this frame.
            if header is not None and start + size <= end:
                self._last = header
                return header
        # The header is new. `_prefix`, our address, begins the return route.
        onward_route, return_route, at = self._wire.decode_routes(data, start, end)
        header = FrameHeader(data[start:at], onward_route, self._prefix + return_route)
        # A peer that sends very long headers must not fill the memory with them.
        if len(header.raw) > KNOWN_HEADER_BYTES_MAX:
            return header
        self._last = header
        # Each known size costs every later look-up one attempt, so their number is bounded.
        if len(header.raw) not in self._known_sizes:
            if len(self._known_sizes) >= KNOWN_SIZES_MAX:
                known.forget()
                self._known_sizes.clear()
            self._known_sizes.append(len(header.raw))
        known.add(header.raw, header)
        return header


class FrameHeads:
    """A memory of envelopes. An envelope depends only on the header and on the size of the payload, and both repeat.

    Invariant: no remembered header is longer than KNOWN_HEADER_BYTES_MAX, and no header has envelopes for more than
    KNOWN_PAYLOAD_SIZES_MAX payload sizes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.known = GenerationCache[bytes, Pieces](_pieces_bytes)

    def around(self, raw: bytes) -> Pieces:
        return self.known.young.get(raw) or self.known.recall(raw) or {}

    def make(self, raw: bytes, size_bytes: int) -> tuple[bytes, bytes]:
        """Returns the bytes of a frame before and after a payload of this size. They are remembered if the header `raw`
        is short. Raises FrameTooLarge."""
        wire = self._wire
        head, tail = wire.around_payload(size_bytes)
        size = len(raw) + len(head) + size_bytes + len(tail)
        if size > wire.send_bytes_max:
            raise FrameTooLarge(size, wire.send_bytes_max)
        # Length, header and the size of the payload are joined here, once, and not for every frame.
        pieces = size.to_bytes(wire.length_bytes, "big") + raw + head, tail
        if len(raw) <= KNOWN_HEADER_BYTES_MAX:
            known = self.around(raw)
            if not known:
                known[size_bytes] = pieces
                self.known.add(raw, known)
                return pieces
            # If payloads always have new sizes, the envelopes for all these sizes must not fill the memory.
            if len(known) >= KNOWN_PAYLOAD_SIZES_MAX:
                self.known.resize(-(len(known) * (PIECES_BYTES + len(raw))))
                known.clear()
            known[size_bytes] = pieces
            self.known.resize(PIECES_BYTES + len(raw))
        return pieces


class FrameWriter:
    """Encodes messages as frames of one framing. It remembers encoded headers. heads: the envelopes of frames."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._known = GenerationCache[tuple[Route, Route], bytes](_route_bytes)
        self.heads = FrameHeads(wire)

    @property
    def known_bytes(self) -> int:
        return self._known.size_bytes + self.heads.known.size_bytes

    def forget(self) -> None:
        self._known.forget()
        self.heads.known.forget()

    def encode(self, messages: Iterable[Message], too_large: Callable[[FrameTooLarge], None]) -> tuple[int, bytes]:
        """Encodes messages as `pieces` does. Returns the number of frames, and the bytes of all frames."""
        pieces = self.pieces(messages, too_large)
        return len(pieces) // 3, b"".join(pieces)

    def pieces(self, messages: Iterable[Message], too_large: Callable[[FrameTooLarge], None]) -> list[bytes]:
        """Encodes messages. Returns three pieces for each frame, the second of which is the payload. The first hop of
        each onward route is this connection and is left out of the frame. A message that is too large for the framing
        is given to `too_large` and skipped."""
        onward_route = return_route = None
        raw, parts = b"", list[bytes]()
        around: Pieces = {}
        for message in messages:
            # The answers to one peer mostly have the same route objects, whose header and envelopes are looked up once.
            if message.onward_route is not onward_route or message.return_route is not return_route:
                onward_route, return_route = message.onward_route, message.return_route
                raw = self.header(onward_route[1:], return_route)
                around = self.heads.around(raw)
            payload = message.payload
            # Payloads of a known size need no encoding at all: their envelope is put around them.
            pieces = around.get(len(payload))
            if pieces is None:
                try:
                    pieces = self.heads.make(raw, len(payload))
                    around = self.heads.around(raw)
                except FrameTooLarge as error:
                    too_large(error)
                    continue
            # The parts are not joined here, because a payload may have megabytes.
            parts += (pieces[0], payload, pieces[1])
        return parts

    def header(self, onward_route: Route, return_route: Route) -> bytes:
        routes = onward_route, return_route
        raw = self._known.young.get(routes) or self._known.recall(routes)
        if raw is None:
            raw = self._wire.encode_routes(onward_route, return_route)
            # Very long routes must not fill the memory.
            if len(raw) <= KNOWN_HEADER_BYTES_MAX:
                self._known.add(routes, raw)
        return raw


def _header_bytes(raw: bytes, header: FrameHeader) -> int:
    return ENTRY_BYTES + 2 * len(raw)


def _route_bytes(routes: tuple[Route, Route], raw: bytes) -> int:
    return ENTRY_BYTES // 2 + 2 * len(raw)


def _pieces_bytes(raw: bytes, pieces: Pieces) -> int:
    return ENTRY_BYTES // 2 + len(pieces) * (PIECES_BYTES + len(raw))
