"""Goal: nobody gains a right through a node that has it. Method: real sockets, forged routes, forwarding nodes.

Each attack is a message that a peer may form: onward routes to internal workers, to other peers and back to the node
itself, and return routes that point there. Each test also sends the same message where it is allowed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from block_node.protocol import PUBLISH, EndStream, OpenSession, PublisherEndCode, StreamEnded
from block_node.protocol_reading import SUBSCRIBE, Subscribe, Subscribed, Unsubscribe
from ockam.actors.address import Address, Route, local, tcp
from ockam.actors.message import HERE, Message
from ockam.identity.gate import DENIED
from ockam.identity.identity import Identity
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.protocol import ERROR
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire_head import HEAD
from stream_service.names import stream_address
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest, Status
from tests.ockam.identity.rules.guarded_node import Guarded, guarded, may
from tests.ockam.identity.rules.ways import Token
from tests.support.peer import Peer
from tests.support.served import wait_until

INTERNAL = ("block_persistence", "block_verification", "node_retention")
PUSHING = PUSH.encode_request(PushRequest(1, b"x"))


async def nothing_came(peer: Peer, node: Guarded) -> None:
    """Answers to one connection come in order, so what came before the refusal of another request is all there is."""
    await peer.send((local("node_retention"),), b"")
    reason = ERROR.decode_response((await peer.receive()).payload).reason
    assert DENIED in reason


@pytest.mark.parametrize("address", INTERNAL)
async def test_internal_workers_take_nothing_from_peers(tmp_path: Path, address: str) -> None:
    """Not even from a peer with all rights, whatever the payload is."""
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        # The last internal workers start when the store of blocks is open.
        await wait_until(lambda: publishers(node) == 0)
        peer = await node.running.peer()
        for payload in (b"", PUSHING, PUBLISH.encode_request(OpenSession(b"t"))):
            answer = await peer.ask((local(address),), payload)
            assert DENIED in ERROR.decode_response(answer.payload).reason
        assert node.refused() == {"address": 3}


async def test_a_return_route_to_an_internal_worker_leads_out_of_the_node(tmp_path: Path) -> None:
    """The answer to a message goes to the connection that it came through, whatever its return route says."""
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        peer = await node.running.peer()
        route = await peer.create("orders")
        for name in ("node_retention", "stream_service", stream_address("orders", 0).value.decode()):
            await peer.stream.send_all(peer.frame(route, PUSHING, (local(name),)))
            answer = await peer.receive()
            assert answer.onward_route[-1] == local(name)
            assert PUSH.decode_response(answer.payload).status is Status.OK
        assert (await peer.pull(route, 0, 10)).messages[-1].index == 2


class FarNode:
    """A node beyond the guarded one. It sees what is forwarded to it, and sends what a test says over the same
    connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: list[Message] = []
        self._stream: trio.SocketStream | None = None

    async def serve(self, stream: trio.SocketStream) -> None:
        reader, hello = FrameReader(HEAD, HERE), HEAD.hello
        self._stream = stream
        await stream.send_all(hello)
        while data := bytes(await stream.receive_some()):
            data, hello = data.removeprefix(hello), b""
            self.messages += reader.feed(data)

    async def send(self, route: Route, payload: bytes) -> None:
        assert self._stream is not None
        message = Message((local("-"), *route), (local("far"),), payload)
        await self._stream.send_all(FrameWriter(HEAD).encode([message], lambda error: pytest.fail(str(error)))[1])


@asynccontextmanager
async def far_node() -> AsyncIterator[FarNode]:
    far = FarNode("")
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, far.serve, 0, host="127.0.0.1"))
        far.address = "{}:{}".format(*listener.socket.getsockname())
        yield far
        nursery.cancel_scope.cancel()


async def test_a_peer_cannot_send_to_another_peer(tmp_path: Path) -> None:
    """The address of the other's connection is known to the nodes to which its messages were forwarded."""
    async with far_node() as far, guarded(tmp_path, may(ALL_RIGHTS), allow_forward=(far.address,)) as node:
        victim, attacker = await node.running.peer(), await node.running.peer()
        await victim.send((tcp(far.address), local("x")), b"hello")
        await wait_until(lambda: far.messages)
        connection = far.messages[0].return_route[0]
        assert connection.value.startswith(b"TCP_")
        await attacker.send((connection, local("me")), b"from the attacker")
        await wait_until(lambda: node.refused() == {"forward": 1})
        await nothing_came(victim, node)


async def test_the_other_node_may_answer_only_those_who_asked_it(tmp_path: Path) -> None:
    """The second far node has got the address of a connection that never sent anything to it, and uses it."""
    async with far_node() as first, far_node() as second:
        allowed = {"allow_forward": (first.address, second.address)}
        async with guarded(tmp_path, may(ALL_RIGHTS), **allowed) as node:
            victim, asker = await node.running.peer(), await node.running.peer()
            await victim.send((tcp(first.address), local("x")), b"hello")
            await asker.send((tcp(second.address), local("x")), b"question")
            await wait_until(lambda: first.messages and second.messages)
            await second.send(second.messages[0].return_route, b"answer")
            assert (await asker.receive()).payload == b"answer"
            await second.send(first.messages[0].return_route, b"attack")
            await wait_until(lambda: node.refused() == {"forward": 1})
            await first.send(first.messages[0].return_route, b"welcome")
            assert (await victim.receive()).payload == b"welcome"


async def test_forwarding_needs_a_rule_beside_the_list_of_destinations(tmp_path: Path) -> None:
    """The address of a connection that the node has made is no way round the rule."""
    async with far_node() as far, guarded(tmp_path, may(ALL_RIGHTS), allow_forward=(far.address,)) as node:
        peer = await node.running.peer()
        await peer.send((tcp(far.address), local("x")), b"hello")
        await wait_until(lambda: len(far.messages) == 1)
        node.allow(may(ALL_RIGHTS & ~Right.FORWARD))
        peer = await node.running.peer()
        await peer.send((tcp(far.address), local("x")), b"again")
        await wait_until(lambda: node.refused().get("forward", 0) == 1)
        node.allow(may(ALL_RIGHTS, far.address))
        peer = await node.running.peer()
        await peer.send((tcp(far.address), local("x")), b"allowed")
        await wait_until(lambda: len(far.messages) == 2)


async def test_a_way_back_to_the_node_itself_gives_no_right(tmp_path: Path) -> None:
    """A node forwards to a second one, and that one back to the first: the message is anonymous there."""
    async with guarded(tmp_path / "a" if make(tmp_path / "a") else tmp_path) as first:
        here = first.running.address
        make(tmp_path / "b")
        async with guarded(tmp_path / "b", may(Right.FORWARD), allow_forward=(here,)) as second:
            peer = await second.running.peer()
            await peer.send((tcp(here), stream_address("orders", 0)), PUSHING)
            await peer.send((tcp(here), local("node_retention")), PUSHING)
            await peer.send((tcp(here), local("stream_service")), PUSHING)
            reasons = [ERROR.decode_response((await peer.receive()).payload).reason for _ in range(2)]
            assert all(DENIED in reason for reason in reasons)
            assert {line["identity"] for line in first.audit() if line["event"] == "refused"} == {"anonymous"}


async def connection_of(victim: Peer, far: FarNode) -> Address:
    """The address of this peer's connection at its node. Every node to which the node forwards for it learns it."""
    seen = len(far.messages)
    await victim.send((tcp(far.address), local("x")), b"hello")
    await wait_until(lambda: len(far.messages) > seen)
    return far.messages[-1].return_route[0]


@pytest.mark.parametrize("payload", [PUSHING, PUBLISH.encode_request(OpenSession(b"t"))], ids=["push", "publish"])
async def test_two_forwarding_nodes_lend_nothing(tmp_path: Path, payload: bytes) -> None:
    """A peer has all rights at the first node and may forward at the second; the third one allows it nothing.

    The last hops: workers for everybody, internal workers, the connections of other clients, and the way back to the
    first node, where the peer itself has the right. Return routes that name internal workers change nothing.
    """
    for name in "abc":
        make(tmp_path / name)
    token = Token(tmp_path / "a")
    async with (
        far_node() as far,
        guarded(tmp_path / "c", may(Right.FORWARD, far.address), allow_forward=(far.address,)) as third,
        guarded(tmp_path / "b", may(Right.FORWARD)) as second,
        guarded(tmp_path / "a", may(ALL_RIGHTS, who=token.identity), allow_forward=(second.running.address,)) as first,
    ):
        a, b, c = (tcp(node.running.address) for node in (first, second, third))
        # The second node forwards in every direction, also back to where a message came from.
        everywhere = (first.running.address, third.running.address, far.address)
        server = second.running.server
        server.change_settings(msgspec.structs.replace(server.config, allow_forward=everywhere), "this test")
        victims = [await node.running.peer() for node in (second, third)]
        connections = [await connection_of(victim, far) for victim in victims]
        peer = await token.peer(first, HEAD)
        await peer.create("orders")
        orders = stream_address("orders", 0)
        targets = [local(name) for name in ("block_publish", "block_subscribe", *INTERNAL)]
        for back in ((local("me"),), (local("node_retention"), local("me")), (connections[1], local("me"))):
            for target in (*targets, *connections, local("stream_service"), orders):
                await peer.stream.send_all(peer.frame((b, c, target), payload, back))
        for target in (orders, *targets):
            await peer.send((b, a, target), payload)
        # The address of a connection of the second node means nothing at the third one, which has no stream either.
        await wait_until(lambda: sum(third.refused().values()) == 3 * len([*targets, connections[1]]))
        await wait_until(lambda: sum(first.refused().values()) == len([*targets, orders]))
        # Nothing was done in anybody's name, and the other clients got nothing.
        for node in (first, second, third):
            refused = [line for line in node.audit() if line["event"].startswith("refused")]
            assert {line["identity"] for line in refused} <= {"anonymous"}
            assert publishers(node) == 0
        assert [node.running.statistics().services.streams for node in (first, second, third)] == [1, 0, 0]
        own = await token.peer(first, HEAD)
        assert not (await own.pull((orders,), 0, 10)).messages
        for victim, node in zip(victims, (second, third), strict=True):
            await nothing_came(victim, node)


def make(folder: Path) -> bool:
    folder.mkdir()
    return True


async def test_a_stream_that_a_part_of_the_node_keeps_is_kept_whatever_the_rules_say(tmp_path: Path) -> None:
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        peer = await node.running.peer()
        answer = await peer.ask((local("stream_service"),), CREATE.encode_request(CreateStream("block_node.other")))
        assert "written by the block node alone" in ERROR.decode_response(answer.payload).reason
        assert node.refused() == {"create": 1}
        assert node.audit()[-1]["rule"] == "the block node keeps its streams"
        assert node.running.statistics().services.streams == 0


async def session_of(peer: Peer, address: str, payload: bytes) -> Address:
    await peer.send((local(address),), payload)
    return (await peer.receive()).return_route[0]


async def test_a_publisher_cannot_use_the_session_of_another(tmp_path: Path) -> None:
    """The attacker has the right to publish, and has learnt the address of the session."""
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        publisher, attacker = await node.running.peer(), await node.running.peer()
        session = await session_of(publisher, "block_publish", PUBLISH.encode_request(OpenSession(b"t")))
        end = PUBLISH.encode_request(EndStream(0, PublisherEndCode.RESET))
        answer = PUBLISH.decode_response((await attacker.ask((session,), end)).payload)
        assert isinstance(answer, StreamEnded)
        assert answer.reason.startswith(DENIED)
        assert node.refused() == {"address": 1}
        blocks = node.running.statistics().services.blocks
        assert blocks is not None
        assert blocks.node.publish is not None
        assert blocks.node.publish.publishers == 1
        await publisher.send((session,), end)
        await wait_until(lambda: publishers(node) == 0)


def publishers(node: Guarded) -> int:
    blocks = node.running.statistics().services.blocks
    assert blocks is not None
    return -1 if blocks.node.publish is None else blocks.node.publish.publishers


async def test_a_subscriber_cannot_end_the_subscription_of_another(tmp_path: Path) -> None:
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node:
        reader, attacker = await node.running.peer(), await node.running.peer()
        request = SUBSCRIBE.encode_request(Subscribe(1, None, None, False, 10))
        await reader.send((local("block_subscribe"),), request)
        answer = await reader.receive()
        assert isinstance(SUBSCRIBE.decode_response(answer.payload), Subscribed)
        leave = SUBSCRIBE.encode_request(Unsubscribe(1))
        refusal = await attacker.ask(answer.return_route, leave)
        assert DENIED in ERROR.decode_response(refusal.payload).reason
        assert subscriptions(node) == 1
        await reader.send(answer.return_route, leave)
        await wait_until(lambda: subscriptions(node) == 0)


def subscriptions(node: Guarded) -> int:
    blocks = node.running.statistics().services.blocks
    assert blocks is not None
    return blocks.readers.subscribe.sessions


async def test_a_flood_of_refused_pushes_holds_nobody_up(tmp_path: Path) -> None:
    """Refused pushes never reach the stream, and its owner goes on."""
    async with guarded(tmp_path, may(ALL_RIGHTS), error_delay_s=0.2) as node:
        owner = await node.running.peer()
        await owner.create("orders")
        node.allow(may(Right.READ))
        flood = await node.running.peer(HEAD)
        route = (stream_address("orders", 0),)
        confirms = await flood.push_all(route, [b"x" * 100] * 2_000)
        assert {confirm.status for confirm in confirms} == {Status.ERROR}
        assert node.refused() == {"write": 2_000}
        assert not (await flood.pull(route, 0, 10)).messages
        lines = [line for line in node.audit() if line["event"].startswith("refused")]
        assert len(lines) < 20


async def test_after_a_crash_the_waiting_messages_are_asked_again(tmp_path: Path) -> None:
    """A worker that gets its messages back after a crash gets only those that are still allowed."""
    from ockam.actors.message import Origin
    from ockam.actors.node import Node
    from ockam.actors.worker import Worker

    handled: list[bytes] = []

    class Crashing(Worker):
        def handle(self, message: Message) -> None:
            handled.append(message.payload)
            if message.payload == b"crash":
                gate.closed = True
                node.note_new_rules()
                raise RuntimeError("planted")

    class Gate:
        closed = False

        def admit(self, worker: Worker, run: object) -> list[Message]:
            assert isinstance(run, list)
            return [] if self.closed else run

        def holds(self, origin: Origin, rights: int, name: str) -> bool:
            return not self.closed

        def find_next(self, origin: Origin, rights: int, name: str) -> str | None:
            return None if self.closed else name

        def find_forward_refusal(self, origin: Origin, destination: str) -> str | None:
            return None

        def note_tls_refused(self, peer: str, identity: Identity, reason: str) -> None: ...

    gate = Gate()
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.gate = gate
        node.register([local("w")], Crashing)
        node.send_run([Message((local("w"),), (), payload, Origin("tcp")) for payload in (b"a", b"crash", b"later")])
        mailbox = node.find_mailbox(local("w"))
        assert mailbox is not None
        with trio.fail_after(10):
            while len(mailbox):
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert handled == [b"a", b"crash"]
