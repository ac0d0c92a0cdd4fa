"""MirrorService: serves the requests of an operator about the mirrors of a node (`node/mirror/1`).
`stream_node.fleet.mirror.tasks` runs the mirrors, and `stream_node.fleet.mirror.promotion` makes them primaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from index_service.lease_groups import LeaseGroups
from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.actors.worker import AnsweringWorker
from ockam.identity.rules.rights import Demand, Right, to_follow, to_replace
from ockam.protocol import ProtocolError, error_payload, failed_payload
from stream_node.fleet.mirror.mirror import MirrorError, asking
from stream_node.fleet.mirror.promotion import Promotions
from stream_node.fleet.mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorRequest, MirrorResponse
from stream_node.fleet.mirror.stream_copier import list_partitions
from stream_node.fleet.mirror.tasks import MirrorTasks
from stream_service.mirror_operations import end_fence
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import refusal_of_source
from stream_service.names import refusal_of_name, stream_address
from stream_service.role_machine import StreamRole
from stream_service.stored import StoredStream
from stream_service.workers.directory import StreamDirectory
from stream_storage.errors import StorageError

REQUESTS_MAX = 64
"""The largest number of requests that are served at the same time.
Above it, a request that waits for another node gives way: the oldest of the identity that has most of these."""
NO_MIRRORS = (
    "this node is a member of a cluster or has several workers, and has no mirrors; its streams "
    "can be the source of a mirror elsewhere"
)
GAVE_WAY = "too many requests about mirrors wait for other nodes; ask again later"

logger = structlog.get_logger(__name__)


class Waiting:
    """A request that is being served. party: its identity. asks: it has changed nothing yet, so it may be ended."""

    def __init__(self, party: str) -> None:
        self.party = party
        self.scope = trio.CancelScope()
        self.asks, self.gave_way = True, False


class MirrorService(AnsweringWorker):
    """Serves the requests of operators; also the worker that gets them."""

    def __init__(self, directory: StreamDirectory, groups: LeaseGroups, *, passes_pushes: bool) -> None:
        self._node = directory.node
        self.tasks = MirrorTasks(directory, passes_pushes=passes_pushes)
        self._promotions = Promotions(self.tasks, groups)
        self._nursery: trio.Nursery | None = None
        # The oldest first.
        self._serving: list[Waiting] = []

    def start(self, nursery: trio.Nursery, stored: Sequence[StoredStream], own_address: str | None) -> None:
        """Begins to follow and to fence as the table of mirrors says, and to serve operators.
        own_address: the `host:port` at which other nodes reach this node; None if it is not known."""
        self._nursery = nursery
        self._node.register([local(ADDRESS)], lambda: self)
        # A member of a cluster has no mirrors, and answers that to operators.
        if self.tasks.directory.remote_streams is not None:
            return
        self.tasks.start(nursery, stored, own_address)
        # Promotions of an earlier run of the node are resumed, with all partitions of their streams.
        names = {each.record.name for each in stored if each.mirror is not None}
        promoted: dict[str, list[StoredStream]] = {name: [] for name in names if self._promotions.is_under_way(name)}
        for each in stored:
            promoted.get(each.record.name, []).append(each)
        for name in sorted(promoted):
            self._promotions.resume(name, promoted[name])

    def end(self) -> None:
        self._nursery = None
        self.tasks.stop()
        for each in self._serving:
            each.scope.cancel()

    # Requests of an operator

    async def _do(self, request: MirrorRequest, origin: Origin, waiting: Waiting) -> MirrorResponse:
        name, done = request.stream_name, True
        if self.tasks.directory.remote_streams is not None:
            raise MirrorError(NO_MIRRORS)
        states = self.tasks.states(name)
        match request.action:
            case MirrorAction.ADD:
                await self._add(request, origin, waiting)
                states = self.tasks.states(name)
            case MirrorAction.PROMOTE:
                if request.force:
                    if not request.source_goes_on:
                        await self._promotions.check_source_ends(name)
                    # From here on the request changes something, so it does not give way to others any more.
                    waiting.asks = False
                    states = await self._promotions.force(name)
                else:
                    done, states = await self._promotions.plan(name, request.promotion_id)
            case MirrorAction.REMOVE:
                waiting.asks = False
                await self._remove(name)
        return MirrorResponse(request.request_id, done, states)

    async def _add(self, request: MirrorRequest, origin: Origin, waiting: Waiting) -> None:
        name, source_name = request.stream_name, request.source_name or request.stream_name
        if name == source_name and request.source == self.tasks.own_address:
            raise MirrorError("a stream cannot be a mirror of itself")
        if self._promotions.is_under_way(name):
            raise MirrorError(f"{name!r} is being promoted; `mirror promote --force` or `mirror remove` ends that")
        row = MirrorRow(0, StreamRole.FOLLOWING, request.source, source_name)
        # The source must be there now, so that a wrong address is noticed here and not later.
        with asking(self.tasks.directory, request.source) as remote:
            partitions = [info.partition for info in await list_partitions(remote, source_name)]
        if not partitions:
            raise MirrorError(f"{request.source} has no stream {source_name!r}, or does not show it to this node")
        # All partitions are checked before the first one becomes a mirror.
        for partition in partitions:
            self._check_may_follow(name, partition, row, force=request.force)
        waiting.asks = False
        await self.tasks.make(name, partitions, row, force=request.force, origin=origin)

    def _check_may_follow(self, name: str, partition: int, source: MirrorRow, *, force: bool) -> None:
        """Raises MirrorError if the partition has own messages and `force` is False, or another source to fence."""
        stream = self.tasks.stream((name, partition))
        if not self._node.is_registered(stream_address(name, partition)):
            return
        bounds, row = stream.bounds, stream.bounds.mirror
        if row is not None and row.fences_another(source.source, source.source_name):
            raise MirrorError(f"{name}/{partition} {row.fence_text()}")
        if bounds.next_index and not force and (row is None or not row.follows):
            raise MirrorError(
                f"{name}/{partition} takes pushes here and has {bounds.next_index - bounds.first_index} messages; with "
                "--force it follows, and the messages that the source does not have go to another stream"
            )

    async def _remove(self, name: str) -> None:
        if not self.tasks.states(name):
            raise MirrorError(f"{name!r} is no mirror on this node, and fences no source")
        fencing = [each for each in self.tasks.mirrors(name) if each.has_role({StreamRole.FENCING})]
        await self._promotions.remove(name)
        for mirror in fencing:
            await mirror.stream.change(partial(end_fence, fenced_us=None))
            self.tasks.note_role(mirror.stream.identity, None)

    def demand(self, message: Message) -> Demand | list[Demand]:
        request = MIRRORS.decode_request(message.payload)
        _check(request)
        name = request.stream_name
        # The node calls the source in its own name, so the sender needs the rights for the calls.
        match request.action:
            case MirrorAction.STATUS:
                return Demand(Right.OPERATE | Right.ADMIN, name or None)
            case MirrorAction.ADD:
                return to_follow(name, request.source, request.source_name or name)
            case MirrorAction.PROMOTE:
                return to_replace(name, sorted({(each.source, each.source_name) for each in self.tasks.states(name)}))
            case MirrorAction.REMOVE:
                return Demand(Right.ADMIN, name)

    def answer(self, message: Message) -> None:
        """Serves a request in a task, and answers it at the end. Raises ProtocolError if too many are served."""
        request = MIRRORS.decode_request(message.payload)
        _check(request)
        if self._nursery is None:
            raise ProtocolError("this node stops")
        if request.action is MirrorAction.STATUS:
            # The status waits for nothing, so an operator sees the mirrors even if other requests wait.
            states, gate, rights = self.tasks.states(request.stream_name), self._node.gate, Right.OPERATE | Right.ADMIN
            if gate is not None:
                states = [each for each in states if gate.holds(message.origin, rights, each.stream_name)]
            self.reply(message, MIRRORS.encode_response(MirrorResponse(request.request_id, True, states)))
            return
        if len(self._serving) >= REQUESTS_MAX and not self._make_room():
            raise ProtocolError(GAVE_WAY)
        # The request counts for its sender until it ends.
        waiting = Waiting(message.origin.party)
        self._serving.append(waiting)
        reply = self.context.guard(partial(self.reply, message))
        self._nursery.start_soon(self._serve, message, request, reply, waiting)

    def _make_room(self) -> bool:
        """Ends a request that waits for another node. Returns False if no request can be ended."""
        asks = [each for each in self._serving if each.asks and not each.gave_way]
        if not asks:
            return False
        # The identity with the most waiting requests gives one up, so that one client cannot lock out the others.
        count = Counter(each.party for each in asks)
        chosen = max(asks, key=lambda each: count[each.party])
        chosen.gave_way = True
        chosen.scope.cancel()
        return True

    async def _serve(
        self, message: Message, request: MirrorRequest, reply: Callable[[bytes], None], waiting: Waiting
    ) -> None:
        payload = error_payload(GAVE_WAY)
        with waiting.scope:
            try:
                payload = MIRRORS.encode_response(await self._do(request, message.origin, waiting))
                logger.info(
                    "mirror_request",
                    action=request.action.name.lower(),
                    stream=request.stream_name,
                    **message.origin.who,
                )
            except (MirrorError, StorageError, ProtocolError) as error:
                payload = error_payload(str(error))
            except Exception as error:
                # A mistake of this program must not end the node, which serves other streams.
                logger.error("mirror_request_failed", stream=request.stream_name, exc_info=error)
                payload = failed_payload(f"the node could not serve this: {type(error).__name__}; its log says more")
        self._serving.remove(waiting)
        # A node that stops answers nothing.
        if waiting.gave_way or not waiting.scope.cancelled_caught:
            reply(payload)


def _check(request: MirrorRequest) -> None:
    if request.action is MirrorAction.STATUS:
        return
    for name in (request.stream_name, request.source_name or request.stream_name):
        refusal = refusal_of_name(name)
        if refusal is not None:
            raise ProtocolError(refusal)
    if request.action is MirrorAction.PROMOTE and not request.force and not request.promotion_id:
        raise ProtocolError("a promotion needs an id, by which its end is told from that of an earlier one")
    if request.source_goes_on and not (request.action is MirrorAction.PROMOTE and request.force):
        raise ProtocolError("only a forced promotion can leave the source as it is")
    if request.action is MirrorAction.ADD:
        refusal = refusal_of_source(request.source)
        if refusal is not None:
            raise ProtocolError(refusal)
