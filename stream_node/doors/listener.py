"""DoorListener: accepts the connections of one door, makes their TLS handshakes, and ends them when the node stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Generic, Literal, Protocol, TypeVar

import structlog
import trio

from ockam.actors.turns import READ_BYTES_MAX, Share, Turns
from ockam.errors import RemoteProtocolError
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.tls_layer import PeerCertificate, TlsFault, TlsLayer, identity_of
from ockam.log_rate import LogRate
from ockam.quotas.usage import Usage, party_key
from ockam.transport.listener import accept_all, has_unread, open_listeners
from ockam.transport.sockets import send_nowait, socket_name
from stream_node.doors.http.places_machine import Admission, Places
from stream_node.node.identity.tls_settings import make_listener
from stream_node.node.parts import NodeParts


class DoorConnection(Protocol):
    """A connection after its handshake; it reads its bytes itself."""

    async def run(self) -> None: ...

    def drain(self) -> None:
        """Ends the connection after its open requests or calls, because the node stops."""
        ...

    def close(self, reason: str) -> None:
        """Ends the connection at once. reason: a short, fixed word for counters."""
        ...


C = TypeVar("C", bound=DoorConnection)

logger = structlog.get_logger(__name__)


class DoorGuest(Generic[C]):
    """A connection, from its beginning to its end. connection: None during its TLS handshake.

    server_host: the node's IP address that was called. entry: the entry of the door's setting for this address."""

    def __init__(self, stream: trio.SocketStream, entry: str, closed: Counter[str]) -> None:
        """Raises OSError if the peer has gone already."""
        self.address, self.server_host = socket_name(stream.socket.getpeername()), stream.socket.getsockname()[0]
        self.stream = stream
        self.entry = entry
        self._closed = closed
        self.certificate: PeerCertificate | None = None
        self.connection: C | None = None
        self.usage: Usage | None = None

    @property
    def identity(self) -> Identity:
        return identity_of(self.certificate)

    def has_unread(self) -> bool:
        return has_unread(self.stream.socket.fileno())

    def close(self, reason: str) -> None:
        if self.connection is None:
            self._closed[reason] += 1
            self.stream.socket.close()
        else:
            self.connection.close(reason)


class DoorListener(Generic[C]):
    """All connections of one door. addresses: the `host:port` texts at which it listens.

    Invariant: at most `_connections_max` connections are open, a quarter of them for one party (`Places`). A few more
    may be open that only ask for the health. `_open` has the connections after their handshake."""

    def __init__(self, parts: NodeParts, nursery: trio.Nursery, door: Literal["http", "grpc"], *protocols: str) -> None:
        """nursery: runs the connections. It must stay open until `aclose` has returned. protocols: offered by ALPN."""
        self.parts = parts
        self._is_grpc = door == "grpc"
        self._nursery = nursery
        self._tls = None if parts.tls is None else make_listener(parts.config, parts.tls, *protocols)
        self._turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        self._listening = trio.CancelScope()
        self._open: dict[DoorGuest[C], C] = {}
        self._places: Places[DoorGuest[C]] = Places()
        self._accepted = 0
        self._closed: Counter[str] = Counter()
        self._lines = LogRate()
        self._ended = trio.Event()
        self.addresses: list[str] = []

    # What each door does in its own way.

    def _parse(self, entry: str) -> str:
        """Returns the `host:port` of an entry of the setting, at which to listen."""
        return entry

    def _make(self, guest: DoorGuest[C], tls: TlsLayer | None, admission: Admission) -> C | None:
        """Returns the connection of a guest after its handshake; None if the guest must be closed."""
        raise NotImplementedError

    def _admits(self, guest: DoorGuest[C], admission: Admission, *, gave_way: bool) -> bool:
        """Whether a guest may stay. Logs its refusal. gave_way: whether another guest had to go for it."""
        raise NotImplementedError

    # From the beginning of a connection to its end.

    async def listen(self) -> list[str]:
        """Starts to accept connections at the addresses of the setting, and returns the `host:port` of each socket with
        the rest of its entry. Raises OSError if a socket cannot be opened; then none stays open."""
        opened: list[tuple[trio.SocketListener, str]] = []
        try:
            for entry in self.parts.config.grpc if self._is_grpc else self.parts.config.http:
                plain = self._parse(entry)
                for listener in await open_listeners([plain]):
                    opened.append((listener, entry))
                    self.addresses.append(socket_name(listener.socket.getsockname()) + entry.removeprefix(plain))
        except BaseException:
            for listener, _ in opened:
                listener.socket.close()
            raise
        self._nursery.start_soon(self._accept_all, opened)
        return self.addresses

    async def _accept_all(self, opened: Sequence[tuple[trio.SocketListener, str]]) -> None:
        with self._listening:
            async with trio.open_nursery() as nursery:
                for listener, entry in opened:
                    nursery.start_soon(accept_all, listener, partial(self._accept, entry), lambda: None)

    @property
    def _connections_max(self) -> int:
        config = self.parts.config
        return config.grpc_connections_max if self._is_grpc else config.http_connections_max

    def _accept(self, entry: str, stream: trio.SocketStream) -> None:
        self._accepted += 1
        try:
            guest: DoorGuest[C] = DoorGuest(stream, entry, self._closed)
        except OSError:
            self._closed["closed_before_header"] += 1
            stream.socket.close()
            return
        admission = self._enter(guest)
        if admission is None:
            stream.socket.close()
        else:
            self._nursery.start_soon(self._run, guest, admission)

    def _enter(self, guest: DoorGuest[C]) -> Admission | None:
        """Gives a place to a connection, for which another may have to close. Returns None if there is no place."""
        party = party_key(guest.identity, guest.address)
        admission, gone = self._places.enter(guest, party, self._connections_max)
        if gone is not None:
            gone.close("gave_way")
        if self._admits(guest, admission, gave_way=gone is not None):
            return admission
        self._places.leave(guest)
        self._closed["too_many_connections"] += 1
        return None

    async def _run(self, guest: DoorGuest[C], admission: Admission) -> None:
        try:
            connection = await self._open_connection(guest, admission)
            if connection is not None:
                guest.connection = self._open[guest] = connection
                # The node may have begun to stop during the handshake.
                if self._listening.cancel_called:
                    connection.drain()
                try:
                    await connection.run()
                finally:
                    del self._open[guest]
                    self._ended.set()
                    if guest.usage is not None:
                        guest.usage.give_back("connections_max")
        except Exception as error:
            self._lines.log(
                logger.error,
                "grpc_connection_failed" if self._is_grpc else "http_connection_failed",
                peer=guest.address,
                exc_info=error,
            )
        finally:
            self._places.leave(guest)
            guest.stream.socket.close()

    async def _open_connection(self, guest: DoorGuest[C], admission: Admission) -> C | None:
        """Makes the handshake and the connection. Returns None if the guest must be closed."""
        tls: TlsLayer | None = None
        if self._tls is not None:
            tls = await self._handshake(guest)
            if tls is None:
                return None
            guest.certificate = tls.certificate
        # The connections of one certificate count together, from whatever hosts they come.
        if guest.identity != ANONYMOUS:
            self._places.leave(guest)
            entered = self._enter(guest)
            if entered is None:
                return None
            admission = entered
        return self._make(guest, tls, admission)

    async def _handshake(self, guest: DoorGuest[C]) -> TlsLayer | None:
        assert self._tls is not None, "called with TLS only"
        try:
            share = Share(party_key(ANONYMOUS, guest.address))
            return await self._tls.handshake(guest, guest.stream, self._turns, share)
        except RemoteProtocolError as error:
            self._closed[error.kind] += 1
            self._tell_closed(guest.address, error.kind, str(error))
            if isinstance(error, TlsFault):
                send_nowait(guest.stream.socket, error.alert)
                self._note_tls_refused(guest, f"{error.kind}: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._closed["broken"] += 1
        return None

    def _tell_closed(self, peer: str, kind: str, reason: str) -> None:
        self._lines.log(
            logger.warning,
            "grpc_connection_closed" if self._is_grpc else "http_connection_closed",
            peer=peer,
            kind=kind,
            reason=reason,
        )

    # What the server calls.

    def end_refused(self) -> None:
        """Ends the connections whose certificate was revoked or has expired."""
        for guest, connection in list(self._open.items()):
            refusal = None if self._tls is None else self._tls.refusal(guest.certificate)
            if refusal is not None:
                # A connection of gRPC reports its end itself.
                if not self._is_grpc:
                    self._tell_closed(guest.address, *refusal)
                connection.close(refusal[0])
                self._note_tls_refused(guest, f"{refusal[0]}: {refusal[1]}")

    def stop_accepting(self) -> None:
        self._listening.cancel()
        for connection in self._open.values():
            connection.drain()

    async def aclose(self, deadline_s: float) -> None:
        """Waits until all connections have ended. Ends those that are left at `deadline_s`, a time on trio's clock."""
        with trio.move_on_at(deadline_s):
            while self._open:
                self._ended = trio.Event()
                await self._ended.wait()
        for connection in list(self._open.values()):
            connection.close("shutdown")

    def _note_tls_refused(self, guest: DoorGuest[C], reason: str) -> None:
        gate = self.parts.node.gate
        if gate is not None:
            gate.note_tls_refused(guest.address, guest.identity, reason)
