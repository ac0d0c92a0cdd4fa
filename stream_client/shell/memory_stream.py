"""MemoryStream: an end of a connection within one process, for trio and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from stream_client.shell.in_memory import Pipe


class MemoryStream(anyio.abc.ByteStream):
    """A stream of AnyIO over two pipes. Only one task receives; it gets the bytes of one `Pipe.put` at a time."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._changed = anyio.Event()
        loop: Any = anyio.lowlevel.current_token().native_token
        self._soon: Callable[..., object] = getattr(loop, "run_sync_soon", None) or loop.call_soon_threadsafe
        incoming.wake = self._wake

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {anyio.abc.SocketAttribute.remote_address: lambda: ("127.0.0.1", 0)}

    async def receive(self, max_bytes: int = 0) -> bytes:
        await anyio.lowlevel.checkpoint_if_cancelled()
        if (data := self._incoming.take()) is not None:
            await anyio.lowlevel.cancel_shielded_checkpoint()
        while data is None:
            # The event is set in this thread only, so nothing is missed between these lines.
            self._changed = anyio.Event()
            await self._changed.wait()
            data = self._incoming.take()
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes | bytearray | memoryview) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        # A pipe takes everything at once. If this task waited here, each answer would cost one more turn of its loop.
        self._outgoing.put(item)

    async def send_eof(self) -> None:
        self._outgoing.end()

    async def aclose(self) -> None:
        self._outgoing.end()
        self._incoming.end()

    def _wake(self) -> None:
        # The event loop may have ended, and nobody receives.
        with suppress(RuntimeError):
            self._soon(lambda: self._changed.set())
