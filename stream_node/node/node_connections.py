"""The service `node_connections`: lists the open connections of a node with their bytes, and closes some. Workers that
each have a database answer together. A member of a cluster answers for itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec
import structlog
import trio
from msgspec.structs import asdict, astuple

import bare
from ockam.actors.address import local
from ockam.actors.asker import ask_all
from ockam.actors.message import Message
from ockam.actors.worker import AnsweringWorker
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from ockam.protocol import Protocol
from ockam.transport.connection_machine import ConnectionStatistics
from ockam.transport.roster import ConnectedPeer, Presence, Roster, Traffic

if TYPE_CHECKING:
    from stream_node.node.parts import NodeParts

ADDRESS = "node_connections"
PART_ADDRESS = local("node_connections_part")
"""The address at which one worker of several answers with its part."""
LISTED_MAX = 1_000
"""The largest number of connections, and of identities, in an answer."""
LISTED_EVERY_S = 1.0
"""The shortest time between two samples of all connections. Many browsers ask again and again."""
CLOSED = "closed_by_operator"

logger = structlog.get_logger(__name__)


# type ConnectionsRequest struct { request_id: uint  limit: uint }
class ConnectionsRequest(msgspec.Struct, frozen=True):
    """A request for the open connections. limit: the most connections, and the most identities, in the answer: first
    those with the most bytes a second, then those with the most bytes."""

    request_id: bare.UInt
    limit: bare.UInt


# type OpenConnection struct { peer: str  identity: str  framing: str  age_s: uint  received: uint  received_bytes: uint
#   sent: uint  sent_bytes: uint  received_bytes_s: uint  sent_bytes_s: uint  backlog_bytes: uint }
class OpenConnection(msgspec.Struct, frozen=True):
    """One open connection. received, sent: the numbers of messages from and to the peer, with their bytes."""

    peer: str  # the `host:port` of the other side
    identity: str  # what the peer has proved
    framing: str  # how messages are framed; `http` for HTTP, where requests and answers count as messages
    age_s: bare.UInt  # for how long the connection has been open
    received: bare.UInt
    received_bytes: bare.UInt
    sent: bare.UInt
    sent_bytes: bare.UInt
    received_bytes_s: bare.UInt  # the bytes a second in the last 10 to 20 seconds
    sent_bytes_s: bare.UInt
    backlog_bytes: bare.UInt  # the bytes that wait to be sent to the peer


# type PartyTraffic struct { party: str  connections: uint  received: uint  received_bytes: uint  sent: uint
#   sent_bytes: uint  received_bytes_s: uint  sent_bytes_s: uint }
class PartyTraffic(msgspec.Struct, frozen=True):
    """The traffic of one identity since the start of the node, also that of connections that have ended."""

    party: str  # the identity; for anonymous peers, with their host
    connections: bare.UInt  # the number of its open connections
    received: bare.UInt
    received_bytes: bare.UInt
    sent: bare.UInt
    sent_bytes: bare.UInt
    received_bytes_s: bare.UInt
    sent_bytes_s: bare.UInt


# type ConnectionsResponse struct { request_id: uint  total: uint  connections: list<OpenConnection>
#   parties: list<PartyTraffic> }
class ConnectionsResponse(msgspec.Struct, frozen=True):
    """The answer to a ConnectionsRequest. total: the number of all open connections."""

    request_id: bare.UInt
    total: bare.UInt
    connections: list[OpenConnection]
    parties: list[PartyTraffic]


# type CloseRequest struct { request_id: uint  who: str  keep: str }
class CloseRequest(msgspec.Struct, frozen=True):
    """A request to close connections. The connection of the request stays open."""

    request_id: bare.UInt
    who: str  # a `host:port`, or an identity or a `party`, all of whose connections are closed
    keep: str = ""  # the `host:port` of another connection that stays open


# type CloseResponse struct { request_id: uint  closed: uint }
class CloseResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    closed: bare.UInt


CONNECTIONS = Protocol("node/connections/1", ConnectionsRequest, ConnectionsResponse)
CLOSE = Protocol("node/connections_close/1", CloseRequest, CloseResponse)


class NodeConnectionsService(AnsweringWorker):
    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._roster = parts.tcp.roster
        self._listed_at_s, self._list = -math.inf, ConnectionsResponse(0, 0, [], [])

    def answer(self, message: Message) -> None:
        if CLOSE.is_in(message.payload):
            request = CLOSE.decode_request(message.payload)
            closed = partial(self._closed, message, request)
            if not ask_all(self, self._parts.remote_streams, PART_ADDRESS, message, CLOSE, closed):
                closed([CloseResponse(request.request_id, self._close(message, request))])
            return
        asked = CONNECTIONS.decode_request(message.payload)
        # If each worker has a database, all are asked. Otherwise this node answers for itself, from a recent list.
        listed = partial(self._listed, message, asked)
        if not ask_all(self, self._parts.remote_streams, PART_ADDRESS, message, CONNECTIONS, listed):
            if trio.current_time() >= self._listed_at_s + LISTED_EVERY_S:
                self._listed_at_s, self._list = trio.current_time(), list_connections(self._roster)
            listed([self._list])

    def _listed(self, message: Message, asked: ConnectionsRequest, found: Sequence[ConnectionsResponse]) -> None:
        # The worker that asks all others needs their whole lists, to add up the parts of an identity.
        limit = LISTED_MAX if message.onward_route[0] == PART_ADDRESS else asked.limit
        joined = join_connections(found, asked.request_id, limit)
        self.reply(message, CONNECTIONS.encode_response(joined))

    def _closed(self, message: Message, request: CloseRequest, found: Sequence[CloseResponse]) -> None:
        closed = sum(each.closed for each in found)
        self.reply(message, CLOSE.encode_response(CloseResponse(request.request_id, closed)))

    def demand(self, message: Message) -> Demand:
        rights = Right.ADMIN if CLOSE.is_in(message.payload) else Right.OPERATE | Right.ADMIN
        return Demand(rights, EVERY_NAME)

    def _close(self, message: Message, request: CloseRequest) -> int:
        """Closes connections, and notes in both logs who has closed whose."""
        who = request.who

        def is_meant(connection: ConnectedPeer, presence: Presence) -> bool:
            is_named = who in (presence.peer, str(connection.identity), presence.party)
            # Other workers know only the peer of the connection by which the request came.
            is_kept = presence.peer in (message.origin.peer, request.keep)
            return is_named and not is_kept

        gone = self._roster.close(is_meant, CLOSED)
        self._listed_at_s = -math.inf
        if gone:
            logger.info("connections_closed", of=who, closed=len(gone), **message.origin.who)
            whose = ", ".join(sorted({f"{presence.peer} ({each.identity})" for each, presence in gone.items()}))
            sender = str(message.origin.identity), message.origin.peer
            if self._parts.authorizer is not None:
                self._parts.authorizer.audit.note(Entry("connections_closed", *sender, name=who, reason=whose))
        return len(gone)


def list_connections(roster: Roster) -> ConnectionsResponse:
    """Returns the connections and the identities that send and receive most, at most LISTED_MAX of each."""
    now_s, of_party = trio.current_time(), dict[str, list[float]]()
    found = list[tuple[float, int, ConnectedPeer, ConnectionStatistics, Presence, tuple[float, float]]]()
    # The rates of an identity are the sums over its open connections.
    for connection, presence in roster.open.items():
        each = connection.statistics()
        rates = presence.rates(each, now_s)
        sums = of_party.setdefault(presence.party, [0, 0.0, 0.0])
        sums[:] = sums[0] + 1, sums[1] + rates[0], sums[2] + rates[1]
        found.append((sum(rates), each.received_bytes + each.sent_bytes, connection, each, presence, rates))
    # With many connections, only those that are listed are written out.
    listed = [
        OpenConnection(
            **asdict(each),
            identity=str(connection.identity),
            age_s=round(now_s - presence.began_s),
            received_bytes_s=round(received_s),
            sent_bytes_s=round(sent_s),
        )
        for _, _, connection, each, presence, (received_s, sent_s) in nlargest(LISTED_MAX, found, itemgetter(0, 1))
    ]
    parties = [_party(name, traffic, *of_party.get(name, (0, 0.0, 0.0))) for name, traffic in roster.traffic().items()]
    return ConnectionsResponse(0, len(found), listed, nsmallest(LISTED_MAX, parties, _busiest))


def join_connections(found: Sequence[ConnectionsResponse], request_id: int, limit: int) -> ConnectionsResponse:
    """Joins the answers of the workers of a node. limit: the most connections, and identities, of the answer."""
    # An identity may have connections to several workers.
    parties: dict[str, PartyTraffic] = {}
    for each in (party for part in found for party in part.parties):
        same = parties.setdefault(each.party, each)
        if same is not each:
            figures = zip(astuple(same)[1:], astuple(each)[1:], strict=True)
            parties[each.party] = PartyTraffic(each.party, *map(sum, figures))
    connections = [each for part in found for each in part.connections]
    return ConnectionsResponse(
        request_id,
        sum(each.total for each in found),
        nsmallest(limit, connections, _busiest),
        nsmallest(limit, parties.values(), _busiest),
    )


def _party(name: str, traffic: Traffic, connections: float, received_s: float, sent_s: float) -> PartyTraffic:
    moved = traffic.received, traffic.received_bytes, traffic.sent, traffic.sent_bytes
    return PartyTraffic(name, round(connections), *moved, round(received_s), round(sent_s))


def _busiest(each: OpenConnection | PartyTraffic) -> tuple[int, int]:
    return -(each.received_bytes_s + each.sent_bytes_s), -(each.received_bytes + each.sent_bytes)


def register_connections(parts: NodeParts) -> None:
    parts.node.register([local(ADDRESS), PART_ADDRESS], lambda: NodeConnectionsService(parts))
