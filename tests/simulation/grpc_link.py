"""Sockets between consensus nodes and the block node of the moment: bytes in order, late, in any pieces, or cut off."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import trio

from block_node.grpc.http2.socket_bytes import SocketBytes

BUFFER_BYTES = 64 * 1024


class Direction:
    """The bytes from one side to the other. They are late by up to `delay_s_max`, and stay in order."""

    def __init__(self, rng: random.Random, delay_s_max: float) -> None:
        self._rng = rng
        self._delay_s_max = delay_s_max
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._due_s = 0.0
        self._changed = trio.Event()
        self.has_ended = self.is_broken = self.is_lost = False

    @property
    def waiting_bytes(self) -> int:
        return sum(len(data) for _, data in self._chunks)

    async def receive(self) -> bytes:
        while True:
            await trio.lowlevel.checkpoint()
            if self.is_broken:
                raise trio.BrokenResourceError("the connection was cut")
            now_s = trio.current_time()
            if self._chunks and self._chunks[0][0] <= now_s:
                data = self._chunks.popleft()[1]
                self.change()
                return data
            if not self._chunks and self.has_ended:
                return b""
            with trio.move_on_after(self._chunks[0][0] - now_s if self._chunks else float("inf")):
                await self._changed.wait()

    async def send(self, pieces: Sequence[bytes | memoryview]) -> int:
        await trio.lowlevel.checkpoint()
        while self.waiting_bytes >= BUFFER_BYTES and not self.is_broken:
            await self._changed.wait()
        if self.is_broken:
            raise trio.BrokenResourceError("the connection was cut")
        # A kernel takes as many bytes as it likes.
        data = b"".join(pieces)[: self._rng.choice((50, 1_000, 20_000))]
        # Whatever goes to a side without power is lost, and nobody says so.
        if not self.is_lost:
            self._due_s = max(self._due_s, trio.current_time() + round(self._rng.random() * self._delay_s_max, 2))
            self._chunks.append((self._due_s, data))
            self.change()
        return len(data)

    def end(self) -> None:
        self.has_ended = True
        self.change()

    def cut(self) -> None:
        self._chunks.clear()
        self.is_broken = True
        self.change()

    def lose(self) -> None:
        self._chunks.clear()
        self.is_lost = True

    def change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


class LinkEnd(SocketBytes):
    """One side of a connection, without a socket. was_cut: neither side has ended it.

    carried_end: set when the block node has sent the end of a stream over it.
    """

    def __init__(self, incoming: Direction, outgoing: Direction) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.is_closed = self.was_cut = self.carried_end = False
        self.sent_bytes = self.received_bytes = 0

    async def receive_some(self) -> bytes:
        if self.is_closed:
            raise trio.ClosedResourceError
        return await self._incoming.receive()

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        if self.is_closed:
            raise trio.ClosedResourceError
        return await self._outgoing.send(pieces)

    async def send_end(self) -> None:
        await trio.lowlevel.checkpoint()
        self._outgoing.end()

    def close(self) -> None:
        """As TCP does: a side that has not read everything takes back what the other side has not read yet."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._incoming.waiting_bytes:
            self._outgoing.cut()
        self._outgoing.end()
        self._incoming.cut()

    def cut(self) -> None:
        """Both sides notice that the connection is gone."""
        self.was_cut = True
        self._incoming.cut()
        self._outgoing.cut()

    def lose_power(self) -> None:
        """Nothing goes either way any more, and nobody notices."""
        self.was_cut = True
        self._incoming.lose()
        self._outgoing.lose()


def make_link(rng: random.Random, delay_s_max: float) -> tuple[LinkEnd, LinkEnd]:
    there, back = Direction(rng, delay_s_max), Direction(rng, delay_s_max)
    return LinkEnd(back, there), LinkEnd(there, back)
