"""Claim: a program that opens and closes publishers keeps none of them in memory, however long an answer may take.

Method: a publisher of a client in virtual time that stands still; its push is confirmed before its end.
"""

from __future__ import annotations

import gc
import weakref

from ockam.actors.message import Message
from stream_client.publish import Publisher
from stream_service.protocol import PUSH, PushConfirm, Status
from tests.client.machines.memory_node import MemoryNode
from tests.client.machines.virtual import Answers, Clock, VirtualShell


def test_a_closed_publisher_does_not_wait_for_its_timer() -> None:
    clock = Clock()
    other = MemoryNode(clock)

    def node(message: Message) -> Answers:
        if PUSH.is_in(message.payload):
            confirm = PushConfirm(PUSH.decode_request(message.payload).request_id, Status.OK, 0)
            yield message.onward_route[-1], PUSH.encode_response(confirm)
        else:
            yield from other(message)

    shell = VirtualShell(clock, node)
    stream = shell.run(shell.client().create("s"))

    async def push() -> weakref.ref[Publisher]:
        async with stream.publisher() as publisher:
            await publisher.push(b"x")
        return weakref.ref(publisher)

    closed = shell.run(push())
    gc.collect()
    assert closed() is None
