"""Goal: the owner of a stream knows a client of another member by the identity that the client has proved there, and a
member notes the answers that are due to what it has passed on.

Method: one router, to which members link in turn. The worker of a stream notes who has sent what it gets.
"""

from __future__ import annotations

from itertools import count

import trio

from index_service.protocol import INDEX, SaveIndex
from ockam.actors.address import Address, local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.identity import Identity
from stream_node.fleet.cluster.protocol import MEMBER, PROVE, ProveRequest
from stream_node.fleet.cluster.router import Envelopes, Router, prove
from stream_node.fleet.cluster.view import StoredMember, shard_of
from stream_service.names import stream_address

STREAM = stream_address("orders", 0)
ALICE = Identity("token", "alice")


class Noting(Worker):
    def __init__(self) -> None:
        self.senders: list[Identity] = []

    def handle(self, message: Message) -> None:
        self.senders.append(message.origin.identity)


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


def make_router(node: Node) -> Router:
    nonces = count()
    return Router(
        node,
        "us",
        "token of us",
        call=lambda link: None,
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
