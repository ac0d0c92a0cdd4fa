"""ClusterWorker: takes the messages that other members send, and tells operators about the cluster."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from access.rights import NOTHING, Demand, Right
from cluster.link import prove
from cluster.protocol import (
    DRAIN,
    LINK,
    MARK,
    PROVE,
    STATUS,
    LinkResponse,
    MemberStatus,
    ShardStatus,
    StatusResponse,
)
from cluster.router import Router
from cluster.view import View
from ockam.address import Address
from ockam.log_rate import LogRate
from ockam.message import Message
from ockam.protocol import ProtocolError, error_payload, failed_payload
from ockam.worker import HandlingFailed, Worker
from storage.errors import StorageError

logger = structlog.get_logger(__name__)


class Membership(Protocol):
    """What the worker asks of its member, see `cluster.member.ClusterMember`."""

    router: Router

    def lives(self, name: str) -> bool: ...

    def read(self, on_read: Callable[[], None]) -> None: ...

    def set_leaving(self, name: str, leaves: bool, on_done: Callable[[StorageError | None], None]) -> None: ...


class Links:
    """The connections that other members have made to this node. It survives crashes of the worker.

    proved: the connections over which a member has proved itself.
    """

    def __init__(self, token: str, new_nonce: Callable[[], bytes]) -> None:
        self.token = token
        self.new_nonce = new_nonce
        self.proved: set[Address] = set()
        self.expected: dict[Address, bytes] = {}
        self.lines = LogRate()


class ClusterWorker(Worker):
    """Serves the protocols of `cluster.protocol` at the address of that module.

    A message with further hops comes from another member, and is for a worker of this node or of a third member.
    """

    def __init__(self, member: Membership, links: Links) -> None:
        self._member = member
        self._links = links

    def demand(self, message: Message) -> Demand | None:
        """Returns the right that the sender of this message needs (see `access.authorizer.Guarded`). Members prove who
        they are themselves. Raises ProtocolError."""
        if STATUS.is_in(message.payload) or DRAIN.is_in(message.payload):
            return Demand(Right.OPERATE, "cluster")
        return NOTHING

    def receive(self, run: Sequence[Message]) -> None:
        for position, message in enumerate(run):
            try:
                self._serve(message)
            except ProtocolError as error:
                self._refuse(message, error)
            except Exception as error:
                raise HandlingFailed(position) from error

    def _serve(self, message: Message) -> None:
        if len(message.onward_route) > 1:
            self._pass_on(message)
        elif MARK.is_in(message.payload):
            # The mark has come to the owner of its shard.
            self.reply(message, message.payload)
        elif LINK.is_in(message.payload):
            self._link(message)
        elif PROVE.is_in(message.payload):
            self._prove(message)
        elif STATUS.is_in(message.payload):
            self.reply(message, STATUS.encode_response(self._status(STATUS.decode_request(message.payload).request_id)))
        elif DRAIN.is_in(message.payload):
            self._drain(message)
        else:
            raise ProtocolError("the cluster serves no such request")

    def _refuse(self, message: Message, error: ProtocolError) -> None:
        self._links.lines.log(logger.info, "cluster_request_refused", peer=message.origin.peer, reason=str(error))
        if message.return_route:
            self.reply(message, error_payload(str(error)))

    def _pass_on(self, message: Message) -> None:
        # The node itself writes the first hop of the return route.
        if not message.return_route or message.return_route[0] not in self._links.proved:
            raise ProtocolError("only members of the cluster send this")
        self._member.router.arrived(message)

    # The connections of other members.

    def _link(self, message: Message) -> None:
        request = LINK.decode_request(message.payload)
        if not message.return_route or message.origin.kind == "local":
            raise ProtocolError("a member links by a connection of its own")

        def answer() -> None:
            member = self._member.router.view.members.get(request.name)
            if member is None or not member.token:
                self._refuse(message, ProtocolError(f"{request.name!r} is no member of this cluster"))
                return
            nonces = request.nonce, self._links.new_nonce()
            tokens = member.token, self._links.token
            self._forget_ended()
            self._links.expected[message.return_route[0]] = prove(b"caller", tokens, nonces)
            self.reply(message, LINK.encode_response(LinkResponse(nonces[1], prove(b"called", tokens, nonces))))

        # The other process may have joined a moment ago.
        self._member.read(self.context.guard(answer))

    def _prove(self, message: Message) -> None:
        request = PROVE.decode_request(message.payload)
        connection = message.return_route[0] if message.return_route else None
        expected = None if connection is None else self._links.expected.pop(connection, None)
        if connection is None or expected is None or not hmac.compare_digest(expected, request.proof):
            raise ProtocolError("the proof of a member is wrong")
        self._links.proved.add(connection)

    def _forget_ended(self) -> None:
        """Forgets the connections that have ended."""
        links, node = self._links, self._member.router.is_connected
        links.proved = {each for each in links.proved if node(each)}
        links.expected = {each: proof for each, proof in links.expected.items() if node(each)}

    # What clients ask.

    def _status(self, request_id: int) -> StatusResponse:
        view: View = self._member.router.view
        members = [
            MemberStatus(
                member.name,
                member.address,
                self._member.lives(member.name),
                member.leaves,
                len(view.owned_by(member.name)),
            )
            for member in view.members.values()
        ]
        shards = [ShardStatus(shard.owner, shard.epoch) for shard in view.shards]
        return StatusResponse(request_id, self._member.router.name, members, shards)

    def _drain(self, message: Message) -> None:
        request = DRAIN.decode_request(message.payload)
        if request.name not in self._member.router.view.members:
            known = ", ".join(self._member.router.view.members)
            raise ProtocolError(f"{request.name!r} is no member of this cluster; the members are {known}")

        def done(error: StorageError | None) -> None:
            if error is not None:
                self.reply(message, failed_payload(str(error)))
            else:
                self.reply(message, DRAIN.encode_response(self._status(request.request_id)))

        self._member.set_leaving(request.name, request.leaves, self.context.guard(done))
