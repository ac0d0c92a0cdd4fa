"""MirrorService: the mirrors of a node. It runs their tasks, and serves the requests of an operator (`node/mirror/1`).

The table of mirrors says what is to be done (`stream_service.mirror_rows`): the tasks only carry it out, so a restart
of the node goes on with the same tasks. A task that fails with a mistake of this program is logged and begun anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog
import trio

from index_service.lease_groups import LeaseGroups
from ockam.address import local
from ockam.message import Message
from ockam.node import Node
from ockam.protocol import ProtocolError, error_payload
from storage.errors import StorageError
from stream_mirror.asking import asking
from stream_mirror.errors import MirrorError
from stream_mirror.fencer import Fencer
from stream_mirror.figures import Figures
from stream_mirror.follower import Follower
from stream_mirror.followers import Followers
from stream_mirror.keeper import Keeper, list_partitions
from stream_mirror.local_stream import LocalStream, completed
from stream_mirror.making import MakeMirror
from stream_mirror.promotion import Following, Promotion
from stream_mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorRequest, MirrorResponse, MirrorState
from stream_mirror.worker import MirrorWorker
from stream_service.mirror_operations import ChangeRole, EndFence
from stream_service.mirror_rows import MirrorRow, Task
from stream_service.mirroring import BeMirror
from stream_service.names import stream_address
from stream_service.workers.directory import StreamDirectory

REQUESTS_MAX = 64
"""The largest number of requests of operators that are served at the same time. Further ones are refused."""
RESTART_S = 1.0
"""The pause before a task that has failed is begun anew, in seconds."""

Identity = tuple[str, int]

logger = structlog.get_logger(__name__)


class MirrorService:
    """The mirrors of one node.

    Invariant: there is one task for each row of the table of mirrors, and one keeper for each stream with a mirror.
    """

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
        self._directory = directory
        self._groups = groups
        self._new_id = new_id
        self._now_us = now_us
        self._nursery: trio.Nursery | None = None
        self._own_address: str | None = None
        self._refusal: str | None = None
        self._scopes: dict[object, trio.CancelScope] = {}
        self._figures: dict[Identity, Figures] = {}
        self._followers = Followers(directory, new_id, self.note_role, self._figures)
        self._keepers: dict[str, Keeper] = {}
        self._promoting: dict[str, list[MirrorState]] = {}
        self._promoted: dict[str, MirrorError | StorageError | None] = {}
        self.serving = 0

    def start(self, nursery: trio.Nursery, rows: Mapping[Identity, MirrorRow], own_address: str | None) -> None:
        """Begins to follow and to fence what the table of mirrors says.

        nursery: runs the tasks. rows: the table of mirrors, by name and partition.
        own_address: the `host:port` at which other nodes reach this node; None if it is not known.
        """
        self._nursery, self._own_address = nursery, own_address
        self._directory.role_changed = self.note_role
        self._node.register([local(ADDRESS)], lambda: MirrorWorker(self.start_serving))
        self._directory.mirror_seen = partial(self._followers.note, nursery)
        for identity, row in rows.items():
            if row.task is Task.FOLLOW:
                self.note_role(identity, row)
                continue
            # Another node may have taken the place of this stream, also the one that it wanted to fence.
            self._followers.begin_asking(identity, row, nursery)

    def start_refusing(self, nursery: trio.Nursery, reason: str) -> None:
        """Begins to serve operators, and refuses mirrors for this reason."""
        self._nursery, self._refusal = nursery, reason
        self._node.register([local(ADDRESS)], lambda: MirrorWorker(self.start_serving))

    def stop(self) -> None:
        """Ends all tasks, because the node is stopping."""
        self._directory.role_changed = None
        self._directory.mirror_seen = lambda identity, origin, mirror: None
        self._nursery = None
        for scope in self._scopes.values():
            scope.cancel()

    def states(self, name: str = "") -> list[MirrorState]:
        """Returns the state of each partition that follows or fences. name: only this stream; empty: all."""
        found = []
        for identity in sorted(self._figures):
            stream = LocalStream(self._directory, identity)
            try:
                row, next_index = stream.row, stream.next_index
            except MirrorError:
                # The stream is being made again, or deleted.
                continue
            if row is not None and (not name or name == identity[0]):
                found.append(self._figures[identity].state(row, next_index))
        return found

    @property
    def is_used(self) -> bool:
        """Whether a partition of this node follows or fences."""
        return bool(self._figures)

    def get_own_address(self) -> str:
        """Returns the `host:port` at which other nodes reach this node. Raises MirrorError if it is not known."""
        if self._own_address is None:
            raise MirrorError(
                "this node does not know how other nodes reach it: set `mirror_address` to its HOST:PORT, and start "
                "it anew"
            )
        return self._own_address

    # Tasks

    def note_role(self, identity: Identity, row: MirrorRow | None) -> None:
        """Called when a stream became a mirror or a primary: ends its task, and begins the one that it needs now."""
        self._end(identity)
        self._figures.pop(identity, None)
        name = identity[0]
        if row is not None and row.task is not Task.ASK:
            self._followers.forget(identity)
            figures = self._figures[identity] = Figures(identity, row, self._now_us)
            stream = LocalStream(self._directory, identity)
            if row.task is Task.FOLLOW:
                follower = Follower(stream, row, figures, self._new_id, self._own_address)
                self._begin(identity, follower.run)
                # The keeper asks the same node.
                self._keep(name, row)
            else:
                fencer = Fencer(stream, row, figures, self._new_id, self.get_own_address)
                self._begin(identity, lambda: self._fence(identity, fencer))
        if not any(each.task is Task.FOLLOW for each in self._rows(name).values()):
            self._end(("keeper", name))
            self._keepers.pop(name, None)

    async def _fence(self, identity: Identity, fencer: Fencer) -> None:
        await fencer.run()
        if self._figures.get(identity) is fencer.figures:
            del self._figures[identity]
            # The former source is written down as a mirror now.
            self._followers.add(identity)

    def _keep(self, name: str, row: MirrorRow) -> None:
        keeper = self._keepers.get(name)
        if keeper is not None and keeper.is_of(row):
            return
        self._end(("keeper", name))
        keeper = self._keepers[name] = Keeper(
            self._directory, name, row, self._new_id, lambda partition: self._make(name, partition, row)
        )
        self._begin(("keeper", name), keeper.run)

    async def _make(self, name: str, partition: int, row: MirrorRow, force: bool = False) -> None:
        """Makes a partition of this node a mirror; makes it, if it is missing. Raises MirrorError, StorageError."""
        stream = LocalStream(self._directory, (name, partition))
        if self._node.is_registered(stream.address):
            change = BeMirror(row.source, row.source_name)
            changed = await stream.change(lambda stream_id, done: ChangeRole(stream_id, change, force, done))
            self.note_role(stream.identity, changed.mirror)
            return
        if self._directory.find_keeper(name) is not None:
            raise MirrorError(f"a part of this node writes {name!r}, so it cannot be a mirror")
        made = await completed(
            self._directory.storage.submit_write,
            lambda done: MakeMirror(name, partition, self._now_us(), row.source, row.source_name, done),
        )
        assert made.stream is not None, "it was made"
        self._directory.open_stream(made.stream)
        self.note_role(stream.identity, made.stream.mirror)

    def _begin(self, key: object, run: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is None:
            return
        scope = self._scopes[key] = trio.CancelScope()
        self._nursery.start_soon(self._run, key, scope, run)

    def _end(self, key: object) -> None:
        scope = self._scopes.pop(key, None)
        if scope is not None:
            scope.cancel()

    async def _run(self, key: object, scope: trio.CancelScope, run: Callable[[], Awaitable[None]]) -> None:
        """Runs a task until it ends or is cancelled."""
        with scope:
            while True:
                try:
                    await run()
                    break
                except Exception as error:
                    logger.error("mirror_task_failed", task=str(key), exc_info=error)
                    await trio.sleep(RESTART_S)
        if self._scopes.get(key) is scope:
            del self._scopes[key]

    def _rows(self, name: str) -> dict[Identity, MirrorRow]:
        """Returns the rows of a stream by their identities, in the order of the partitions."""
        found = {}
        for identity in sorted(self._figures):
            row = LocalStream(self._directory, identity).row if identity[0] == name else None
            if row is not None:
                found[identity] = row
        return found

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
                done, states = await self._promote(name, request.force, states)
            case MirrorAction.REMOVE:
                await self._remove(name)
        return MirrorResponse(request.request_id, done, states)

    async def _add(self, request: MirrorRequest) -> None:
        name, source_name = request.stream_name, request.source_name or request.stream_name
        if name == source_name and request.source == self._own_address:
            raise MirrorError("a stream cannot be a mirror of itself")
        row = MirrorRow(0, Task.FOLLOW, request.source, source_name)
        # The source must be there now, so that a wrong address is noticed here and not later.
        with asking(self._node, request.source, self._new_id) as asker:
            partitions = [info.partition for info in await list_partitions(asker, source_name)]
        if not partitions:
            raise MirrorError(f"{request.source} has no stream {source_name!r}, or does not show it to this node")
        for partition in partitions:
            self._check_may_follow(name, partition, force=request.force)
        for partition in partitions:
            await self._make(name, partition, row, request.force)

    def _check_may_follow(self, name: str, partition: int, *, force: bool) -> None:
        """Raises MirrorError if this node has messages of its own in the stream, and `force` is False."""
        stream = LocalStream(self._directory, (name, partition))
        if not self._node.is_registered(stream_address(name, partition)):
            return
        row = stream.row
        if stream.next_index and not force and (row is None or row.task is not Task.FOLLOW):
            raise MirrorError(
                f"{name}/{partition} takes pushes here and has {stream.next_index - stream.first_index} messages; with "
                "--force it follows, and the messages that the source does not have go to another stream"
            )

    async def _promote(self, name: str, force: bool, states: list[MirrorState]) -> tuple[bool, list[MirrorState]]:
        """Promotes a stream, or tells how far its promotion is. Returns whether it has ended, and the states before."""
        if name in self._promoted:
            failure, before = self._promoted.pop(name), self._promoting.pop(name)
            if failure is not None:
                raise failure
            return True, before
        if name in self._promoting:
            return False, states
        following = [
            Following(LocalStream(self._directory, identity), row, self._figures[identity])
            for identity, row in self._rows(name).items()
            if row.task is Task.FOLLOW
        ]
        if not following:
            raise MirrorError(f"{name!r} is no mirror on this node")
        row = following[0].row
        keeper = self._keepers[name]
        promotion = Promotion(name, following, keeper, self._groups, self._new_id, self.note_role)
        if force:
            await promotion.finish()
            return True, states
        own_address = self.get_own_address()
        logger.info("promotion_begun", stream=name, source=row.source)
        self._promoting[name] = states
        self._begin(("promotion", name), lambda: self._run_promotion(name, promotion, own_address))
        return False, states

    async def _run_promotion(self, name: str, promotion: Promotion, own_address: str) -> None:
        failure: MirrorError | StorageError | None = None
        try:
            await promotion.run(own_address)
        except (MirrorError, StorageError) as error:
            failure = error
            logger.error("promotion_failed", stream=name, reason=str(error))
        self._promoted[name] = failure

    async def _remove(self, name: str) -> None:
        rows = self._rows(name)
        if not rows:
            raise MirrorError(f"{name!r} is no mirror on this node, and fences no source")
        following = [
            Following(LocalStream(self._directory, identity), row, self._figures[identity])
            for identity, row in rows.items()
            if row.task is Task.FOLLOW
        ]
        if following:
            keeper = self._keepers[name]
            promotion = Promotion(name, following, keeper, self._groups, self._new_id, self.note_role)
            await promotion.finish(fences=False)
        for identity, row in rows.items():
            if row.task is Task.FENCE:
                await LocalStream(self._directory, identity).change(
                    lambda stream_id, done: EndFence(stream_id, False, done)
                )
                self.note_role(identity, None)

    def start_serving(self, message: Message, request: MirrorRequest, reply: Callable[[bytes], None]) -> None:
        """Serves a request in a task, and answers it at the end. Raises ProtocolError if too many are served."""
        if self._nursery is None or self.serving >= REQUESTS_MAX:
            raise ProtocolError("too many requests about mirrors are being served; ask again later")
        self.serving += 1
        self._nursery.start_soon(self._serve, message, request, reply)

    async def _serve(self, message: Message, request: MirrorRequest, reply: Callable[[bytes], None]) -> None:
        with trio.CancelScope() as scope:
            self._scopes[scope] = scope
            try:
                payload = MIRRORS.encode_response(await self.serve(request))
                if request.action is not MirrorAction.STATUS:
                    action = request.action.name.lower()
                    logger.info("mirror_request", action=action, stream=request.stream_name, peer=message.origin.peer)
            except (MirrorError, StorageError, ProtocolError) as error:
                payload = error_payload(str(error))
            reply(payload)
        self.serving -= 1
        self._scopes.pop(scope, None)
