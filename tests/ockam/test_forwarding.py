"""Goal: the sender of a request of ours learns at once that it was not forwarded; no other sender gets an answer.

Method: real nodes in a row, raw peers, and payloads that only have the names of protocols.
"""

from __future__ import annotations

import pytest
import trio

import bare
from ockam.actors.address import Address, local, tcp
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.worker import Worker
from ockam.protocol import ERROR
from ockam.transport.forwarding import (
    OPEN_REQUESTS_MAX,
    OpenRequests,
    destination_unreachable,
    forward_refused,
    is_destination_unreachable,
    reports_to_sender,
)
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import Server, serve
from tests.support.peer import Peer

OWN = bare.encode("node/stream_pull/1", str) + b"\x00"
PUSH = bare.encode("node/stream_push/1", str) + b"\x00"
BATCH = bare.encode("node/push_batch/1", str) + b"\x00"
PLAIN = bare.encode("stream_create", str) + b"\x00"


class Silent(Worker):
    """Takes messages and answers none. taken: how many."""

    taken = 0

    def handle(self, message: Message) -> None:
        Silent.taken += 1


@pytest.fixture(autouse=True)
def silence() -> None:
    Silent.taken = 0


async def taken(count: int) -> None:
    with trio.fail_after(10):
        while Silent.taken < count:
            await trio.sleep(0.005)


async def reason(peer: Peer) -> tuple[Address, str]:
    """To whom the next answer goes, and why."""
    message = await peer.receive()
    return message.onward_route[0], ERROR.decode_response(message.payload).reason


async def send(peer: Peer, far: str, payload: bytes, name: str) -> None:
    frame = peer.frame((tcp(far), local("silent")), payload, (local(name),))
    await peer.stream.send_all(frame)


async def nothing_more(peer: Peer, near: Server) -> None:
    """What the node has said is answered in order; so an echo comes behind all that it had to say before."""
    await peer.send((local("echo"),), b"end")
    assert (await peer.receive()).payload == b"end"


async def test_the_end_of_the_next_hop_is_told_for_every_open_request() -> None:
    async with serve() as far:
        far.node.register([local("silent")], Silent)
        async with serve(allow_forward=[far.address]) as near:
            peer = await near.peer(HEAD)
            for name, payload in (("a", OWN), ("plain", PLAIN), ("push", PUSH), ("b", OWN)):
                await send(peer, far.address, payload, name)
            # One that has been answered is not open any more.
            await peer.stream.send_all(peer.frame((tcp(far.address), local("echo")), OWN, (local("answered"),)))
            assert (await peer.receive()).onward_route == (local("answered"),)
            await taken(4)
            (connection,) = [each for each in far.transport.statistics().connections if each.received]
            far.transport.listening.cancel()
            await far.transport.close_when_sent(trio.current_time())
            told = [await reason(peer), await reason(peer)]
            gone = f"Invalid request: the node failed: no way to {far.address}: the connection to it ended"
            assert told == [(local("a"), gone), (local("b"), gone)]
            await nothing_more(peer, near)
    assert connection.received == 5


async def test_a_destination_that_cannot_be_called_is_told() -> None:
    with trio.socket.socket() as listening:
        await listening.bind(("127.0.0.1", 0))
        host, port = listening.getsockname()
    async with serve(allow_forward=[f"{host}:{port}"]) as near:
        peer = await near.peer(HEAD)
        for name, payload in (("plain", PLAIN), ("push", PUSH), ("batch", BATCH), ("a", OWN)):
            await send(peer, f"{host}:{port}", payload, name)
        to, why = await reason(peer)
        assert to == local("a")
        assert is_destination_unreachable(why)
        await nothing_more(peer, near)
        assert near.node.statistics().dropped == {"forward_failed": 4}


async def test_a_destination_that_is_not_allowed_is_told() -> None:
    async with serve() as near:
        peer = await near.peer(HEAD)
        for name, payload in (("plain", PLAIN), ("push", PUSH), ("a", OWN)):
            await send(peer, "10.0.0.1:4000", payload, name)
        refused = "Invalid request: not passed on: 10.0.0.1:4000 is no destination that this node allows"
        assert await reason(peer) == (local("a"), refused)
        await nothing_more(peer, near)
        assert near.node.statistics().dropped == {"forward_refused": 3}


async def test_the_address_of_a_connection_that_has_ended_is_told() -> None:
    """Answers give the way through the connection that they came over, and peers go on using that."""
    async with serve() as near:
        peer = await near.peer(HEAD)
        for name, payload in (("plain", PLAIN), ("push", PUSH), ("a", OWN)):
            frame = peer.frame((local("TCP_gone"), local("silent")), payload, (local(name),))
            await peer.stream.send_all(frame)
        # Another address that nobody has may be a stream that was deleted.
        await peer.send((local("nobody"),), OWN)
        to, why = await reason(peer)
        assert to == local("a")
        assert is_destination_unreachable(why)
        await nothing_more(peer, near)
        assert near.node.statistics().dropped == {"unknown_address": 4}


def test_an_answer_that_cannot_be_forwarded_is_not_answered() -> None:
    request = Message((tcp("h:1"),), (local("TCP_1"), local("me")), OWN)
    assert reports_to_sender(request)
    for answer in (forward_refused(request, "no"), destination_unreachable(request.return_route, "h:1", "x" * 10_000)):
        assert not reports_to_sender(answer)
        assert answer.return_route == ()
        assert len(answer.payload) < 1_000


@pytest.mark.parametrize("payload", [b"", b"\x05", b"node/", b"\x12node/stream_push/1", b"\xff" * 8])
def test_bytes_that_name_nothing_of_ours_are_not_told(payload: bytes) -> None:
    assert not reports_to_sender(Message((tcp("h:1"),), (local("me"),), payload))


def test_open_requests_are_bounded() -> None:
    requests = OpenRequests()
    for number in range(OPEN_REQUESTS_MAX + 10):
        requests.note([Message((), (local(f"c{number}"),), OWN, Origin("tcp"))])
    requests.note([Message((), (local("own"),), OWN, HERE)])
    assert len(requests) == OPEN_REQUESTS_MAX
    requests.answered([Message((local("c11"),), (), b""), Message((local("unknown"),), (), b"")])
    routes = requests.take()
    assert (routes[0], routes[1], len(routes)) == ((local("c10"),), (local("c12"),), OPEN_REQUESTS_MAX - 1)
    assert requests.take() == []
