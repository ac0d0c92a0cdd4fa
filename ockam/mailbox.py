"""A bounded queue of messages in front of one worker, and the worker's state of life. No routing, no supervision."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

import msgspec
import trio

from ockam.message import Message

MESSAGES_MAX = 20_000
"""A mailbox with this many messages is full: connections stop reading until it has room."""
BYTES_MAX = 16 * 1024 * 1024
"""The same, by the size of the payloads."""
RUN_MESSAGES_MAX = 10_000
"""The longest run that a worker is handed at once."""


class Life(enum.Enum):
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class MailboxStatistics(msgspec.Struct, frozen=True):
    """messages and size_bytes wait now; received counts all since the start."""

    messages: int
    size_bytes: int
    received: int


class Mailbox:
    """Messages in arrival order. `full` is advice to whoever can wait; `put` itself never refuses.

    A worker that cannot pass on more of what it takes says so by `hold`: its mailbox then counts as full until `admit`.

    What bounds it: every connection stops reading while a mailbox it fed is full, so a mailbox passes its limit by at
    most one read of each connection.
    """

    __slots__ = ("_held", "_messages", "_received", "_room", "_size_bytes")

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._size_bytes = 0
        self._received = 0
        self._held = False
        self._room: trio.Event | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        return self._held or len(self._messages) >= MESSAGES_MAX or self._size_bytes >= BYTES_MAX

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def put(self, message: Message) -> None:
        self._messages.append(message)
        self._size_bytes += len(message.payload)
        self._received += 1

    def put_run(self, run: Sequence[Message]) -> None:
        """Put many, in order."""
        self._messages.extend(run)
        self._size_bytes += sum([len(message.payload) for message in run])
        self._received += len(run)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Return the unhandled end of a run to the front."""
        self._messages.extendleft(reversed(messages))
        self._size_bytes += sum(len(message.payload) for message in messages)

    def take_run(self) -> list[Message]:
        """All that waits, oldest first, up to RUN_MESSAGES_MAX."""
        messages = self._messages
        if len(messages) <= RUN_MESSAGES_MAX:
            run = list(messages)
            messages.clear()
            self._size_bytes = 0
        else:
            run = [messages.popleft() for _ in range(RUN_MESSAGES_MAX)]
            self._size_bytes -= sum(len(message.payload) for message in run)
        self._tell_room()
        return run

    def hold(self) -> None:
        """Count as full, whatever waits here. Safe to repeat."""
        self._held = True

    def admit(self) -> None:
        """End `hold`. Safe to repeat."""
        self._held = False
        self._tell_room()

    async def wait_room(self) -> None:
        while self.full:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def release(self) -> None:
        """Let go of everybody who waits for room, since nobody takes messages here any more."""
        self._messages.clear()
        self._size_bytes = 0
        self._held = False
        self._tell_room()

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(len(self._messages), self._size_bytes, self._received)

    def _tell_room(self) -> None:
        if self._room is not None and not self.full:
            self._room.set()
            self._room = None
