"""Goal: a channel keeps one connection, however often the other side takes no more calls, and none after its end.

Method: a door of ours on a real socket, which says GOAWAY and keeps its connections; whole nodes for a hand-over.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from block_node.grpc.client.channel import AskingConnection, GrpcChannel
from block_node.grpc.http2.http2_machine import STREAM_ID_MAX
from block_node.grpc.http2.status import GrpcStatus
from ockam.actors.node import Node
from tests.block_node.grpc.http2.door import Door, opened_door, wait_until
from tests.stream_node.doors.grpc.test_grpc_door import BLOCKS, grpc_node, grpc_of
from tests.support.served import served


class Answer:
    """Takes the answer to a call."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.status: GrpcStatus | None = None

    def take(self, message: bytes) -> None:
        self.messages.append(message)

    def room(self) -> None:
        pass

    def done(self, status: GrpcStatus, text: str) -> None:
        self.status = status


async def connected(channel: GrpcChannel) -> AskingConnection:
    found: list[AskingConnection] = []
    channel.use(found.append, lambda reason: None)
    await wait_until(lambda: bool(found))
    return found[0]


async def say_goaway(door: Door, connection: AskingConnection) -> None:
    machine = door.connections[-1]._machine
    machine._h2.close_connection(last_stream_id=STREAM_ID_MAX)
    machine._take_frames()
    door.connections[-1]._note_work()
    await wait_until(lambda: not connection.may_ask)


async def test_a_connection_that_takes_no_more_calls_ends_after_its_last_one() -> None:
    """Claim: the earlier connection stays until its call is over, also when the answer has come and is taken later."""
    async with opened_door() as door, trio.open_nursery() as nursery:
        channel = GrpcChannel(Node(nursery), door.address)
        first = await connected(channel)
        call = first.ask(b"/test.Test/echo", answer := Answer(), b"x")
        call.hold()
        await say_goaway(door, first)
        await wait_until(lambda: not first._machine.calls)
        assert await connected(channel) is not first
        # Another use of the channel, with its turns of the event loop, ends nothing.
        await connected(channel)
        assert not channel.counts.closed
        call.release()
        await wait_until(lambda: answer.status is not None)
        assert (answer.messages, answer.status) == ([b"x"], GrpcStatus.OK)
        await wait_until(lambda: channel.counts.closed == {"shutdown": 1})
        nursery.cancel_scope.cancel()


async def test_a_status_of_thousands_of_digits_ends_its_call_alone() -> None:
    """Claim: an unreadable grpc-status is UNKNOWN, and the other calls of the connection go on. Method: a status with
    more digits than `int` takes, while headers may have 8 KiB."""
    async with opened_door() as door, trio.open_nursery() as nursery:
        channel = GrpcChannel(Node(nursery), door.address)
        connection = await connected(channel)
        connection.ask(b"/test.Test/hold", answer := Answer(), b"x")
        await wait_until(lambda: bool(door.handlers))
        machine = door.connections[-1]._machine
        [call] = machine.calls.values()
        machine._end_half(call, [(b"grpc-status", b"1" * 5_000)])
        door.connections[-1]._note_work()
        await wait_until(lambda: answer.status is not None)
        assert answer.status is GrpcStatus.UNKNOWN
        connection.ask(b"/test.Test/echo", answer := Answer(), b"y")
        await wait_until(lambda: answer.status is not None)
        assert (answer.messages, answer.status) == ([b"y"], GrpcStatus.OK)
        nursery.cancel_scope.cancel()


async def test_each_goaway_leaves_one_connection() -> None:
    """Claim: when each connection is left at once by the other side, only the last one is open."""
    async with opened_door() as door, trio.open_nursery() as nursery:
        channel = GrpcChannel(Node(nursery), door.address)
        for left in range(5):
            await wait_until(lambda left=left: channel.counts.closed["shutdown"] == max(0, left - 1))  # type: ignore[misc]
            await say_goaway(door, await connected(channel))
        nursery.cancel_scope.cancel()


async def test_a_closed_channel_leaves_no_earlier_connection() -> None:
    """Claim: the end of a channel ends its earlier connection too, whose call would keep it for as long as it lasts."""
    async with opened_door() as door, trio.open_nursery() as nursery:
        channel = GrpcChannel(Node(nursery), door.address)
        first = await connected(channel)
        first.ask(b"/test.Test/echo", answer := Answer())
        await say_goaway(door, first)
        await connected(channel)
        channel.close()
        await wait_until(lambda: channel.counts.closed == {"unused": 2})
        assert answer.status is GrpcStatus.UNAVAILABLE
        nursery.cancel_scope.cancel()


async def test_a_channel_that_is_closed_while_it_connects_keeps_no_connection() -> None:
    async with opened_door() as door, trio.open_nursery() as nursery:
        channel = GrpcChannel(Node(nursery), door.address)
        channel.use(lambda connection: None, lambda reason: None)
        channel.close()
        await wait_until(lambda: channel.counts.closed == {"unused": 1})
        nursery.cancel_scope.cancel()


async def test_a_name_that_no_thread_can_look_up_ends_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: without room for a thread, a source counts as unreachable, and the tasks of the node go on. Method: the
    look-up of the name raises what Python raises then."""

    def fail(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async with trio.open_nursery() as nursery:
        channel = GrpcChannel(Node(nursery), "localhost:1")
        reasons: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(trio.to_thread, "run_sync", fail)
            channel.use(lambda connection: None, reasons.append)
            await wait_until(lambda: bool(reasons))
        assert reasons == ["unreachable: can't start new thread"]
        # The channel tries again.
        channel.use(lambda connection: None, reasons.append)
        await wait_until(lambda: len(reasons) == 2)
        nursery.cancel_scope.cancel()


async def test_a_hand_over_of_the_chain_ends_the_connection_to_its_source(tmp_path: Path) -> None:
    """Claim: a node of a cluster has a connection to a source only while it serves the chain."""
    async with grpc_node(tmp_path / "source") as (source, port):
        settings = {**BLOCKS, "backfill_block_node_sources": (f"grpc://127.0.0.1:{port}",)}
        async with served(tmp_path / "own", **settings) as own:
            assert own.server._parts is not None
            services = own.server._parts.services
            for serves in (True, False, True):
                if not serves:
                    services.leave_chain()
                elif services._blocks is None:
                    services.serve_chain()
                await wait_until(partial(lambda count: grpc_of(source).open == count, int(serves)))
