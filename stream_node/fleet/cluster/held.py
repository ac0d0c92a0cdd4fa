"""Held: the messages of a shard that wait until the route to its owner is clear. It decides nothing about that
route."""

from __future__ import annotations

from collections.abc import Container, Iterator

from ockam.actors.address import Address
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import Message


class Held:
    """The messages that wait for one shard.
    passed_on: messages from other members, and those that waited for workers which have stopped. They go first: some
    may have come from this member's own clients, before those that are in `own`. own: messages that the clients of this
    member have sent since. since_s: since when some message waits, on trio's clock."""

    __slots__ = ("own", "passed_on", "since_s")

    def __init__(self) -> None:
        self.passed_on = Mailbox()
        self.own = Mailbox()
        self.since_s = 0.0

    def __len__(self) -> int:
        return len(self.passed_on) + len(self.own)

    def put(self, message: Message, now_s: float, *, is_own: bool) -> Mailbox:
        """Adds a message, and returns its mailbox. is_own: whether a client of this member has sent it."""
        if not len(self):
            self.since_s = now_s
        mailbox = self.own if is_own else self.passed_on
        mailbox.put(message)
        return mailbox

    def take(self) -> Iterator[Message]:
        """Removes and returns all messages, in the order in which they go on."""
        for mailbox in (self.passed_on, self.own):
            while run := mailbox.take_run():
                yield from run

    def drop(self, senders: Container[Address]) -> None:
        """Drops the messages of senders whose connections were at these addresses and are closed."""
        for mailbox in (self.passed_on, self.own):
            kept: list[Message] = []
            while run := mailbox.take_run():
                kept += (each for each in run if not each.return_route or each.return_route[0] not in senders)
            for message in kept:
                mailbox.put(message)
