"""Claim: each fetch of blocks asks for compression first, since a source may have refused it for a moment only.

Method: a source on a real node, whose other side is a worker that refuses what the test says.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from block_node.backfill.route_source import RouteSource
from block_node.protocol_reading import SUBSCRIBE, Subscribe, Subscribed, SubscribePacked, SubscribeRequest, Unsubscribe
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.protocol import error_payload


class Refusing(Worker):
    def __init__(self, refuses: list[bool]) -> None:
        self._refuses = refuses
        self.asked: list[type[SubscribeRequest]] = []

    def handle(self, message: Message) -> None:
        request = SUBSCRIBE.decode_request(message.payload)
        if isinstance(request, Unsubscribe):
            return
        self.asked.append(type(request))
        refuses = self._refuses.pop(0)
        self.reply(message, error_payload("no") if refuses else SUBSCRIBE.encode_response(Subscribed(1, 0)))


class Listener:
    def grew(self, size_bytes: int) -> None: ...

    def block(self, number: int, items: list[bytes]) -> None: ...

    def ended(self, reason: str, *, lied: bool) -> None: ...


@pytest.mark.parametrize(
    ("refuses", "asked"),
    [
        ([True, True, False], [SubscribePacked, Subscribe, SubscribePacked]),
        ([True, False, False], [SubscribePacked, Subscribe, SubscribePacked]),
    ],
    ids=["two errors", "one error"],
)
async def test_a_source_is_asked_for_packed_items_again(
    refuses: list[bool], asked: list[type[SubscribeRequest]]
) -> None:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        there = Refusing(refuses)
        node.register([local("there")], lambda: there)
        source = RouteSource(node, (local("there"),), iter("ab").__next__, silence_s_max=60.0)
        for _ in range(2):
            fetching = source.fetch(0, 1, Listener())
            await trio.testing.wait_all_tasks_blocked(0.01)
            fetching.cancel()
        assert there.asked == asked
        nursery.cancel_scope.cancel()
