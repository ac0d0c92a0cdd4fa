"""MessageReader: turns the bytes of one direction of a call into gRPC messages, as its taker asks for them.

    message = flag (1 byte: 0, or 1 if compressed) | length (4 bytes, big-endian) | data

It does not know windows. Bytes that no message has absorbed stay in the reader, and their sender gets no window for
them: so a call whose taker waits holds one window at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from block_node.grpc.http2.compression import IDENTITY, decompress
from block_node.grpc.http2.status import CallRefused, GrpcStatus

PREFIX_BYTES: Final = 5
FREE_BYTES: Final = 64 * 1024
"""A smaller message takes nothing from the budget: the first window of its call bounds it already."""
CUT_BYTES: Final = 1024 * 1024
"""Larger messages are cut while they arrive, if their call has a cutter."""
MERGED_BYTES: Final = 4 * 1024
"""Smaller pieces are joined as they come: a peer that sends one byte in a frame would else cost 60 bytes for each."""


class MessageBudget:
    """The announced bytes of all large messages that have not arrived completely, on all connections of a door.

    Invariant: `held_bytes` is at most `bytes_max`, or one message holds it all. A message that has its bytes gets all
    of them before its reader needs more, so that no two wait for each other.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[Callable[[], None], None] = {}
        self.held_bytes = 0

    def take(self, size_bytes: int, when_room: Callable[[], None]) -> bool:
        """Takes the bytes of a message, or returns False and calls `when_room` once when it is worth another try."""
        if self.held_bytes and self.held_bytes + size_bytes > self._bytes_max:
            self._waiting[when_room] = None
            return False
        self.held_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        waiting, self._waiting = self._waiting, {}
        for when_room in waiting:
            when_room()

    def forget(self, when_room: Callable[[], None]) -> None:
        self._waiting.pop(when_room, None)


class MessageCutter(Protocol):
    """Makes several messages of a large one, which mean the same. gathered_bytes: the size of the next one, if it is
    larger than usual, and 0 else."""

    gathered_bytes: int

    def feed(self, data: bytes, missing_bytes: int) -> list[bytes]:
        """Adds the next bytes of a message, of which `missing_bytes` follow. Returns messages that are complete."""
        ...


class MessageReader:
    """The bytes of one direction of a call. encoding: of its compressed messages.

    bytes_max: of a message, also when it is decompressed. when_room: called when the budget has room for one again.
    is_waiting: whether the present or the next message waits for the budget. cutter: of large messages that are not
    compressed.

    Invariant: of the present message, `_body_bytes` bytes were absorbed, and its whole size is `_size_bytes`, or None
    while its prefix is not complete. `_body` has these bytes, unless `_cuts` cuts the message; `_ready` has what was
    made of it. `_chunks` has `waiting_bytes` bytes from `_offset` of the first chunk on.
    """

    def __init__(self, encoding: str, budget: MessageBudget) -> None:
        self.encoding = encoding
        self._budget = budget
        self.bytes_max = 0
        self.cutter: MessageCutter | None = None
        self.when_room: Callable[[], None] = lambda: None
        self._chunks: deque[bytes] = deque()
        self._offset = 0
        self._body: deque[bytes] = deque()
        self._body_bytes = 0
        self._cuts: MessageCutter | None = None
        self._ready: deque[bytes] = deque()
        self._size_bytes: int | None = None
        self._is_compressed = False
        self._budgeted_bytes = 0
        self._absorbed_bytes = 0
        self.waiting_bytes = 0
        self.is_waiting = False

    @property
    def missing_bytes(self) -> int:
        """The bytes of the present message that were not absorbed; 0 between two messages."""
        return 0 if self._size_bytes is None else self._size_bytes - self._body_bytes

    @property
    def is_between(self) -> bool:
        """Whether the last message is complete, and nothing of another one is here."""
        return self._size_bytes is None and not self.waiting_bytes and not self._ready

    def feed(self, data: bytes) -> None:
        if data:
            append_merged(self._chunks, data)
            self.waiting_bytes += len(data)

    def next(self) -> bytes | None:
        """Returns the next message, or None if it is not complete or its size has no room. Raises CallRefused."""
        if self._ready:
            return self._ready.popleft()
        if self._size_bytes is None and not self._begin():
            return None
        assert self._size_bytes is not None, "a message has begun"
        if self._cuts is not None:
            return self._cut(self._cuts)
        # What is there of the message is absorbed, so that its sender may send the rest.
        while self._chunks and self._body_bytes < self._size_bytes:
            append_merged(self._body, self._take_body())
        if self._body_bytes < self._size_bytes:
            return None
        message = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._end_message()
        return decompress(message, self.encoding, self.bytes_max) if self._is_compressed else message

    def _cut(self, cutter: MessageCutter) -> bytes | None:
        """Returns the next message that is made of the present one, or None."""
        # What the cutter gathers counts against the budget, before it gathers more.
        while self._chunks and not self._ready and self._has_budget(cutter.gathered_bytes):
            piece = self._take_body()
            self._ready += cutter.feed(piece, self.missing_bytes)
            if not self.missing_bytes:
                self._end_message()
                break
        return self._ready.popleft() if self._ready else None

    def take_absorbed(self) -> int:
        """Returns how many bytes were absorbed since the last call: their sender may send as many more."""
        absorbed, self._absorbed_bytes = self._absorbed_bytes, 0
        return absorbed

    def close(self) -> int:
        """Forgets everything. Returns the number of bytes that were not absorbed."""
        self._end_message()
        self._ready.clear()
        self.cutter = self._cuts = None
        self._budget.forget(self.when_room)
        left, self.waiting_bytes = self.waiting_bytes, 0
        self._chunks.clear()
        self._offset = 0
        return left

    def _begin(self) -> bool:
        """Reads the prefix of a message. Returns whether the message may be absorbed."""
        if self.waiting_bytes < PREFIX_BYTES:
            return False
        # The prefix is only looked at until the message has its room.
        head = self._chunks[0][self._offset : self._offset + PREFIX_BYTES]
        if len(head) < PREFIX_BYTES:
            head = b"".join((self._chunks[0][self._offset :], *list(self._chunks)[1:]))[:PREFIX_BYTES]
        flag, size_bytes = head[0], int.from_bytes(head[1:], "big")
        if flag > 1 or (flag and self.encoding == IDENTITY):
            raise CallRefused(GrpcStatus.INTERNAL, f"a message has the flag {flag}, and grpc-encoding {self.encoding}")
        if size_bytes > self.bytes_max:
            raise CallRefused(
                GrpcStatus.INVALID_ARGUMENT, f"a message of {size_bytes} bytes; at most {self.bytes_max} here"
            )
        cuts = self.cutter if size_bytes > CUT_BYTES and not flag else None
        if not self._has_budget(size_bytes if size_bytes > FREE_BYTES and cuts is None else 0):
            return False
        left = PREFIX_BYTES
        while left:
            left -= len(self._take_some(left))
        self._cuts = cuts
        self._is_compressed = bool(flag)
        self._size_bytes = size_bytes
        return True

    def _has_budget(self, size_bytes: int) -> bool:
        """Changes what this reader has of the budget. Returns whether it has `size_bytes` now."""
        self.is_waiting = False
        if size_bytes != self._budgeted_bytes:
            self._give_back()
            if size_bytes:
                self.is_waiting = not self._budget.take(size_bytes, self.when_room)
                self._budgeted_bytes = 0 if self.is_waiting else size_bytes
        return not self.is_waiting

    def _give_back(self) -> None:
        if self._budgeted_bytes:
            budgeted, self._budgeted_bytes = self._budgeted_bytes, 0
            self._budget.give_back(budgeted)

    def _take_body(self) -> bytes:
        """Absorbs the next bytes of the present message."""
        piece = self._take_some(self.missing_bytes)
        self._body_bytes += len(piece)
        return piece

    def _take_some(self, bytes_max: int) -> bytes:
        """Removes up to `bytes_max` bytes of the first chunk."""
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
        self._body = deque()
        self._body_bytes = 0
        self._size_bytes = None
        self._give_back()


def append_merged(pieces: deque[bytes], data: bytes) -> None:
    if pieces and len(pieces[-1]) < MERGED_BYTES and len(data) < MERGED_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)


def prefix_of_message(size_bytes: int, *, compressed: bool = False) -> bytes:
    return bytes((compressed,)) + size_bytes.to_bytes(4, "big")
