"""Mailbox: the bounded queue of the messages for one worker. It does not route messages or restart workers."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec
import trio

from ockam.actors.message import Message
from ockam.quotas.usage import Usage

MESSAGES_MAX = 20_000
"""The number of messages at which a mailbox is full. Connections that deliver to it stop reading until it has room."""
BYTES_MAX = 16 * 1024 * 1024
RUN_MESSAGES_MAX = 10_000
"""The most messages that a worker gets in one call of `receive`."""


class Life(enum.Enum):
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class MailboxStatistics(msgspec.Struct, frozen=True):
    """The statistics of a mailbox. messages, size_bytes: the number of waiting messages and the size of their payloads.
    received: the number of messages put into it so far."""

    messages: int
    size_bytes: int
    received: int


class Mailbox:
    """The messages that wait for one worker, in the order of their arrival. `put` never refuses a message.

    A connection stops reading while a mailbox to which it has delivered messages is `full`, so a mailbox exceeds its
    limits by at most one read of each connection. It also counts as full from `hold` to `admit`.

    refuses: whether the node refuses messages for this mailbox while it is `at_limit`. Then it never counts as full, so
    that a worker that never reads stops no connection.
    is_link: whether the mailbox is that of a connection that this node has made to pass messages on.
    is_peer: whether the mailbox is that of a connection whose peer has called this node.
    passed: the number of the first messages that the gate has let pass, by the rules of `rules_version`.

    Invariant: if an identity has a limit on the bytes that the node holds for it, the usage of the identity counts the
    bytes of its messages that wait here, or were taken and not handled (`_taken` messages). `counted` has an entry for
    each arrival of such messages, oldest first: the value of `_received` after it, its bytes, and the usage."""

    __slots__ = (
        "_held",
        "_messages",
        "_received",
        "_room",
        "_taken",
        "counted",
        "is_link",
        "is_peer",
        "passed",
        "refuses",
        "rules_version",
        "size_bytes",
    )

    def __init__(self) -> None:
        # These are lists, because an empty deque takes 760 bytes, and most mailboxes are empty.
        self._messages: list[Message] = []
        self.counted: list[tuple[int, int, Usage]] = []
        self.size_bytes = self._received = self._taken = self.passed = self.rules_version = 0
        self._held = False
        self._room: trio.Event | None = None
        self.is_link = self.is_peer = self.refuses = False

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        return self._held or (self.at_limit and not self.refuses)

    @property
    def at_limit(self) -> bool:
        return len(self._messages) >= MESSAGES_MAX or self.size_bytes >= BYTES_MAX

    def put(self, message: Message) -> None:
        # Compiled code raises TypeError for a payload that is no bytes. Such a message must not be in the mailbox then.
        size_bytes = len(message.payload)
        self._messages.append(message)
        self.size_bytes += size_bytes
        self._received += 1
        if message.origin.usage.counts_bytes:
            self._hold_for(message.origin.usage, size_bytes)

    def put_run(self, run: Sequence[Message]) -> None:
        # A list is summed faster than a generator, and every push of a busy node passes here.
        size_bytes = sum([len(message.payload) for message in run])
        self._messages.extend(run)
        self.size_bytes += size_bytes
        self._received += len(run)
        usage = run[0].origin.usage
        if usage.counts_bytes:
            self._hold_for(usage, size_bytes)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Puts the last messages of a run, which were taken and not handled, in front of all others."""
        self._messages[:0] = messages
        self.size_bytes += sum(len(message.payload) for message in messages)
        self._taken -= len(messages)
        self.passed += len(messages)

    def take_run(self, count_max: int = RUN_MESSAGES_MAX, *, counts: bool = False) -> list[Message]:
        """Removes and returns the oldest messages. counts: whether they count for their senders until `handled`."""
        run = self._messages
        # Mostly the worker takes everything, and nothing needs to be summed.
        if len(run) <= count_max:
            self._messages = []
            self.size_bytes = 0
        else:
            self._messages = run[count_max:]
            del run[count_max:]
            self.size_bytes -= sum(len(message.payload) for message in run)
        if self.passed:
            self.passed = max(0, self.passed - len(run))
        if counts:
            self._taken = len(run)
        elif self.counted:
            self._give_back()
        self._report_room()
        return run

    def handled(self, count: int | None = None) -> None:
        """Stops counting `count` of the messages that were taken; None: all of them."""
        self._taken -= self._taken if count is None else count
        if self.counted:
            self._give_back()

    def hold(self) -> None:
        """Makes the mailbox count as full, even without messages, until `admit` is called. Safe to repeat."""
        self._held = True

    def admit(self) -> None:
        self._held = False
        self._report_room()

    async def wait_room(self) -> None:
        while self.full:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def release(self) -> None:
        self._messages.clear()
        self.size_bytes = self._taken = self.passed = 0
        self._give_back()
        self._held = False
        self._report_room()

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(len(self._messages), self.size_bytes, self._received)

    def _hold_for(self, usage: Usage, size_bytes: int) -> None:
        usage.hold(size_bytes)
        self.counted.append((self._received, size_bytes, usage))

    def _give_back(self) -> None:
        # Messages that arrived together are counted until all of them are handled.
        gone = self._received - len(self._messages) - self._taken
        given = 0
        for end, size_bytes, usage in self.counted:
            if end > gone:
                break
            usage.hold(-size_bytes)
            given += 1
        del self.counted[:given]

    def _report_room(self) -> None:
        if self._room is not None and not self.full:
            self._room.set()
            self._room = None
