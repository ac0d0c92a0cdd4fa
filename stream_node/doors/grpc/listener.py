"""GrpcListener: the gRPC door. It finds out who makes a call, and checks their rights, before the call gets its
handler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import structlog
import trio

from block_node.grpc.calls.services import AboutCalls, BlockMethod, block_methods, origin_of
from block_node.grpc.http2.connection import CallHandler, DoorCounts, GrpcCall, Route, Routes, ServerConnection
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import DoorBudget
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.limits import ASK_BYTES_MAX, GrpcLimits, read_services
from ockam.actors.message import Origin
from ockam.identity.identity import Identity
from ockam.identity.rules.rights import Demand
from ockam.identity.tls_layer import TlsLayer
from ockam.quotas.usage import party_key
from stream_node.doors.http.guard import TOKEN_CHARACTERS_MAX
from stream_node.doors.http.places_machine import Admission
from stream_node.doors.listener import DoorGuest, DoorListener
from stream_node.node.config import Config
from stream_node.node.identity.token_services import ENDED
from stream_node.node.keepers import chain_address
from stream_node.node.parts import GrpcDoorStatistics, NodeParts

AUTHORIZATION: Final = b"authorization"

logger = structlog.get_logger(__name__)


def grpc_limits(config: Config) -> GrpcLimits:
    return GrpcLimits(message_bytes_max=config.grpc_message_bytes_max, duplicate_window=config.grpc_duplicate_window)


class TokenCall(CallHandler):
    """A call whose token is being judged. It takes no message."""

    def may_take(self) -> bool:
        return False

    def take(self, message: bytes) -> None:
        raise AssertionError("a call that is held gets no message")


class GrpcListener(DoorListener[ServerConnection]):
    def __init__(self, parts: NodeParts, nursery: trio.Nursery) -> None:
        super().__init__(parts, nursery, "grpc", "h2")
        config = parts.config
        self._budget = DoorBudget(config.grpc_unfinished_bytes_max)
        self._counts = DoorCounts()
        self._closed, self._lines = self._counts.closed, self._counts.lines
        self._callers: WeakKeyDictionary[GrpcCall, Identity] = WeakKeyDictionary()
        self._about: list[AboutCalls] = []
        self._routes: dict[str, Routes] = {}
        self._prefers = ("zstd", "gzip") if config.grpc_compression else ()

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the calls of the chosen identities, and returns their number. The connections stay open."""
        meant = [call for call, identity in self._callers.items() if is_meant(identity)]
        for call in meant:
            if reason == ENDED:
                call.cancel(GrpcStatus.UNAUTHENTICATED, "the token was revoked, replaced, or has expired")
            else:
                call.cancel(GrpcStatus.PERMISSION_DENIED, "the rules for this identity have changed; call again")
        return len(meant)

    def stop_accepting(self) -> None:
        for each in self._about:
            each.end()
        super().stop_accepting()

    def statistics(self) -> GrpcDoorStatistics:
        return GrpcDoorStatistics(
            open=len(self._open),
            accepted=self._accepted,
            closed=dict(self._closed),
            open_calls=sum(each.open_calls for each in self._open.values()),
            calls=dict(self._counts.calls),
            unfinished_bytes=self._budget.held_bytes,
        )

    def _parse(self, entry: str) -> str:
        plain, services = read_services(entry)
        methods = block_methods(grpc_limits(self.parts.config), services)
        about = AboutCalls(self._is_serving, methods)
        self._about.append(about)
        self._routes[entry] = {
            **{path: Route(partial(self._begin, path, each), each.message_bytes_max) for path, each in methods.items()},
            # Health and reflection say nothing about blocks, and load balancers prove no identity.
            **{path: Route(open_, ASK_BYTES_MAX) for path, open_ in about.methods().items()},
        }
        return plain

    @property
    def _limits(self) -> Http2Limits:
        """Returns the limits of a new connection: the setting `send_timeout_s` can change while the node runs."""
        config = self.parts.config
        return Http2Limits(
            streams_max=config.grpc_streams_max,
            header_bytes_max=config.grpc_header_bytes_max,
            resets_max=config.grpc_resets_max,
            pings_max=config.grpc_pings_max,
            idle_s_max=config.grpc_idle_timeout_s,
            send_s_max=config.send_timeout_s,
            unfinished_bytes_max=config.grpc_unfinished_bytes_max,
        )

    def _make(
        self, guest: DoorGuest[ServerConnection], tls: TlsLayer | None, admission: Admission
    ) -> ServerConnection | None:
        self._places.note_received(guest)
        party = party_key(guest.identity, guest.address)
        usage = self.parts.node.usages.get(party, trio.current_time())
        if usage.take("connections_max", guest.address) is not None:
            self._closed["identity_connections_max"] += 1
            return None
        guest.usage = usage
        return ServerConnection(
            SocketBytes(guest.stream, tls),
            self._routes[guest.entry],
            self._limits,
            self._budget.of(party),
            self._counts,
            address=guest.address,
            peer=Origin("grpc", guest.address, guest.identity, usage=usage),
            prefers=self._prefers,
            batch=self.parts.node.batch,
            usage=usage,
        )

    def _admits(self, guest: DoorGuest[ServerConnection], admission: Admission, *, gave_way: bool) -> bool:
        if admission is Admission.USUAL:
            return True
        most = self._connections_max
        self._lines.log(logger.warning, "grpc_connections_refused", peer=guest.address, most=most)
        return False

    # The way of a call to its handler.

    def _begin(self, path: bytes, method: BlockMethod, call: GrpcCall) -> CallHandler:
        text = call.metadata.get(AUTHORIZATION)
        if text is None:
            return self._open_call(call, path, method)
        self._nursery.start_soon(self._judge, call, text.decode("latin-1"), path, method)
        return TokenCall()

    async def _judge(self, call: GrpcCall, header: str, path: bytes, method: BlockMethod) -> None:
        """Judges the token of a call, then opens or refuses the call. A refusal is delayed, as everywhere."""
        origin = origin_of(call)
        try:
            identity = await self._identity_of(header, origin)
            usage = self.parts.node.usages.get(party_key(identity, origin.peer), trio.current_time())
        except CallRefused as refused:
            call.cancel(refused.status, refused.text)
            return
        call.peer = Origin(origin.kind, origin.peer, identity, usage=usage)
        with self.parts.node.batch():
            call.replace(lambda: self._open_call(call, path, method))

    async def _identity_of(self, header: str, origin: Origin) -> Identity:
        scheme, _, text = header.partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not 0 < len(text) <= TOKEN_CHARACTERS_MAX:
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, "send authorization: Bearer TOKEN")
        is_encrypted = self.parts.tls is not None
        verdict = await self.parts.authenticator.judge_text(text, origin.peer, origin.identity, is_encrypted)
        if verdict is None:
            raise CallRefused(GrpcStatus.RESOURCE_EXHAUSTED, "too many refused tokens of this host wait; wait, too")
        if verdict.identity is None:
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, verdict.reason)
        return verdict.identity

    def _open_call(self, call: GrpcCall, path: bytes, method: BlockMethod) -> CallHandler:
        config, authorizer = self.parts.config, self.parts.authorizer
        # The right comes first, so that a refusal does not tell who serves the chain.
        if authorizer is not None:
            demand = Demand(method.rights, config.block_chain)
            decision = authorizer.decide(origin_of(call), demand, path.decode(), is_act=False)
            if not decision.allowed:
                raise CallRefused(GrpcStatus.PERMISSION_DENIED, decision.reason)
        services = self.parts.services.grpc
        if services is None:
            remote = self.parts.remote_streams
            owner = "" if remote is None else remote.owner_of(chain_address(config))[0]
            where = f"; {owner} serves it" if owner else ""
            raise CallRefused(GrpcStatus.UNAVAILABLE, f"this node does not serve the chain now{where}")
        self._callers[call] = origin_of(call).identity
        return method.open(services, call)

    def _is_serving(self) -> bool:
        return not self.parts.condition.is_draining and self.parts.services.grpc is not None
