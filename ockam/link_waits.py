"""Waits of a connection's reader for the mailboxes that it has filled: which ones it waits for, and for how long.

A link is a connection that this node has made, by which it passes messages of other peers on. If what another node has
passed on waited for a link, two nodes that forward to each other could wait for each other. If a link waited for a peer
that takes nothing, everybody whose answers come through it would wait, too. While a connection waits here, it reads no
bytes, so that TCP stops its peer from sending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ockam.connection_machine import ConnectionMachine
from ockam.forwarding import is_passed_on
from ockam.mailbox import Mailbox
from ockam.message import Message

LINK_WAIT_S = 2.0
"""After this time, a link that waits for room at a peer looks whether the peer has taken anything. A peer that has
taken nothing between two such looks is closed."""


async def wait_rooms(full: Sequence[Mailbox], messages: Sequence[Message], *, is_link: bool) -> None:
    """Waits until the mailboxes that have got these messages have room.

    is_link: whether the reader is that of a link."""
    for mailbox in full:
        # What does not fit there is refused (`forward_filter`).
        if mailbox.is_link and any(is_passed_on(message.return_route) for message in messages):
            continue
        if not is_link:
            await mailbox.wait_room()
        while mailbox.full:
            with trio.move_on_after(LINK_WAIT_S) as scope:
                await mailbox.wait_room()
            if scope.cancelled_caught and mailbox.on_stuck is not None:
                mailbox.on_stuck()


def stuck_watch(machine: ConnectionMachine, close: Callable[[], None]) -> Callable[[], None]:
    """Returns the function that a link calls after it has waited for a peer. It calls `close` if the peer has taken
    nothing since the last call."""
    before_bytes = -1

    def look() -> None:
        nonlocal before_bytes
        if before_bytes == machine.backlog.size_bytes:
            close()
        before_bytes = machine.backlog.size_bytes

    return look
