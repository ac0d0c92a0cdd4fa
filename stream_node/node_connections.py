"""The service `node_connections`: lists the open connections of a node with their bytes, and closes some.

node/connections/1
  request   { request_id: uint  limit: uint }
  response  ConnectionsResponse, whose schema is below

node/connections_close/1
  request   { request_id: uint  who: str }
  response  { request_id: uint  closed: uint }
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog
import trio

import bare
from access.audit_lines import Entry
from access.rights import EVERY_NAME, Demand, Right
from ockam.address import local
from ockam.connection import Connection
from ockam.message import Message
from ockam.protocol import Protocol, ProtocolError, error_payload
from ockam.tcp import TcpTransport
from ockam.tcp_statistics import Traffic
from ockam.usage import party_key
from ockam.worker import Worker
from stream_node.parts import NodeParts

ADDRESS = "node_connections"
LISTED_MAX = 1_000
"""The largest number of connections, and of identities, in an answer."""
CLOSED = "closed_by_operator"
"""The reason, for counters, why such a connection is closed."""

logger = structlog.get_logger(__name__)


# type ConnectionsRequest struct { request_id: uint  limit: uint }
class ConnectionsRequest(msgspec.Struct, frozen=True):
    """limit: the largest number of connections, and of identities, in the answer: those with the most bytes a second,
    and then the most bytes."""

    request_id: bare.UInt
    limit: bare.UInt


# type OpenConnection struct { peer: str  identity: str  framing: str  age_s: uint  received: uint  received_bytes: uint
#   sent: uint  sent_bytes: uint  received_bytes_s: uint  sent_bytes_s: uint  backlog_bytes: uint }
class OpenConnection(msgspec.Struct, frozen=True):
    """One open connection. received, sent: the numbers of messages from and to the peer, with their bytes.

    peer: the `host:port` of the other side. identity: what it has proved. framing: how its messages are framed.
    age_s: for how long it is open. received_bytes_s, sent_bytes_s: the bytes a second in the last 10 to 20 seconds.
    backlog_bytes: the bytes that wait to be sent to the peer.
    """

    peer: str
    identity: str
    framing: str
    age_s: bare.UInt
    received: bare.UInt
    received_bytes: bare.UInt
    sent: bare.UInt
    sent_bytes: bare.UInt
    received_bytes_s: bare.UInt
    sent_bytes_s: bare.UInt
    backlog_bytes: bare.UInt


# type PartyTraffic struct { party: str  connections: uint  received: uint  received_bytes: uint  sent: uint
#   sent_bytes: uint  received_bytes_s: uint  sent_bytes_s: uint }
class PartyTraffic(msgspec.Struct, frozen=True):
    """What one identity has sent and received since the start of the node, also by connections that have ended.

    party: the identity; for anonymous peers, with their host. connections: the number of its open connections.
    """

    party: str
    connections: bare.UInt
    received: bare.UInt
    received_bytes: bare.UInt
    sent: bare.UInt
    sent_bytes: bare.UInt
    received_bytes_s: bare.UInt
    sent_bytes_s: bare.UInt


# type ConnectionsResponse struct { request_id: uint  total: uint  connections: list<OpenConnection>
#   parties: list<PartyTraffic> }
class ConnectionsResponse(msgspec.Struct, frozen=True):
    """total: the number of all open connections."""

    request_id: bare.UInt
    total: bare.UInt
    connections: list[OpenConnection]
    parties: list[PartyTraffic]


# type CloseRequest struct { request_id: uint  who: str }
class CloseRequest(msgspec.Struct, frozen=True):
    """who: the `host:port` of one connection; or an identity or a `party`, all of whose connections are closed. The
    connection by which the request comes stays open."""

    request_id: bare.UInt
    who: str


# type CloseResponse struct { request_id: uint  closed: uint }
class CloseResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    closed: bare.UInt


CONNECTIONS = Protocol("node/connections/1", ConnectionsRequest, ConnectionsResponse)
CLOSE = Protocol("node/connections_close/1", CloseRequest, CloseResponse)


class NodeConnectionsService(Worker):
    """The worker that answers at `node_connections`."""

    def __init__(self, tcp: TcpTransport, note: Callable[[Entry], None]) -> None:
        """note: writes a line to the audit log."""
        self._tcp = tcp
        self._note = note

    def handle(self, message: Message) -> None:
        try:
            if CLOSE.is_in(message.payload):
                request = CLOSE.decode_request(message.payload)
                response = CloseResponse(request.request_id, self._close(message, request.who))
                self.reply(message, CLOSE.encode_response(response))
                return
            asked = CONNECTIONS.decode_request(message.payload)
        except ProtocolError as error:
            self.reply(message, error_payload(str(error)))
            return
        self.reply(message, CONNECTIONS.encode_response(list_connections(self._tcp, asked.request_id, asked.limit)))

    def demand(self, message: Message) -> Demand:
        """Returns the rights of which the sender of this message needs one, see `access.authorizer.Guarded`."""
        rights = Right.ADMIN if CLOSE.is_in(message.payload) else Right.OPERATE | Right.ADMIN
        return Demand(rights, EVERY_NAME)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)

    def _close(self, message: Message, who: str) -> int:
        """Closes connections, and notes in both logs who has closed whose."""
        asking = message.return_route[:1]

        def is_meant(connection: Connection) -> bool:
            party = party_key(connection.identity, connection.peer)
            is_named = who in (connection.peer, str(connection.identity), party)
            return is_named and (connection.own_address,) != asking and connection.link is None

        gone = self._tcp.close_connections(is_meant, CLOSED)
        logger.info("connections_closed", of=who, closed=len(gone), **message.origin.who)
        whose = ", ".join(sorted({f"{each.peer} ({each.identity})" for each in gone})) or "none"
        self._note(
            Entry("connections_closed", str(message.origin.identity), message.origin.peer, name=who, reason=whose)
        )
        return len(gone)


def list_connections(tcp: TcpTransport, request_id: int, limit: int) -> ConnectionsResponse:
    """Returns the connections and the identities that send and receive most, at most LISTED_MAX of each."""
    now_s, found = trio.current_time(), list[OpenConnection]()
    rates: dict[str, list[float]] = {}
    for connection in tcp.connections:
        each = connection.statistics()
        age_s, received_s, sent_s = tcp.rates.find(connection, now_s)
        moved = each.received, each.received_bytes, each.sent, each.sent_bytes
        sums = rates.setdefault(party_key(connection.identity, connection.peer), [0, 0.0, 0.0])
        sums[:] = sums[0] + 1, sums[1] + received_s, sums[2] + sent_s
        found.append(
            OpenConnection(
                each.peer,
                str(connection.identity),
                each.framing,
                round(age_s),
                *moved,
                round(received_s),
                round(sent_s),
                each.backlog_bytes,
            )
        )
    parties = [_party(name, traffic, *rates.get(name, (0, 0.0, 0.0))) for name, traffic in tcp.traffic().items()]
    most = min(limit, LISTED_MAX)
    return ConnectionsResponse(
        request_id, len(found), sorted(found, key=_busiest)[:most], sorted(parties, key=_busiest)[:most]
    )


def _party(name: str, traffic: Traffic, connections: float, received_s: float, sent_s: float) -> PartyTraffic:
    moved = traffic.received, traffic.received_bytes, traffic.sent, traffic.sent_bytes
    return PartyTraffic(name, round(connections), *moved, round(received_s), round(sent_s))


def _busiest(each: OpenConnection | PartyTraffic) -> tuple[int, int]:
    return -(each.received_bytes_s + each.sent_bytes_s), -(each.received_bytes + each.sent_bytes)


def register_connections(parts: NodeParts) -> None:
    """Starts the service on a node."""

    def note(entry: Entry) -> None:
        if parts.authorizer is not None:
            parts.authorizer.audit.note(entry)

    parts.node.register([local(ADDRESS)], lambda: NodeConnectionsService(parts.tcp, note))
