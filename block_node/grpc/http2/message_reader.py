"""MessageReader: turns the bytes of one direction of a call into gRPC messages, when their handler asks for them. It
decompresses them with a bound on the memory that a message may take.

    message = flag (1 byte: 0, or 1 if compressed) | length (4 bytes, big-endian) | data

Bytes that no message has absorbed stay in the reader, and their sender gets no window for them: a call whose handler
waits holds one window at most.
"""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

import zstandard

from block_node.blocks.files import read_frame
from block_node.grpc.http2.status import CallRefused, GrpcStatus

IDENTITY, GZIP, ZSTD = "identity", "gzip", "zstd"
ACCEPTED: Final = (IDENTITY, GZIP, ZSTD)
"""The encodings of messages that this side can read, as in `grpc-accept-encoding`."""
ZSTD_LEVEL: Final = 1
GZIP_LEVEL: Final = 1
STEP_BYTES: Final = 512
"""The compressed bytes of one step, which can expand to 16 MiB: a zstd block of 4 bytes can expand to 128 KiB."""
GZIP_STEP_BYTES: Final = 1024 * 1024
KEPT_RATIO: Final = 32
KEPT_BYTES: Final = 8 * 1024 * 1024
"""A message that decompresses to at most this size, or to KEPT_RATIO times its size, is kept as it is decompressed; a
larger one is decompressed twice. Real blocks become 6.8 times as large (facts/grpc_peers.md §3.3)."""


def compress(data: bytes, encoding: str) -> bytes:
    if encoding == ZSTD:
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
    return gzip.compress(data, GZIP_LEVEL, mtime=0)


def decompress(data: bytes, encoding: str, bytes_max: int) -> bytes:
    """Returns the decompressed message. Raises CallRefused if it is damaged or has more than `bytes_max` bytes.

    A few bytes can stand for gigabytes. So a message whose data grow more than those of real blocks is first measured
    without being kept, and decompressed again only if it is small enough."""
    pieces = _zstd_pieces if encoding == ZSTD else _gzip_pieces
    kept_max = min(bytes_max, max(KEPT_BYTES, KEPT_RATIO * len(data)))
    kept: list[bytes] | None = []
    size_bytes = 0
    try:
        for piece in pieces(data):
            size_bytes += len(piece)
            if size_bytes > bytes_max:
                raise CallRefused(
                    GrpcStatus.INVALID_ARGUMENT, f"a message is larger than {bytes_max} bytes when it is decompressed"
                )
            if size_bytes > kept_max:
                kept = None
            elif kept is not None:
                kept.append(piece)
        return b"".join(pieces(data) if kept is None else kept)
    except (zstandard.ZstdError, zlib.error, EOFError) as error:
        raise CallRefused(GrpcStatus.INTERNAL, f"a message is not {encoding}: {error}") from error


def _zstd_pieces(data: bytes) -> Iterator[bytes]:
    # Consensus nodes write frames that do not name the size of their content.
    return read_frame(data[at : at + STEP_BYTES] for at in range(0, len(data), STEP_BYTES))


def _gzip_pieces(data: bytes) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    while not member.eof:
        piece = member.decompress(data, GZIP_STEP_BYTES)
        data = member.unconsumed_tail
        if not (piece or data or member.eof):
            raise EOFError("the data have no end")
        yield piece
    if member.unused_data:
        raise zlib.error("bytes follow the end")


PREFIX_BYTES: Final = 5
FREE_BYTES: Final = 64 * 1024
"""Fewer received bytes of a message are not counted: the first window of its call bounds them already."""
MERGED_BYTES: Final = 4 * 1024
"""Smaller pieces are joined as they come: a peer that sends one byte in a frame would else cost 60 bytes for each."""


class DoorBudget:
    """The received bytes of all large unfinished messages of a door, and the bytes by which windows of its calls were
    widened. Each party (a host or an identity) has a part, a `MessageBudget`.

    A party may hold as many bytes as the budget has left. At this limit, only the oldest message of the party goes on,
    as long as it has fewer bytes than are left. The oldest message of all parties always goes on. All others get no
    more window. So a message that fits in a window never waits, and all messages hold at most twice `bytes_max`, plus
    the messages that go on. A window grows by at most an eighth of the bytes that its party may still get, so that
    later calls get some, too.

    Invariant: `held_bytes` is the sum of `held`, which has the oldest message first. `window_bytes` <= `bytes_max`.
    `waiting` has the messages that may not go on.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held: dict[MessageReader, int] = {}
        self.waiting: dict[MessageReader, None] = {}
        self.held_bytes = self.window_bytes = 0
        self._parties: WeakValueDictionary[str, MessageBudget] = WeakValueDictionary()

    def of(self, party: str) -> MessageBudget:
        """Returns the budget that all connections of a party share. party: its host, or its identity."""
        return self._parties.setdefault(party, MessageBudget(self.bytes_max, self))


class MessageBudget:
    """The part of one party in a `DoorBudget`. door: None: the party has a `DoorBudget` of its own.

    Invariant: `held_bytes` is the sum of `_held`."""

    def __init__(self, bytes_max: int, door: DoorBudget | None = None) -> None:
        self._door = DoorBudget(bytes_max) if door is None else door
        self._held: dict[MessageReader, int] = {}
        self.held_bytes = 0
        self.window_bytes = 0

    def hold(self, reader: MessageReader, size_bytes: int) -> None:
        more_bytes = size_bytes - self._held.get(reader, 0)
        self.held_bytes += more_bytes
        self._door.held_bytes += more_bytes
        self._held[reader] = self._door.held[reader] = size_bytes

    def may_go_on(self, reader: MessageReader) -> bool:
        """Whether more bytes of a message may come. If not, `MessageReader.when_room` follows."""
        door = self._door
        if reader not in self._held or reader is next(iter(door.held)):
            return True
        own_bytes = self._held[reader] if reader is next(iter(self._held)) else self.held_bytes
        if own_bytes < door.bytes_max - door.held_bytes:
            return True
        door.waiting[reader] = None
        return False

    def release(self, reader: MessageReader) -> None:
        """Forgets the message of a reader. Safe to repeat."""
        freed_bytes, door = self._held.pop(reader, 0), self._door
        if freed_bytes:
            self.held_bytes -= freed_bytes
            door.held_bytes -= door.held.pop(reader)
            door.waiting.pop(reader, None)
            waiting, door.waiting = door.waiting, {}
            for each in waiting:
                each.when_room()

    def widen(self, more_bytes: int) -> int:
        """Takes bytes for a window, and returns how many it could take. A negative number gives bytes back."""
        left_bytes = self._door.bytes_max - self._door.window_bytes
        given_bytes = min(more_bytes, max(0, left_bytes - self.window_bytes) // 8)
        self.window_bytes += given_bytes
        self._door.window_bytes += given_bytes
        return given_bytes


class MessageReader:
    """Reads the messages of one direction of a call. encoding: the encoding of its compressed messages.

    bytes_max: the largest message, also decompressed. begun: the number of messages whose prefix was taken.
    may_wait: asked whether the call may wait for the budget. when_room: called when the budget may have room again.
    arriving: called with how many bytes of an unfinished message have come.

    Invariant: `_body` has the absorbed bytes of the present message. `_size_bytes` is its whole size; None while its
    prefix is not complete. `_chunks` has `waiting_bytes` bytes from `_offset` of the first chunk on.
    """

    def __init__(self, encoding: str, budget: MessageBudget) -> None:
        self.encoding = encoding
        self._budget = budget
        self.bytes_max = 0
        self.may_wait: Callable[[], bool] = lambda: True
        self.when_room: Callable[[], None] = lambda: None
        self.arriving: Callable[[int], None] = lambda size_bytes: None
        self._chunks: deque[bytes] = deque()
        self._offset = 0
        self._body = BytesIO()
        self._body_bytes = 0
        self._size_bytes: int | None = None
        self._is_compressed = False
        self._absorbed_bytes = 0
        self.waiting_bytes = 0
        self.begun = 0

    @property
    def missing_bytes(self) -> int:
        """The bytes of the present message that were not absorbed; 0 between two messages."""
        return 0 if self._size_bytes is None else self._size_bytes - self._body_bytes

    @property
    def must_wait(self) -> bool:
        return bool(self.missing_bytes) and not self._budget.may_go_on(self) and self.may_wait()

    @property
    def is_between(self) -> bool:
        """Whether the last message is complete, and no byte of the next message has arrived."""
        return self._size_bytes is None and not self.waiting_bytes

    def feed(self, data: bytes) -> None:
        if data:
            if self._chunks and len(self._chunks[-1]) < MERGED_BYTES and len(data) < MERGED_BYTES:
                self._chunks[-1] += data
            else:
                self._chunks.append(data)
            self.waiting_bytes += len(data)

    def next(self) -> bytes | None:
        """Returns the next message, or None if it is not complete. Raises CallRefused."""
        if self._size_bytes is None and not self._begin():
            return None
        assert self._size_bytes is not None, "a message has begun"
        # The received bytes of the message are absorbed, so that its sender may send the rest. A message that comes in
        # one piece is not copied; other pieces are joined in one place, so that a message is in memory once.
        message, missing_bytes = b"", self.missing_bytes
        while self._chunks and missing_bytes:
            piece = self._take_some(missing_bytes)
            missing_bytes -= len(piece)
            if missing_bytes or self._body_bytes:
                self._body.write(piece)
                self._body_bytes += len(piece)
            else:
                message = piece
        if missing_bytes:
            if self._body_bytes > FREE_BYTES:
                self._budget.hold(self, self._body_bytes)
            self.arriving(self._body_bytes)
            return None
        if self._body_bytes:
            message = self._body.getvalue()
        self._end_message()
        return decompress(message, self.encoding, self.bytes_max) if self._is_compressed else message

    def take_absorbed(self) -> int:
        """Returns how many bytes were absorbed since the last call of this method: the sender may send as many more."""
        absorbed, self._absorbed_bytes = self._absorbed_bytes, 0
        return absorbed

    def close(self) -> int:
        """Forgets everything. Returns the number of bytes that were not absorbed."""
        self._end_message()
        left, self.waiting_bytes = self.waiting_bytes, 0
        self._chunks.clear()
        self._offset = 0
        return left

    def _begin(self) -> bool:
        if self.waiting_bytes < PREFIX_BYTES:
            return False
        head = self._chunks[0][self._offset : self._offset + PREFIX_BYTES]
        if len(head) < PREFIX_BYTES:
            head = b"".join((head, *islice(self._chunks, 1, PREFIX_BYTES)))[:PREFIX_BYTES]
        flag, size_bytes = head[0], int.from_bytes(head[1:], "big")
        if flag > 1 or (flag and self.encoding == IDENTITY):
            raise CallRefused(GrpcStatus.INTERNAL, f"a message has the flag {flag}, and grpc-encoding {self.encoding}")
        if size_bytes > self.bytes_max:
            raise CallRefused(
                GrpcStatus.INVALID_ARGUMENT,
                f"a message of {size_bytes} bytes; one message has at most {self.bytes_max} here",
            )
        left = PREFIX_BYTES
        while left:
            left -= len(self._take_some(left))
        self._is_compressed = bool(flag)
        self._size_bytes = size_bytes
        self.begun += 1
        return True

    def _take_some(self, bytes_max: int) -> bytes:
        chunk, start = self._chunks[0], self._offset
        piece = chunk[start : start + bytes_max] if start or bytes_max < len(chunk) else chunk
        if start + len(piece) == len(chunk):
            self._chunks.popleft()
            self._offset = 0
        else:
            self._offset = start + len(piece)
        self.waiting_bytes -= len(piece)
        self._absorbed_bytes += len(piece)
        return piece

    def _end_message(self) -> None:
        if self._body_bytes:
            self._body, self._body_bytes = BytesIO(), 0
        self._size_bytes = None
        self._budget.release(self)


def prefix_of_message(size_bytes: int, *, compressed: bool = False) -> bytes:
    return bytes((compressed,)) + size_bytes.to_bytes(4, "big")
