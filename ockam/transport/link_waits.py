"""Waits of a connection's reader for the mailboxes that it has filled: which ones it waits for.

A link is a connection by which many peers send. Two nodes that forward to each other must not wait for each other, and
a slow peer must not stop everybody whose answers come through its link."""

from __future__ import annotations

from collections.abc import Sequence

from ockam.actors.mailbox import Mailbox
from ockam.actors.message import Message
from ockam.transport.forwarding import is_passed_on, leaves


async def wait_rooms(full: Sequence[Mailbox], messages: Sequence[Message], *, is_link: bool) -> None:
    """Waits until the mailboxes that have got these messages have room. is_link: whether a link has read them."""
    for mailbox in full:
        # What the peer does not take counts for it, and closes its connection when it is too much.
        if is_link and mailbox.is_peer:
            continue
        # What does not fit there is refused (`forward_filter`). Only a sender whose messages can all be refused need
        # not wait, because anybody can pretend that some of them were passed on.
        if mailbox.is_link and all(is_passed_on(each.return_route) for each in messages if leaves(each.onward_route)):
            continue
        await mailbox.wait_room()
