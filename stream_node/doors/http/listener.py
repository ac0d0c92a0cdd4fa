"""HttpListener: the HTTP door. It makes the connections of its peers, and counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from ockam.identity.identity import Identity
from ockam.identity.tls_layer import TlsLayer
from ockam.quotas.limits import share_of
from stream_node.doors.http.app import Endpoint, HttpApp
from stream_node.doors.http.connection import HttpConnection, HttpStream
from stream_node.doors.http.guard import Peer
from stream_node.doors.http.places_machine import Admission
from stream_node.doors.listener import DoorGuest, DoorListener
from stream_node.node.inside_clients import InsideClients
from stream_node.node.parts import HttpStatistics, NodeParts

logger = structlog.get_logger(__name__)


class HttpListener(DoorListener[HttpConnection]):
    """All HTTP connections of one node. A few above the limit may ask for the health of the node (`Places`)."""

    def __init__(self, parts: NodeParts, endpoints: Sequence[Endpoint], nursery: trio.Nursery) -> None:
        super().__init__(parts, nursery, "http")
        config = parts.config
        # Handlers use streams through clients inside the node, so that every right and limit is checked as elsewhere.
        self.clients = InsideClients(
            parts.tcp,
            nursery,
            config,
            clients_max=config.http_clients_max,
            too_many="too many identities use streams over HTTP (http_clients_max); try again later",
        )
        self._app = HttpApp(parts, self.clients, endpoints, nursery)

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the connections and clients of the chosen identities. Returns the number of connections."""
        meant = [each for each in self._open.values() if is_meant(each.peer.identity)]
        for connection in meant:
            connection.close(reason)
        self.clients.close_identities(is_meant)
        return len(meant)

    def statistics(self) -> HttpStatistics:
        requests = {str(status): count for status, count in sorted(self._app.answered.items())}
        body_bytes = self._app.bodies.total()
        open_count, clients = len(self._open), len(self.clients)
        return HttpStatistics(open_count, self._accepted, dict(self._closed), requests, clients, body_bytes)

    def _make(
        self, guest: DoorGuest[HttpConnection], tls: TlsLayer | None, admission: Admission
    ) -> HttpConnection | None:
        return HttpConnection(
            self._app,
            HttpStream(guest.stream, tls, self.parts.config.send_timeout_s),
            Peer(guest.address, guest.identity, tls is not None, guest.server_host),
            self.parts,
            self._closed,
            is_for_health=admission is Admission.HEALTH,
            note_received=partial(self._places.note_received, guest),
            note_waits=partial(self._places.note_waits, guest),
        )

    def _admits(self, guest: DoorGuest[HttpConnection], admission: Admission, *, gave_way: bool) -> bool:
        if gave_way or admission is not Admission.USUAL:
            self._lines.log(
                logger.warning,
                "http_connections_give_way" if admission is Admission.USUAL else "http_connections_refused",
                peer=guest.address,
                most=self._connections_max,
                most_of_one=share_of(self._connections_max),
            )
        return admission is not Admission.REFUSED
