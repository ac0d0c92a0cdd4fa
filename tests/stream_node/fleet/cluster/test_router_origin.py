"""Goal: the owner of a stream knows a client of another member by the identity that the client has proved there, and a
member notes the answers that are due to what it has passed on, and to what it has sent.

Method: one router, to which members link in turn, or which links to one. The worker of a stream notes what it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import trio
from trio.testing import wait_all_tasks_blocked

from index_service.protocol import INDEX, SaveIndex
from ockam.actors.address import Address, local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.identity import Identity
from ockam.transport.forwarding import OpenRequests
from stream_node.fleet.cluster.protocol import CLUSTER, LINK, MEMBER, PROVE, LinkResponse, ProveRequest
from stream_node.fleet.cluster.router import Envelopes, Link, Router, prove
from stream_node.fleet.cluster.view import SHARDS, ClusterView, Shard, StoredMember, shard_of
from stream_service.names import stream_address
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status

STREAM = stream_address("orders", 0)
CONNECTION, CLIENT, WATCHER = local("tcp_link"), local("tcp_client"), local("tcp_watcher")
PEER = Origin("tcp", peer="client:1")
ALICE = Identity("token", "alice")


class Noting(Worker):
    def __init__(self) -> None:
        self.got: list[Message] = []

    @property
    def senders(self) -> list[Identity]:
        return [message.origin.identity for message in self.got]

    def handle(self, message: Message) -> None:
        self.got.append(message)


class OtherMember:
    """Another member, with its connection to the router."""

    def __init__(self, node: Node, router: Router, name: str) -> None:
        self._node = node
        self._connection = local(f"tcp_{name}")
        self._origin = Origin("tcp", peer=f"{name}:1", identity=Identity("certificate", name))
        node.register([self._connection], Noting)
        caller = StoredMember(name, f"{name}:4000", f"token of {name}", 1, leaves=False)
        answer = router.proofs.begin(self._connection, caller, b"n" * 32)
        proof = prove(b"caller", (caller.token, "token of us"), (b"n" * 32, answer.nonce))
        self._send((MEMBER,), PROVE.encode_request(ProveRequest(proof)))

    def pass_on(self, client: Identity, payload: bytes = b"push") -> None:
        """Sends what its client has sent."""
        sent = Message((STREAM,), (local("client"),), payload, Origin("tcp", peer="client:1", identity=client))
        wrapped = Envelopes(self._node.usages).wrap(shard_of(STREAM), sent)
        self._send(wrapped.onward_route, wrapped.payload)

    def end(self) -> None:
        self._node.unregister(self._connection)

    def _send(self, route: tuple[Address, ...], payload: bytes) -> None:
        with self._node.batch():
            self._node.deliver(Message(route, (self._connection,), payload, self._origin))


def make_router(node: Node, call: Callable[[Link], None] = lambda link: None) -> Router:
    nonces = count()
    return Router(
        node,
        "us",
        "token of us",
        call=call,
        hang_up=lambda connections: None,
        new_nonce=lambda: next(nonces).to_bytes(32, "big"),
        refresh=lambda: None,
    )


async def test_a_member_that_leaves_waits_for_no_answer_that_never_comes() -> None:
    """Goal: a saved position, which nobody answers, and a push whose sender is gone, keep no member that passed them on
    until its time to leave is over. Method: both go on; the member that leaves waits for the push of a present one."""
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        router = make_router(node)
        other = OtherMember(node, router, "other")
        other.pass_on(ALICE, INDEX.encode_request(SaveIndex("reader", "orders", 3)))
        assert not router.owes_answers
        other.pass_on(ALICE)
        assert router.owes_answers
        other.end()
        assert not router.owes_answers
        nursery.cancel_scope.cancel()


async def test_a_client_keeps_its_identity_while_its_message_waits() -> None:
    """Goal: also when its member is gone, and another one has linked meanwhile."""
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        router = make_router(node)
        stream = Noting()
        node.register([STREAM], lambda: stream)
        first = OtherMember(node, router, "first")
        first.pass_on(ALICE)
        first.end()
        OtherMember(node, router, "second")
        assert stream.senders == []
        router.serve([shard_of(STREAM)])
        assert stream.senders == [ALICE]
        router.check()
        nursery.cancel_scope.cancel()


async def test_an_answer_lost_before_a_member_leaves_is_an_error() -> None:
    """Goal: a publisher does not wait for ever if the connection to a member breaks before the member leaves in order:
    the push went on to the new owner, and its confirm found no way back. A client whose session the member has ended
    keeps its connection. Method: the link ends after its mark is back, and only then this router reads that the member
    has left. Found by seed 997 of the simulation."""
    async with trio.open_nursery() as nursery:
        node, links = Node(nursery), list[Link]()
        router = make_router(node, links.append)
        connection, client, watcher = Noting(), Noting(), Noting()
        for address, worker in ((CONNECTION, connection), (CLIENT, client), (WATCHER, watcher)):
            node.register([address], lambda worker=worker: worker)  # type: ignore[misc]
        member, shard = StoredMember("other", "other:4000", "token of other", 1, leaves=False), shard_of(STREAM)
        # The router links to the owner of the stream, and sends it a push and the opening of a session.
        router.update(ClusterView({"other": member}, (Shard("other", 1),) * SHARDS))
        (link,) = links
        with node.batch():
            link.begin(CONNECTION)
        await wait_all_tasks_blocked()
        nonce = LINK.decode_request(connection.got[0].payload).nonce
        proof = prove(b"called", ("token of us", member.token), (nonce, b"m" * 32))
        link.receive([Message((CLUSTER,), (), LINK.encode_response(LinkResponse(b"m" * 32, proof)))])
        push = Message((STREAM,), (CLIENT,), PUSH.encode_request(PushRequest(7, b"one")), PEER)
        with node.batch():
            router.send(STREAM, push)
        link.unanswered.sent(Message((STREAM,), (WATCHER,), b"session", PEER), opens_session=True)
        # The shard gets a new owner. The mark comes back, so no message is under way to the old one.
        router.update(ClusterView({"other": member}, (Shard("us", 2),) * SHARDS))
        with node.batch():
            assert router.clear([shard]) == []
        await wait_all_tasks_blocked()
        link.receive([Message((CLUSTER,), (), connection.got[-1].payload)])
        assert router.clear([shard]) == [shard]
        link.ended(OpenRequests())
        router.update(ClusterView({}, (Shard("us", 2),) * SHARDS))
        await wait_all_tasks_blocked()
        (answer,) = client.got
        assert PUSH.decode_response(answer.payload) == PushConfirm(7, Status.ERROR, 0)
        assert watcher.got == []
        nursery.cancel_scope.cancel()
