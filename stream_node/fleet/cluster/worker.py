"""ClusterWorker: answers members that connect to this one, and reports on the cluster to operators.
`stream_node.fleet.cluster.router` takes the messages that the other members send for their clients."""

from __future__ import annotations

import math

import structlog
import trio

from ockam.actors.address import Address
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import NOTHING, Demand, Right
from ockam.log_rate import LogRate
from ockam.protocol import ProtocolError, error_payload, failed_payload
from stream_node.fleet.cluster.member import ClusterMember, FixedMember
from stream_node.fleet.cluster.protocol import DRAIN, LINK, MARK, STATUS, ClusterStatus, MemberStatus, ShardStatus
from stream_node.fleet.cluster.router import NONCE_BYTES
from stream_storage.errors import StorageError

LINK_READ_S = 1.0
"""The shortest time between two reads of the tables that unproved connections cause."""
NAME_MAX = 255

logger = structlog.get_logger(__name__)


class ClusterWorker(Worker):
    """Serves the protocols of `stream_node.fleet.cluster.protocol` at the address CLUSTER of that module."""

    def __init__(self, member: ClusterMember | FixedMember) -> None:
        self._member = member
        self._lines = LogRate()
        # The connections whose first message is answered after the next read of the tables.
        self._waiting: set[Address] = set()
        self._read_s = -math.inf

    def demand(self, message: Message) -> Demand | None:
        """Returns the right that the sender needs. Members prove who they are themselves. Raises ProtocolError."""
        if STATUS.is_in(message.payload) or DRAIN.is_in(message.payload):
            return Demand(Right.OPERATE, "cluster")
        return NOTHING

    def handle(self, message: Message) -> None:
        try:
            self._serve(message)
        except ProtocolError as error:
            self._refuse(message, error)

    def _serve(self, message: Message) -> None:
        if MARK.is_in(message.payload):
            # The mark has come to the owner of its shard.
            self.reply(message, message.payload)
        elif LINK.is_in(message.payload):
            self._link(message)
        elif STATUS.is_in(message.payload):
            self.reply(message, STATUS.encode_response(self._status(STATUS.decode_request(message.payload).request_id)))
        elif DRAIN.is_in(message.payload):
            self._drain(message)
        else:
            raise ProtocolError("the cluster serves no such request")

    def _refuse(self, message: Message, error: ProtocolError) -> None:
        self._lines.log(logger.info, "cluster_request_refused", **message.origin.who, reason=str(error))
        if message.return_route:
            self.reply(message, error_payload(str(error)))

    def _link(self, message: Message) -> None:
        """Answers the first message of a connection that another member seems to have made. Anybody can send it, so
        such messages cause at most one read of the tables in LINK_READ_S, and one message of a connection waits."""
        # Everything that a stranger chooses has a bound.
        request = LINK.decode_request(message.payload)
        if not message.return_route or message.origin.kind == "local":
            raise ProtocolError("a member links by a connection of its own")
        connection = message.return_route[0]
        if len(request.nonce) != NONCE_BYTES or len(request.name) > NAME_MAX:
            raise ProtocolError(f"a nonce has {NONCE_BYTES} bytes, and a name at most {NAME_MAX} characters")
        if connection in self._waiting:
            raise ProtocolError("this connection has sent such a message before, which is not answered yet")
        self._waiting.add(connection)
        # The payload, whose size the peer has chosen, does not wait.
        asked = Message(message.onward_route, message.return_route, b"", message.origin)

        def answer() -> None:
            self._waiting.discard(connection)
            router = self._member.router
            member = router.view.members.get(request.name)
            if member is None or not member.token:
                self._refuse(asked, ProtocolError(f"{request.name!r} is no member of this cluster"))
            else:
                response = router.proofs.begin(connection, member, request.nonce)
                self.reply(asked, LINK.encode_response(response))

        # The other process may have joined a moment ago.
        now_s = trio.current_time()
        soon = now_s - self._read_s >= LINK_READ_S
        if soon:
            self._read_s = now_s
        self._member.read(self.context.guard(answer), soon=soon)

    # What clients ask.

    def _status(self, request_id: int) -> ClusterStatus:
        found = self._member.statistics()
        members = [MemberStatus(each.name, each.address, each.lives, each.leaves, each.shards) for each in found.peers]
        shards = [ShardStatus(shard.owner, shard.epoch) for shard in found.owners]
        return ClusterStatus(request_id, found.name, members, shards)

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
