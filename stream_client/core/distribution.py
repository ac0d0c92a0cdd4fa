"""Passes received messages to the push queues whose pushes they answer, and all other messages to the core.

Nearly all messages that a busy client receives are confirms of pushes, so this loop must be cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ockam.actors.address import Address, Route
from ockam.actors.message import Message
from stream_client.core.push_queue import PushQueue


def distribute(
    messages: Sequence[Message], queues: Mapping[Address, PushQueue], take_other: Callable[[Message], None]
) -> None:
    """Passes each message to the push queue at its address, or to `take_other`, and then settles these queues."""
    # Often many confirms in sequence are for one queue, and these messages share one route object. So one look-up is
    # enough.
    answered: dict[PushQueue, None] = {}
    route: Route | None = None
    queue: PushQueue | None = None
    for message in messages:
        onward_route = message.onward_route
        if onward_route is not route:
            route = onward_route
            queue = queues.get(onward_route[0])
            if queue is not None:
                answered[queue] = None
        if queue is not None:
            queue.take(message.payload)
        else:
            take_other(message)
    # This is done after all answers of this read, so that each publisher is woken once and sees all its room.
    for queue in answered:
        queue.settle()
