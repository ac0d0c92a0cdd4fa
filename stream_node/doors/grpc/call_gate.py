"""CallGate: finds out who makes a call, and checks their rights. Then the call gets its handler.

The identity is that of the certificate of the connection, else that of a token (`authorization: Bearer …`), else
anonymous, as at the node's other doors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final
from weakref import WeakKeyDictionary

import trio

from block_node.grpc.calls.services import AboutCalls, BlockMethod, block_methods, origin_of
from block_node.grpc.http2.handler import CallHandler, GrpcCall, Route, Routes
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.limits import ASK_BYTES_MAX, GrpcLimits
from ockam.actors.message import Origin
from ockam.identity.identity import Identity
from ockam.identity.rules.rights import Demand
from ockam.quotas.usage import party_key
from stream_node.doors.http.identity import TOKEN_CHARACTERS_MAX
from stream_node.node.config import Config
from stream_node.node.identity.token_services import ENDED
from stream_node.node.keepers import chain_address
from stream_node.node.parts import NodeParts

AUTHORIZATION: Final = b"authorization"


def grpc_limits(config: Config) -> GrpcLimits:
    return GrpcLimits(message_bytes_max=config.grpc_message_bytes_max, duplicate_window=config.grpc_duplicate_window)


class TokenCall(CallHandler):
    """A call whose token is being judged. It takes no message."""

    def may_take(self) -> bool:
        return False

    def take(self, message: bytes) -> None:
        raise AssertionError("a call that is held gets no message")


class CallGate:
    """The routes of all addresses of the door, and the callers of the open calls about blocks."""

    def __init__(self, parts: NodeParts, nursery: trio.Nursery) -> None:
        """nursery: runs the tasks that judge tokens."""
        self._parts = parts
        self._nursery = nursery
        self._callers: WeakKeyDictionary[GrpcCall, Identity] = WeakKeyDictionary()
        self._limits = grpc_limits(parts.config)
        self._about: list[AboutCalls] = []

    def routes(self, services: Collection[str]) -> Routes:
        """Returns the routes of an address: for these services about blocks, for health and for reflection."""
        methods = block_methods(self._limits, services)
        about = AboutCalls(self._is_serving, methods)
        self._about.append(about)
        return {
            **{path: Route(self._opener(path, each), each.message_bytes_max) for path, each in methods.items()},
            # Health and reflection say nothing about blocks, and load balancers prove no identity.
            **{path: Route(open_, ASK_BYTES_MAX) for path, open_ in about.methods().items()},
        }

    def end_calls(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the calls of the chosen identities, and returns their number. The connections stay open."""
        meant = [call for call, identity in self._callers.items() if is_meant(identity)]
        for call in meant:
            if reason == ENDED:
                call.cancel(GrpcStatus.UNAUTHENTICATED, "the token was revoked, replaced, or has expired")
            else:
                call.cancel(GrpcStatus.PERMISSION_DENIED, "the rules for this identity have changed; call again")
        return len(meant)

    def end_about(self) -> None:
        for each in self._about:
            each.end()

    def _opener(self, path: bytes, method: BlockMethod) -> Callable[[GrpcCall], CallHandler]:
        def opened(call: GrpcCall) -> CallHandler:
            text = call.request.metadata.get(AUTHORIZATION)
            if text is None:
                return self._open(call, path, method)
            self._nursery.start_soon(self._judge, call, text.decode("latin-1"), path, method)
            return TokenCall()

        return opened

    async def _judge(self, call: GrpcCall, header: str, path: bytes, method: BlockMethod) -> None:
        """Judges the token of a call, then opens or refuses the call. A refusal is delayed, as everywhere."""
        origin = origin_of(call)
        try:
            identity = await self._identity_of(header, origin)
            usage = self._parts.node.usages.get(party_key(identity, origin.peer), trio.current_time())
        except CallRefused as refused:
            call.cancel(refused.status, refused.text)
            return
        call.peer = Origin(origin.kind, origin.peer, identity, usage=usage)
        with self._parts.node.batch():
            call.replace(lambda: self._open(call, path, method))

    async def _identity_of(self, header: str, origin: Origin) -> Identity:
        scheme, _, text = header.partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not 0 < len(text) <= TOKEN_CHARACTERS_MAX:
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, "send authorization: Bearer TOKEN")
        is_encrypted = self._parts.tls is not None
        verdict = await self._parts.authenticator.judge_text(text, origin.peer, origin.identity, is_encrypted)
        if verdict is None:
            raise CallRefused(GrpcStatus.RESOURCE_EXHAUSTED, "too many refused tokens of this host wait; wait, too")
        if verdict.identity is None:
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, verdict.reason)
        return verdict.identity

    def _open(self, call: GrpcCall, path: bytes, method: BlockMethod) -> CallHandler:
        """Makes the handler of a call whose caller is known. Raises CallRefused."""
        config, authorizer = self._parts.config, self._parts.authorizer
        # The right comes first, so that a refusal does not tell who serves the chain.
        if authorizer is not None:
            demand = Demand(method.rights, config.block_chain)
            decision = authorizer.decide(origin_of(call), demand, path.decode(), is_act=False)
            if not decision.allowed:
                raise CallRefused(GrpcStatus.PERMISSION_DENIED, decision.reason)
        services = self._parts.services.grpc
        if services is None:
            remote = self._parts.remote_streams
            owner = "" if remote is None else remote.owner_of(chain_address(config))[0]
            where = f"; {owner} serves it" if owner else ""
            raise CallRefused(GrpcStatus.UNAVAILABLE, f"this node does not serve the chain now{where}")
        self._callers[call] = origin_of(call).identity
        return method.open(services, call)

    def _is_serving(self) -> bool:
        return not self._parts.condition.is_draining and self._parts.services.grpc is not None
