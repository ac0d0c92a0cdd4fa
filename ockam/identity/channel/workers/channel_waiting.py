"""ChannelWaiting: makes the senders to one channel wait, while workers are full or an identity exceeds its limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import trio

from ockam.actors.address import Address
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.quotas.usage import Usage
from ockam.quotas.usage_waits import waits_of


class ChannelWaiting:
    def __init__(self, node: Node, nursery: trio.Nursery, inner: Address) -> None:
        self._node = node
        self._nursery = nursery
        self._inner = inner
        self._waits = False

    def note(self, messages: Sequence[Message], fed: Iterable[Mailbox], usage: Usage | None) -> None:
        """Counts messages that have left the channel into the mailboxes `fed`, and makes the senders wait if need be.
        usage: that of the channel's identity; None if the connection has counted the messages already."""
        full = [mailbox for mailbox in fed if mailbox.full]
        limited = usage if usage is not None and (usage.is_rated or usage.counts_bytes) else None
        is_over = False
        if limited is not None and messages:
            now_s = trio.current_time()
            limited.machine.spend(len(messages), sum(len(message.payload) for message in messages), now_s)
            is_over = limited.machine.is_over or limited.machine.delay_s(now_s)[0] > 0
        # One task waits for all reasons. Meanwhile the mailbox of the channel counts as full.
        own = self._node.find_mailbox(self._inner)
        if (full or is_over) and not self._waits and own is not None:
            self._waits = True
            own.hold()
            self._nursery.start_soon(self._wait, own, full, limited)

    async def _wait(self, own: Mailbox, full: list[Mailbox], usage: Usage | None) -> None:
        for mailbox in full:
            await mailbox.wait_room()
        if usage is not None:
            await waits_of(usage).wait_turn()
            await waits_of(usage).wait_room()
        self._waits = False
        own.admit()
