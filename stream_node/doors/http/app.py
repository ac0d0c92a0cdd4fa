"""HttpApp: answers HTTP requests. It finds the endpoint, checks the right, and reports every error.
Its checks, in this order: the headers, the host name, the origin, the size of the body, the identity, the right."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import structlog
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from ockam.actors.message import Origin
from ockam.identity.gate import DENIED
from ockam.identity.rules.rights import Demand, rights_text
from ockam.log_rate import LogRate
from ockam.quotas.usage import party_key
from stream_client import ClientError, StreamClient
from stream_node.doors.http import guard
from stream_node.doors.http.guard import identify, peer_of, place_of
from stream_node.doors.http.memory import Readings, RequestBody, RequestMemory
from stream_node.doors.http.problems import RETRY, Problem, problem_of, too_many_connections
from stream_node.node.inside_clients import InsideClients, NoInsideClient
from stream_node.node.parts import NodeParts

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every answer, apart from those that the answer sets itself."""
_ADDED = [(name.encode(), text.encode()) for name, text in SECURITY_HEADERS.items()]
MEMORY = "stream_node_memory"
AUDITED = frozenset({"wrong-host", "foreign-origin", "ambiguous-length", "too-many-refusals"})
"""The problems that are in the audit log although no rule has decided: they may be an attack."""

logger = structlog.get_logger(__name__)


class HttpCall(NamedTuple):
    """One request. caller: who sent it; at an endpoint that `is_open`, only the connection counts."""

    request: Request
    caller: Origin
    parts: NodeParts
    clients: InsideClients
    endpoint: Endpoint
    memory: RequestMemory

    def count_for(self, caller: Origin) -> None:
        """Counts the request also for another identity, which it has proved."""
        place_of(self.request).note_caller(caller.identity)
        self.memory.count_for(party_key(caller.identity, caller.peer))

    def check(self, demand: Demand) -> None:
        """Raises Problem if the rules do not give the caller the right. The refusal is counted and in the audit log."""
        if self.parts.authorizer is None:
            return
        request = f"{self.endpoint.method} {self.endpoint.path}"
        is_act = self.endpoint.method not in guard.SAFE_METHODS
        decision = self.parts.authorizer.decide(self.caller, demand, request, is_act=is_act)
        if not decision.allowed:
            rule = None if decision.rule is None else decision.rule.name
            members = {"right": rights_text(demand.rights), "rule": rule}
            raise Problem(403, "access-denied", DENIED + decision.reason, members=members)

    def check_early(self, demand: Demand) -> None:
        """Raises Problem as `check` does, before a body fills memory. A permission is not audited."""
        if not self.may(demand):
            self.check(demand)

    def may(self, demand: Demand) -> bool:
        """Whether the rules give the caller the right. Nothing is counted."""
        authorizer = self.parts.authorizer
        return authorizer is None or authorizer.rules.allows(self.caller.identity, demand)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[StreamClient]:
        """Opens a client of this node with the identity of the caller. Raises Problem if there is no room for it."""
        try:
            async with self.clients.client(self.caller.identity, self.caller.peer) as client:
                yield client
        except NoInsideClient as error:
            if error.is_closing:
                raise Problem(503, "connection-lost", str(error), headers=RETRY) from error
            raise Problem(503, "too-many-clients", str(error), headers=RETRY) from error


class Endpoint(NamedTuple):
    """Answers one method of one path, such as `/v1/streams/{name}`.

    handle: returns the answer, or raises Problem or an error of our client. demand: the right that the caller needs;
    None if `handle` uses streams only by `HttpCall.client`. is_open: answered also with a token that is not valid.
    is_health: answered also over the connections that are reserved for questions about the health."""

    method: str
    path: str
    handle: Callable[[HttpCall], Awaitable[Response]]
    demand: Demand | None = None
    is_open: bool = False
    is_health: bool = False


class HttpApp:
    """An ASGI application. answered: counts the answers by status. bodies: the held bytes of bodies, by party."""

    def __init__(
        self, parts: NodeParts, clients: InsideClients, endpoints: Sequence[Endpoint], nursery: trio.Nursery
    ) -> None:
        self._parts = parts
        self._clients = clients
        methods: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            methods.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        # Each path's pattern, its endpoints by method, and all methods that it takes.
        self._paths = [
            (compile_path(path)[0], each, sorted({*each, *({"HEAD"} if "GET" in each else ()), "OPTIONS"}))
            for path, each in methods.items()
        ]
        self._watches = LateWatches(nursery)
        self._lines = LogRate()
        self.bodies: Counter[str] = Counter()
        self._readings = Readings(parts.tcp.memory)
        self.answered: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        config, request = self._parts.config, Request(scope)
        place, usages = place_of(request), self._parts.node.usages
        party = party_key(place.peer.identity, place.peer.address)
        # Everything that the request holds is counted from here on, and given back at the end of the block.
        with RequestMemory(
            usages, place.holdings, party, self._readings, self.bodies, page_bytes=config.pull_bytes_max
        ) as memory:
            scope[MEMORY] = memory
            await self._serve(scope, RequestBody(request, receive, config, memory), send)

    async def _serve(self, scope: Scope, body: RequestBody, send: Send) -> None:
        memory, has_begun = scope[MEMORY], False
        readable = guard.readable_send(Request(scope), send, self._parts.config)

        async def answer(event: Message) -> None:
            nonlocal has_begun
            if event["type"] == "http.response.start":
                present = {name.lower() for name, _ in event["headers"]}
                event["headers"] = [*event["headers"], *(each for each in _ADDED if each[0] not in present)]
                # The body is discarded first: a peer that is still sending may lose its answer.
                await body.discard_some()
                await readable(event)
                has_begun = True
                self.answered[event["status"]] += 1
            else:
                memory.note(sent_bytes=len(event.get("body", b"")))
                await readable(event)
                memory.note(sent_bytes=0)

        # An answer whose peer has gone ends here, because nobody waits for it.
        async with self._watches.watched(body.watch):
            problem = await self._answer(scope, body, answer)
            if problem is not None and not has_begun:
                with suppress(ClientDisconnect):
                    await problem.response()(scope, body.receive, answer)

    async def _answer(self, scope: Scope, body: RequestBody, answer: Send) -> Problem | None:
        """Answers a request. Returns the problem that the caller must still send, if there is one."""
        request = Request(scope)
        # The name of a stream can have slashes, written as %2F, so these paths are matched before they are decoded.
        if scope["raw_path"].startswith(guard.DATA_PREFIX):
            scope["path"] = scope["raw_path"].decode("ascii")
        try:
            await self._wait_turn(request)
            guard.check_headers(request, self._parts.config)
            guard.check_host(request, self._parts.config)
            guard.check_origin(request, scope["method"], self._parts.config)
            body.check_announced(request.headers.get("content-length"))
            if scope["method"] in guard.SAFE_METHODS:
                await body.read_ahead()
            response = await self._respond(Request(scope, body.receive))
            await response(scope, body.receive, answer)
        except Exception as error:
            return self._problem(error, scope)
        return None

    async def _wait_turn(self, request: Request) -> None:
        """Counts a request for the identity of its connection, and waits while this identity exceeds its limits."""
        peer, now_s = peer_of(request), trio.current_time()
        usage = self._parts.node.usages.get(party_key(peer.identity, peer.address), now_s)
        if usage.is_rated:
            usage.spend(1, 0, now_s)
            await usage.wait_turn()

    def _problem(self, error: BaseException, scope: Scope) -> Problem | None:
        # A streaming answer wraps its errors.
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, Problem):
            if error.name in AUDITED and self._parts.authorizer is not None:
                peer = peer_of(Request(scope))
                request = f"{scope['method']} {scope['path']}"
                self._parts.authorizer.note_http_refused(peer.address, peer.identity, request, error.name)
            return error
        if isinstance(error, ClientError):
            return problem_of(error, is_read=scope["method"] in guard.SAFE_METHODS)
        if isinstance(error, ClientDisconnect):
            return None
        # Every other error is a mistake of this program: the peer gets no details, and the log has them all.
        address = peer_of(Request(scope)).address
        path = scope["path"][:200]
        self._lines.log(
            logger.error, "http_request_failed", peer=address, method=scope["method"], path=path, exc_info=error
        )
        detail = "the node could not answer; its log has the reason"
        return Problem(500, "internal-error", detail, members={"in_doubt": scope["method"] not in guard.SAFE_METHODS})

    async def _respond(self, request: Request) -> Response:
        methods, allowed = self._find(request.scope)
        # A browser proves no identity when it asks before a request, so OPTIONS needs none.
        if request.method == "OPTIONS":
            return guard.options_answer(request, allowed, self._parts.config)
        if request.method not in allowed:
            takes = ", ".join(allowed)
            raise Problem(405, "method-not-allowed", f"this path takes {takes}", headers={"Allow": takes})
        endpoint = methods.get(request.method) or methods["GET"]
        # A connection above all limits is there for questions about the health alone.
        if place_of(request).is_for_health and not endpoint.is_health:
            raise too_many_connections(self._parts.config.http_connections_max)
        peer = peer_of(request)
        caller = peer.origin(peer.identity) if endpoint.is_open else await identify(request, self._parts.authenticator)
        memory: RequestMemory = request.scope[MEMORY]
        call = HttpCall(request, caller, self._parts, self._clients, endpoint, memory)
        if not endpoint.is_open:
            call.count_for(caller)
        # The right is checked before the handler sees the request.
        if endpoint.demand is not None:
            call.check(endpoint.demand)
        return await endpoint.handle(call)

    def _find(self, scope: Scope) -> tuple[dict[str, Endpoint], list[str]]:
        """Returns the endpoints of a path by method, and all methods that it takes. Notes the parameters in the scope.
        A pattern with the method comes before other patterns that fit the path. Raises Problem if none fits."""
        found = None
        for pattern, methods, allowed in self._paths:
            match, takes = pattern.fullmatch(scope["path"]), scope["method"] in allowed
            if match is not None and (takes or found is None):
                scope["path_params"], found = match.groupdict(), (methods, allowed)
                if takes:
                    break
        if found is None:
            detail = f"there is nothing at {scope['path'][:200]}; docs/http.md lists all paths"
            raise Problem(404, "no-such-path", detail)
        return found


def json_response(value: Any, status: int = 200, end: bytes = b"") -> Response:
    return Response(msgspec.json.encode(value) + end, status, media_type="application/json")


WATCH_AFTER_S = 0.1


class LateWatches:
    """Watches whether the peers of long requests have gone. A task for each short request would cost too much.

    Invariant: `_short` has the requests of about the last interval; a task looks at them while there are any."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._short: dict[Callable[[], Awaitable[None]], None] = {}
        self._looks = False

    @asynccontextmanager
    async def watched(self, function: Callable[[trio.CancelScope], Awaitable[None]]) -> AsyncIterator[None]:
        """Calls the function with the cancel scope of the block if the block takes longer than WATCH_AFTER_S."""
        scope, own_scope, ended = trio.CancelScope(), trio.CancelScope(), trio.Event()

        async def watch() -> None:
            try:
                with own_scope:
                    await function(scope)
            finally:
                ended.set()

        self._short[watch] = None
        if not self._looks:
            self._looks = True
            self._nursery.start_soon(self._look)
        try:
            with scope:
                yield
        finally:
            if watch in self._short:
                del self._short[watch]
            else:
                # Two tasks must not read one connection.
                own_scope.cancel()
                with trio.CancelScope(shield=True):
                    await ended.wait()

    async def _look(self) -> None:
        while self._short:
            before = list(self._short)
            await trio.sleep(WATCH_AFTER_S)
            for watch in before:
                if watch in self._short:
                    del self._short[watch]
                    self._nursery.start_soon(watch)
        self._looks = False
