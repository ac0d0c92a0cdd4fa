"""Connections within one process, without sockets, to nodes in memory (`stream_node.testing.memory_node`).

A connection is two pipes, one for each direction. A pipe has no bound, so its sender never waits.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

HOST = "memory.invalid"
"""The host in the addresses of nodes in memory. No computer has a name in the domain `invalid` (RFC 6761)."""


class Pipe:
    """Bytes on their way from one thread to another. `wake` is called in the sender's thread after each change."""

    def __init__(self) -> None:
        self.wake: Callable[[], object] = lambda: None
        self._chunks: deque[bytes] = deque()
        self._ended = False

    def put(self, data: bytes | bytearray | memoryview) -> None:
        self._chunks.append(bytes(data))
        self.wake()

    def end(self) -> None:
        self._ended = True
        self.wake()

    def take(self) -> bytes | None:
        """Returns the bytes of the oldest `put`, or b"" after the end; None if there is neither."""
        # The end is looked for first, so that bytes which were put before it are not missed.
        ended = self._ended
        try:
            return self._chunks.popleft()
        except IndexError:
            return b"" if ended else None

    @property
    def is_ready(self) -> bool:
        return self._ended or bool(self._chunks)


listeners: dict[int, Callable[[Pipe, Pipe], None]] = {}
"""By the port of each node in memory, the function that takes a new connection: the pipe to the node, and the pipe from
the node. Any thread can call it."""


def open_pipes(port: int) -> tuple[Pipe, Pipe]:
    """Connects to a node in memory. Returns the pipes from the node and to the node. Raises ConnectionRefusedError."""
    accept = listeners.get(port)
    if accept is None:
        raise ConnectionRefusedError("this node in memory has ended, or runs in another process")
    to_node, from_node = Pipe(), Pipe()
    accept(to_node, from_node)
    return from_node, to_node


class MemorySocket:
    """A blocking client's end of a connection, with the methods of a socket that the client calls."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._timeout_s: float | None = None
        self._changed = threading.Event()
        incoming.wake = self._changed.set
        self.sendall, self.close = outgoing.put, outgoing.end

    def fileno(self) -> int:
        return -1

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 0

    def setblocking(self, blocks: bool) -> None:
        self._timeout_s = None if blocks else 0.0

    def settimeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def send(self, data: memoryview) -> int:
        self._outgoing.put(data)
        return len(data)

    def recv(self, _bytes_max: int) -> bytes:
        data = self._incoming.take() if self.wait(self._timeout_s) else None
        if data is None:
            raise TimeoutError if self._timeout_s else BlockingIOError
        return data

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for at most `timeout_s` seconds (None: no limit). Returns whether there is something to receive."""
        if not self._incoming.is_ready:
            self._changed.clear()
            # Bytes may have come before the flag was cleared.
            if not self._incoming.is_ready:
                self._changed.wait(timeout_s)
        return self._incoming.is_ready


class MemorySelector(selectors.BaseSelector):
    """Waits until a MemorySocket has something to receive."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._keys.setdefault(fileobj, selectors.SelectorKey(fileobj, -1, events, data))

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [(key, selectors.EVENT_READ) for socket, key in self._keys.items() if socket.wait(timeout)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys
