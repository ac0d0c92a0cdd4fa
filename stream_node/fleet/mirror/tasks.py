"""MirrorTasks: the tasks of the mirrors of a node, which follow their sources and fence their former ones.
The table of mirrors (`stream_service.mirror_rows`) says what is to be done and the tasks only carry it out, so a
restart of the node goes on with the same tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import structlog
import trio

from ockam.actors.address import local
from ockam.actors.message import HERE, Origin
from ockam.actors.node import Node
from stream_node.fleet.mirror.errors import MirrorError
from stream_node.fleet.mirror.fencer import Fencer
from stream_node.fleet.mirror.figures import Figures, FiguresByName, Identity
from stream_node.fleet.mirror.follower import Follower
from stream_node.fleet.mirror.followers import Followers
from stream_node.fleet.mirror.keeper import Keeper
from stream_node.fleet.mirror.local_stream import LocalStream, completed
from stream_node.fleet.mirror.making import MakeMirror
from stream_node.fleet.mirror.passing import Passing
from stream_node.fleet.mirror.protocol import MirrorCondition, MirrorState
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import BeMirror
from stream_service.names import stream_address
from stream_service.role_operations import ChangeRole
from stream_service.stored import StoredStream
from stream_service.workers.directory import StreamDirectory

RESTART_S = 1.0

logger = structlog.get_logger(__name__)


class MirrorTasks:
    """The tasks of the mirrors of one node.
    Invariant: there is one task for each row of the table of mirrors, and one keeper for each stream with a mirror."""

    def __init__(
        self,
        node: Node,
        directory: StreamDirectory,
        *,
        new_id: Callable[[], str],
        now_us: Callable[[], int],
        passes_pushes: bool = False,
    ) -> None:
        self._node = node
        self.directory = directory
        self.new_id = new_id
        self._now_us = now_us
        self._nursery: trio.Nursery | None = None
        self.own_address: str | None = None
        self._scopes: dict[object, trio.CancelScope] = {}
        self.figures = FiguresByName()
        # The partitions of each stream that follow a source. While there is one, the stream has a keeper.
        self._following: dict[str, set[int]] = {}
        self._followers = Followers(directory, new_id, now_us, self.note_role, lambda: self.own_address)
        self.keepers: dict[str, Keeper] = {}
        self._passing = Passing(node, self._find_source) if passes_pushes else None

    def start(self, nursery: trio.Nursery, stored: Iterable[StoredStream], own_address: str | None) -> None:
        """Begins to follow and to fence as the table of mirrors says. nursery: runs the tasks.
        own_address: the `host:port` at which other nodes reach this node; None if it is not known."""
        self._nursery, self.own_address = nursery, own_address
        # From here on the directory reports each change of a role, so no row is without its task.
        self.directory.role_changed = self.note_role
        # Pushes to a mirror go to its source through a worker of this node, which gets the answers.
        if (passing := self._passing) is not None:
            self._node.register([local("MP_" + self.new_id())], lambda: passing)
            self.directory.pass_on = passing.pass_on
        self.directory.mirror_seen = partial(self._followers.note, nursery)
        # The rows that are stored already get their tasks here.
        for each in stored:
            identity = (each.record.name, each.record.partition)
            for follower in each.followers:
                self._followers.add(follower)
            if each.mirror is not None and each.mirror.follows:
                self.note_role(identity, each.mirror)
            elif each.mirror is not None or each.followers:
                # Another node may have taken the place of this stream, also the one that it wanted to fence.
                self._followers.begin_asking(identity, each.mirror, nursery)

    def stop(self) -> None:
        # Nothing is reported any more: `begin` would find no nursery.
        self.directory.role_changed = self.directory.pass_on = None
        self.directory.mirror_seen = lambda identity, origin, mirror: None
        self._nursery = None
        for scope in self._scopes.values():
            scope.cancel()

    def stream(self, identity: Identity) -> LocalStream:
        return LocalStream(self.directory, identity)

    def _find_source(self, identity: Identity) -> MirrorRow | None:
        """Returns the row of a stream-partition that follows its source now; None if the source is out of reach."""
        figures = self.figures.find(identity)
        follows = figures is not None and figures.condition is MirrorCondition.FOLLOWING
        return self.stream(identity).row if follows else None

    def states(self, name: str = "") -> list[MirrorState]:
        """Returns the state of each partition that follows or fences. name: of this stream alone; empty: of all."""
        found = []
        for identity, figures in self.figures.items(name):
            stream = self.stream(identity)
            try:
                row, next_index = stream.row, stream.next_index
            except MirrorError:
                # The stream is being made again, or deleted.
                continue
            if row is not None:
                found.append(figures.state(row, next_index))
        return found

    def get_own_address(self) -> str:
        """Returns the `host:port` at which other nodes reach this node. Raises MirrorError if it is not known."""
        if self.own_address is None:
            raise MirrorError(
                "this node does not know how other nodes reach it: set `mirror_address` to its HOST:PORT, and start "
                "it anew"
            )
        return self.own_address

    def note_role(self, identity: Identity, row: MirrorRow | None) -> None:
        """Ends the task of a stream that became a mirror or a primary, or was deleted, and begins the one that it needs
        now."""
        # The old task ends first: it must not store a page under the new role.
        self.end(identity)
        self.figures.set(identity, None)
        name, partition = identity
        # The partition counts as following again below if its row says so.
        following = self._following.setdefault(name, set())
        following.discard(partition)
        # A row that does not follow is that of a primary which still has to fence its former source.
        if row is not None:
            figures = Figures(identity, row, self._now_us)
            self.figures.set(identity, figures)
            stream = self.stream(identity)
            if row.follows:
                follower = Follower(stream, row, figures, self.new_id, self.own_address)
                self.begin(identity, follower.run)
                # The keeper asks the same node.
                self._keep(name, row)
                following.add(partition)
            else:
                fencer = Fencer(stream, row, figures, self.new_id, self.get_own_address)
                self.begin(identity, lambda: self._fence(identity, fencer))
        # The last mirror of the stream is gone, so its keeper has nothing to copy.
        if not following:
            del self._following[name]
            self.end(("keeper", name))
            self.keepers.pop(name, None)

    async def _fence(self, identity: Identity, fencer: Fencer) -> None:
        await fencer.run()
        # The stream may have got another task while the fencer ran.
        if self.figures.find(identity) is fencer.figures:
            self.figures.set(identity, None)
            # The former source is stored as a mirror now.
            if fencer.follower is not None:
                self._followers.add(fencer.follower)

    def _keep(self, name: str, row: MirrorRow) -> None:
        keeper = self.keepers.get(name)
        if keeper is not None and keeper.is_of(row):
            # The keeper asks this source already.
            return
        self.end(("keeper", name))
        keeper = self.keepers[name] = Keeper(
            self.directory, name, row, self.new_id, lambda partition: self.make(name, [partition], row)
        )
        self.begin(("keeper", name), keeper.run)

    async def make(
        self, name: str, partitions: Sequence[int], row: MirrorRow, *, force: bool = False, origin: Origin = HERE
    ) -> None:
        """Makes partitions of this node mirrors; creates those that are missing. Raises MirrorError, StorageError.
        origin: the client whose quota the missing ones count for."""
        addresses = [stream_address(name, partition) for partition in partitions]
        missing = [address for address in addresses if not self._node.is_registered(address)]
        # The streams are counted before they are made, so that two requests together stay within the quota.
        refusal = self.directory.reserve(origin, missing) if missing else None
        if refusal is not None:
            raise MirrorError(refusal)
        try:
            for partition in partitions:
                await self._make(name, partition, row, force)
        finally:
            # What was made counts by itself now; what was not made is free again.
            self.directory.give_back(missing)

    async def _make(self, name: str, partition: int, row: MirrorRow, force: bool) -> None:
        stream = self.stream((name, partition))
        # A stream that exists changes its role; `force` says whether it may have messages of its own.
        if self._node.is_registered(stream.address):
            change = BeMirror(row.source, row.source_name)
            changed = await stream.change(lambda stream_id, done: ChangeRole(stream_id, change, force, done))
            self.note_role(stream.identity, changed.mirror)
            return
        # Two writers would give the same index to two messages.
        if self.directory.find_keeper(name) is not None:
            raise MirrorError(f"a part of this node writes {name!r}, so it cannot be a mirror")
        made = await completed(
            self.directory.storage.submit_write,
            lambda done: MakeMirror(name, partition, self._now_us(), row.source, row.source_name, done),
        )
        assert made.stream is not None, "it was made"
        self.directory.open_stream(made.stream)
        self.note_role(stream.identity, made.stream.mirror)

    def begin(self, key: object, run: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is None:
            return
        scope = self._scopes[key] = trio.CancelScope()
        self._nursery.start_soon(self._run, key, scope, run)

    def end(self, key: object) -> None:
        scope = self._scopes.pop(key, None)
        if scope is not None:
            scope.cancel()

    async def _run(self, key: object, scope: trio.CancelScope, run: Callable[[], Awaitable[None]]) -> None:
        """Runs a task until it ends or is cancelled. A task that fails by a mistake of this program is logged and
        restarted."""
        with scope:
            while True:
                try:
                    await run()
                    break
                except Exception as error:
                    logger.error("mirror_task_failed", task=str(key), exc_info=error)
                    await trio.sleep(RESTART_S)
        # The key may belong to the successor of this task already.
        if self._scopes.get(key) is scope:
            del self._scopes[key]

    def rows(self, name: str) -> dict[Identity, MirrorRow]:
        found = {}
        for identity, _ in self.figures.items(name):
            # A partition that is being made again or deleted has no row.
            with suppress(MirrorError):
                row = self.stream(identity).row
                if row is not None:
                    found[identity] = row
        return found
