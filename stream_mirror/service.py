"""MirrorService: serves the requests of an operator about the mirrors of a node (`node/mirror/1`).

`stream_mirror.tasks` runs what the mirrors do, and `stream_mirror.promotions` makes them primaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from index_service.lease_groups import LeaseGroups
from ockam.address import local
from ockam.message import Message
from ockam.node import Node
from ockam.protocol import ProtocolError, error_payload, failed_payload
from storage.errors import StorageError
from stream_mirror.asking import asking
from stream_mirror.errors import MirrorError
from stream_mirror.keeper import list_partitions
from stream_mirror.promotions import Promotions
from stream_mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorRequest, MirrorResponse, MirrorState
from stream_mirror.tasks import MirrorTasks
from stream_mirror.worker import MirrorWorker
from stream_service.mirror_rows import MirrorRow, Task
from stream_service.names import stream_address
from stream_service.role_operations import EndFence
from stream_service.stored import StoredStream
from stream_service.workers.directory import StreamDirectory

REQUESTS_MAX = 64
"""The largest number of requests of operators that are served at the same time. Further ones are refused."""

logger = structlog.get_logger(__name__)


class MirrorService:
    """The mirrors of one node, as an operator sees them."""

    def __init__(
        self,
        node: Node,
        directory: StreamDirectory,
        groups: LeaseGroups,
        *,
        new_id: Callable[[], str],
        now_us: Callable[[], int],
    ) -> None:
        self._node = node
        self._new_id = new_id
        self._tasks = MirrorTasks(node, directory, new_id=new_id, now_us=now_us)
        self._promotions = Promotions(self._tasks, groups)
        self._nursery: trio.Nursery | None = None
        self._refusal: str | None = None
        self._scopes: set[trio.CancelScope] = set()
        self.serving = 0

    def start(self, nursery: trio.Nursery, stored: Sequence[StoredStream], own_address: str | None) -> None:
        """Begins to follow and to fence what the table of mirrors says, and to serve operators.

        nursery: runs the tasks. stored: the streams of the node.
        own_address: the `host:port` at which other nodes reach this node; None if it is not known.
        """
        self._nursery = nursery
        self._node.register([local(ADDRESS)], lambda: MirrorWorker(self.start_serving))
        self._tasks.start(nursery, stored, own_address)
        names = {each.record.name for each in stored if each.mirror is not None}
        promoted: dict[str, list[StoredStream]] = {name: [] for name in names if self._promotions.is_under_way(name)}
        for each in stored:
            promoted.get(each.record.name, []).append(each)
        for name in sorted(promoted):
            self._promotions.resume(name, promoted[name])

    def start_refusing(self, nursery: trio.Nursery, reason: str) -> None:
        """Begins to serve operators, and refuses mirrors for this reason."""
        self._nursery, self._refusal = nursery, reason
        self._node.register([local(ADDRESS)], lambda: MirrorWorker(self.start_serving))

    def stop(self) -> None:
        """Ends all tasks, because the node is stopping."""
        self._nursery = None
        self._tasks.stop()
        for scope in self._scopes:
            scope.cancel()

    def states(self, name: str = "") -> list[MirrorState]:
        """Returns the state of each partition that follows or fences. name: only this stream; empty: all."""
        return self._tasks.states(name)

    @property
    def is_used(self) -> bool:
        """Whether a partition of this node follows or fences."""
        return bool(self._tasks.figures)

    # Requests of an operator

    async def serve(self, request: MirrorRequest) -> MirrorResponse:
        """Does what an operator asks for. Raises MirrorError, StorageError."""
        name, done = request.stream_name, True
        if self._refusal is not None and request.action is not MirrorAction.STATUS:
            raise MirrorError(self._refusal)
        states = self.states(name)
        match request.action:
            case MirrorAction.ADD:
                await self._add(request)
                states = self.states(name)
            case MirrorAction.PROMOTE:
                if request.force:
                    states = await self._promotions.force(name, request.source_goes_on)
                else:
                    done, states = await self._promotions.plan(name, request.promotion_id)
            case MirrorAction.REMOVE:
                await self._remove(name)
        return MirrorResponse(request.request_id, done, states)

    async def _add(self, request: MirrorRequest) -> None:
        name, source_name = request.stream_name, request.source_name or request.stream_name
        if name == source_name and request.source == self._tasks.own_address:
            raise MirrorError("a stream cannot be a mirror of itself")
        if self._promotions.is_under_way(name):
            raise MirrorError(f"{name!r} is being promoted; `mirror promote --force` or `mirror remove` ends that")
        row = MirrorRow(0, Task.FOLLOW, request.source, source_name)
        # The source must be there now, so that a wrong address is noticed here and not later.
        with asking(self._node, request.source, self._new_id) as asker:
            partitions = [info.partition for info in await list_partitions(asker, source_name)]
        if not partitions:
            raise MirrorError(f"{request.source} has no stream {source_name!r}, or does not show it to this node")
        for partition in partitions:
            self._check_may_follow(name, partition, row, force=request.force)
        for partition in partitions:
            await self._tasks.make(name, partition, row, request.force)

    def _check_may_follow(self, name: str, partition: int, source: MirrorRow, *, force: bool) -> None:
        """Raises MirrorError if this node has messages of its own in the stream, and `force` is False, or if it has
        another source to fence."""
        stream = self._tasks.stream((name, partition))
        if not self._node.is_registered(stream_address(name, partition)):
            return
        row = stream.row
        if row is not None and row.fences_another(source.source, source.source_name):
            raise MirrorError(f"{name}/{partition} {row.fence_text()}")
        if stream.next_index and not force and (row is None or not row.follows):
            raise MirrorError(
                f"{name}/{partition} takes pushes here and has {stream.next_index - stream.first_index} messages; with "
                "--force it follows, and the messages that the source does not have go to another stream"
            )

    async def _remove(self, name: str) -> None:
        rows = self._tasks.rows(name)
        if not rows:
            raise MirrorError(f"{name!r} is no mirror on this node, and fences no source")
        await self._promotions.remove(name)
        for identity, row in rows.items():
            if row.task is Task.FENCE:
                await self._tasks.stream(identity).change(lambda stream_id, done: EndFence(stream_id, None, done))
                self._tasks.note_role(identity, None)

    def start_serving(self, message: Message, request: MirrorRequest, reply: Callable[[bytes], None]) -> None:
        """Serves a request in a task, and answers it at the end. Raises ProtocolError if too many are served."""
        if self._nursery is None or self.serving >= REQUESTS_MAX:
            raise ProtocolError("too many requests about mirrors are being served; ask again later")
        self.serving += 1
        self._nursery.start_soon(self._serve, message, request, reply)

    async def _serve(self, message: Message, request: MirrorRequest, reply: Callable[[bytes], None]) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                payload = MIRRORS.encode_response(await self.serve(request))
                if request.action is not MirrorAction.STATUS:
                    action = request.action.name.lower()
                    logger.info("mirror_request", action=action, stream=request.stream_name, peer=message.origin.peer)
            except (MirrorError, StorageError, ProtocolError) as error:
                payload = error_payload(str(error))
            except Exception as error:
                # A mistake of this program must not end the node, which serves other streams.
                logger.error("mirror_request_failed", stream=request.stream_name, exc_info=error)
                payload = failed_payload(f"the node could not serve this: {type(error).__name__}; its log says more")
            reply(payload)
        self.serving -= 1
        self._scopes.discard(scope)
