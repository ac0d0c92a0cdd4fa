"""Goal: a publisher that understands no refusal can push to a mirror, and every push is stored once, at the source.

Method: real nodes. The publisher is one of the real services: plain pushes with the request id 1, many under way at a
time. What was confirmed is compared with what a pull of the source finds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Right
from ockam.identity.rules.rules import Rule
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from stream_client import connect
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.fleet.mirror.tasks import Passing
from stream_service.extensions import RichStatus
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import Role
from stream_service.names import stream_address
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status
from stream_service.role_machine import StreamRole
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.ockam.identity.rules.ways import WIRES, Token
from tests.stream_node.fleet.mirror.mirrors import add, contents, follows_to, is_in, request, role_of, wait_for
from tests.support.rich import push
from tests.support.served import PATIENCE_S, Served, served
from tests.support.stream_peer import StreamPeer

S = (stream_address("s", 0),)
CLIENT = Right.READ | Right.WRITE | Right.CREATE
DATA = [b"message %d" % number for number in range(200)]


async def publish(peer: StreamPeer, data: list[bytes]) -> list[PushConfirm]:
    """Pushes as a real publisher does: with one request id for all."""
    pushes = [PUSH.encode_request(PushRequest(1, each)) for each in data]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.send_all, b"".join(peer.frame(S, push) for push in pushes))
        return [PUSH.decode_response((await peer.receive(PATIENCE_S)).payload) for _ in data]


async def mirror_of(a: Served, b: Served) -> None:
    await (await a.peer()).create("s")
    await add(b.address, "s", a.address)
    await wait_for(b.address, follows_to(0))


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_pushes_to_a_mirror_are_stored_by_its_source(tmp_path: Path, wire: Wire) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b", mirror_passes_pushes=True) as b:
        await mirror_of(a, b)
        confirms = await publish(await b.peer(wire), DATA)
        assert [(each.status, each.index) for each in confirms] == [(Status.OK, index) for index in range(len(DATA))]
        await wait_for(b.address, follows_to(len(DATA)))
        for node in (a, b):
            assert [each.data for each in (await contents(node.address, "s"))[2]] == DATA


async def test_a_publisher_of_ours_pushes_once_through_a_mirror_and_goes_on_when_it_is_promoted(tmp_path: Path) -> None:
    """With batches, keys and sequence numbers, from both nodes and over a change of places."""
    passes = {"mirror_passes_pushes": True}
    async with served(tmp_path / "a", **passes) as a, served(tmp_path / "b", **passes) as b:
        await mirror_of(a, b)
        async with connect(b.address) as client:
            stream = await client.create("s")
            async with stream.publisher(idempotent=True, publisher_id=b"me") as publisher:
                for each in DATA[:100]:
                    await publisher.push(each, key=b"k")
            await wait_for(b.address, follows_to(100))
            await request(b.address, MirrorAction.PROMOTE, "s")
            assert await role_of(a.address) is Role.MIRROR
            await wait_for(a.address, follows_to(100))
        # The former source passes on to the new one.
        async with connect(a.address) as client:
            stream = await client.create("s")
            async with stream.publisher(idempotent=True, publisher_id=b"me", first_number=100) as publisher:
                for each in DATA[100:]:
                    await publisher.push(each, key=b"k")
        assert [each.data for each in (await contents(b.address, "s"))[2]] == DATA


async def test_a_mirror_that_does_not_reach_its_source_refuses(tmp_path: Path) -> None:
    async with served(tmp_path / "b", mirror_passes_pushes=True, error_delay_s=0.0) as b:
        async with served(tmp_path / "a") as a:
            await mirror_of(a, b)
        await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        (confirm,) = await publish(await b.peer(), [b"x"])
        assert confirm.status is Status.ERROR


async def test_nodes_that_follow_each_other_send_nothing_round(tmp_path: Path) -> None:
    settings = {"mirror_passes_pushes": True, "error_delay_s": 0.0}
    async with served(tmp_path / "a", **settings) as a, served(tmp_path / "b", **settings) as b:
        await mirror_of(a, b)
        await add(a.address, "s", b.address, force=True)
        (confirm,) = await publish(await b.peer(), [b"x"])
        assert confirm.status is Status.ERROR


async def test_who_may_not_push_to_the_source_does_not_through_a_mirror_of_another_name(tmp_path: Path) -> None:
    """The node may push to the source. Who may push to the mirror alone gets no more by that."""
    folder = tmp_path / "b"
    folder.mkdir()
    writer = Token(folder, "writer")
    rules = [
        may(Right.ADMIN | Right.FORWARD | CLIENT),
        Rule("not there", ("anonymous",), may_not=Right.WRITE, on=("source",)),
        may(CLIENT, "", writer.identity, "writes"),
    ]
    settings = {"mirror_passes_pushes": True, "error_delay_s": 0.0}
    async with served(tmp_path / "a") as a, guarded(folder, *rules, **settings) as b:
        await (await a.peer()).create("source")
        await add(b.running.address, "s", a.address, source_name="source")
        await wait_for(b.running.address, follows_to(0))
        (refused,) = await publish(await b.running.peer(), [b"x"])
        (confirmed,) = await publish(await writer.peer(b, HEAD), [b"y"])
        assert (refused.status, confirmed.status) == (Status.ERROR, Status.OK)
        assert [each.data for each in (await contents(a.address, "source"))[2]] == [b"y"]


async def test_a_co_writer_uses_up_no_numbers_of_another_through_a_mirror(tmp_path: Path) -> None:
    """At the source, both are the node of the mirror. So a push with a number is told to go there itself."""
    folder = tmp_path / "b"
    for each in (tmp_path / "a", folder):
        each.mkdir()
    good, bad = Token(folder, "good"), Token(folder, "bad")
    rules = [
        may(Right.ADMIN | Right.FORWARD | CLIENT),
        *(may(CLIENT, "", each.identity, each.identity[6:]) for each in (good, bad)),
    ]
    async with (
        guarded(tmp_path / "a", may(CLIENT | Right.INDEX)) as a,
        guarded(folder, *rules, mirror_passes_pushes=True, error_delay_s=0.0) as b,
    ):
        source = a.running
        await (await source.peer()).create("s")
        await add(b.running.address, "s", source.address)
        await wait_for(b.running.address, follows_to(0))
        for way, data in ((bad, b"evil"), (good, b"mine")):
            confirm = await push(await way.peer(b, HEAD), S, data, sequence=(b"id of good", 0))
            assert confirm.status is RichStatus.ERROR, "as a mirror refuses"
        confirm = await push(await good.peer(b, HEAD), S, b"no number", key=b"k")
        assert confirm.status is RichStatus.OK
        confirm = await push(await source.peer(), S, b"mine", sequence=(b"id of good", 0))
        assert confirm.status is RichStatus.OK, "not a false duplicate"


async def test_a_source_answers_only_those_whose_pushes_it_has_got() -> None:
    """It knows the address of the worker that passes on, and names another worker behind it."""
    got: list[bytes] = []

    class Victim(Worker):
        def handle(self, message: Message) -> None:
            got.append(message.payload)

    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        passing = Passing(node, lambda identity: MirrorRow(1, StreamRole.FOLLOWING, "127.0.0.1:9", "s"))
        node.register([local("passing")], lambda: passing)
        for name in ("publisher", "victim"):
            node.register([local(name)], Victim)
        push = Message(S, (local("publisher"),), PUSH.encode_request(PushRequest(1, b"x")), Origin("tcp"))
        assert passing.pass_on(("s", 0), [push]) == []
        for origin, to in (("127.0.0.1:9", "victim"), ("127.0.0.1:9", "publisher"), ("127.0.0.1:8", "publisher")):
            route = (local("passing"), S[0], local(to))
            node.send(Message(route, (), f"{origin} to {to}".encode(), Origin("tcp", origin)))
        nursery.cancel_scope.cancel()
    assert got == [b"127.0.0.1:9 to publisher"]
