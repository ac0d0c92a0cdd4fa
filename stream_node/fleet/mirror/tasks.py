"""MirrorTasks: the tasks of the mirrors of a node, which follow their sources and fence their former ones.
A row of the table of mirrors has the role of its stream (`stream_service.role_machine`): a mirror needs a task that
copies, and a primary that fences needs one that asks its former source. The tasks only carry out what the table says,
so a restart of the node goes on with the same tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

import structlog
import trio

from ockam.actors.address import Address, local, tcp
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import NOTHING, Demand, Right
from ockam.protocol import ProtocolError
from ockam.transport.forwarding import OpenRequests
from stream_node.fleet.mirror.followers import Followers
from stream_node.fleet.mirror.message_copier import MessageCopier
from stream_node.fleet.mirror.mirror import Identity, LocalStream, Mirror, MirrorError, Parted, RemoteNode, SourceLost
from stream_node.fleet.mirror.protocol import AGREEING, MirrorCondition, MirrorState
from stream_node.fleet.mirror.stream_copier import StreamCopier
from stream_service.extensions import PUSH_BATCH, RICH_PUSH
from stream_service.mirror_operations import end_fence, make_mirror, store_role
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import BeMirror, Role
from stream_service.names import stream_address
from stream_service.protocol import PUSH
from stream_service.stored import StoredStream
from stream_service.workers.directory import StreamDirectory
from stream_storage.errors import StorageClosed, StorageError

RESTART_S = 1.0
RETRY_S = 0.5

logger = structlog.get_logger(__name__)


class MirrorTasks:
    """The tasks of the mirrors of one node.
    Invariant: there is one task for each row of the table of mirrors, and one copier for each stream with a mirror."""

    def __init__(self, directory: StreamDirectory, *, passes_pushes: bool = False) -> None:
        self._node = directory.node
        self.directory = directory
        self._nursery: trio.Nursery | None = None
        self.own_address: str | None = None
        self._scopes: dict[object, trio.CancelScope] = {}
        # By stream and partition: a node can have thousands of streams with as many partitions.
        self._mirrors: dict[str, dict[int, Mirror]] = {}
        # The number of partitions of each stream that follow a source. While there is one, the stream has a copier.
        self._following: Counter[str] = Counter()
        self._followers = Followers(directory, self.note_role, lambda: self.own_address)
        self.copiers: dict[str, StreamCopier] = {}
        self._passing = Passing(directory.node, self._find_source) if passes_pushes else None

    def start(self, nursery: trio.Nursery, stored: Iterable[StoredStream], own_address: str | None) -> None:
        """Begins to follow and to fence as the table of mirrors says. nursery: runs the tasks.
        own_address: the `host:port` at which other nodes reach this node; None if it is not known."""
        self._nursery, self.own_address = nursery, own_address
        # From here on the directory reports each change of a role, so no row is without its task.
        self.directory.role_changed = self.note_role
        # Pushes to a mirror go to its source through a worker of this node, which gets the answers.
        if (passing := self._passing) is not None:
            self._node.register([local("MP_" + self.directory.new_id())], lambda: passing)
            self.directory.pass_on = passing.pass_on
        self.directory.mirror_seen = partial(self._followers.note, nursery)
        # The rows that are stored already get their tasks here.
        for each in stored:
            identity = (each.record.name, each.record.partition)
            for follower in each.followers:
                self._followers.add(identity, follower)
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

    @property
    def has_mirrors(self) -> bool:
        return bool(self._mirrors)

    def mirrors(self, name: str = "") -> list[Mirror]:
        """Returns the partitions that follow or fence, in order. name: the stream; empty: all streams."""
        names = [name] if name else sorted(self._mirrors)
        return [mirror for each in names for _, mirror in sorted(self._mirrors.get(each, {}).items())]

    def states(self, name: str = "") -> list[MirrorState]:
        return [state for mirror in self.mirrors(name) if (state := mirror.find_state()) is not None]

    def _find(self, identity: Identity) -> Mirror | None:
        return self._mirrors.get(identity[0], {}).get(identity[1])

    def _find_source(self, identity: Identity) -> MirrorRow | None:
        """Returns the row of a stream-partition that follows its source now; None if the source is out of reach."""
        mirror = self._find(identity)
        if mirror is None or mirror.condition is not MirrorCondition.FOLLOWING:
            return None
        return mirror.stream.bounds.mirror

    def _agrees(self, identity: Identity, connection: Address | None) -> bool:
        mirror = self._find(identity)
        if mirror is None or mirror.condition not in AGREEING:
            return False
        return connection is None or connection == mirror.connection

    def get_own_address(self) -> str:
        """Returns the `host:port` at which other nodes reach this node. Raises MirrorError if it is not known."""
        if self.own_address is None:
            raise MirrorError(
                "this node does not know how other nodes reach it: set `mirror_address` to its HOST:PORT, and start "
                "it anew"
            )
        return self.own_address

    def note_role(self, identity: Identity, row: MirrorRow | None) -> None:
        """Ends the task of a stream whose role has changed, or that was deleted, and begins the one that it needs now.
        row: its row in the table of mirrors; None if it neither follows nor fences a source."""
        # The old task ends first: it must not store a page under the new role.
        self.end(identity)
        self._forget(identity)
        name, partition = identity
        if row is not None:
            mirror = Mirror(self.stream(identity), row)
            self._mirrors.setdefault(name, {})[partition] = mirror
            if row.follows:
                self._following[name] += 1
                self.begin(identity, MessageCopier(mirror, self.own_address).run)
                self._copy_stream(name, row)
            else:
                self.begin(identity, partial(self._fence, mirror))
        elif not self._node.is_registered(stream_address(*identity)):
            self._followers.forget(identity)
        # The last mirror of the stream is gone, so its copier has nothing to do.
        if not self._following[name]:
            del self._following[name]
            self.end(("copier", name))
            self.copiers.pop(name, None)

    def _forget(self, identity: Identity) -> None:
        name, partition = identity
        mirror = self._mirrors.get(name, {}).pop(partition, None)
        if mirror is not None:
            if mirror.row.follows:
                self._following[name] -= 1
            if not self._mirrors[name]:
                del self._mirrors[name]

    async def _fence(self, mirror: Mirror) -> None:
        """Makes the former source of a primary a mirror of it: tries until it is one, or until the task is cancelled.
        Without that, a primary that comes back would take pushes, beside the mirror that has taken its place."""
        while True:
            try:
                with mirror.asking() as remote:
                    await self._fence_once(mirror, remote)
                end = partial(end_fence, fenced_us=self.directory.clock.wall_us())
                follower = (await mirror.stream.change(end)).result
                break
            except StorageClosed:
                # The node is stopping.
                follower = None
                break
            except (SourceLost, StorageError) as error:
                mirror.report(MirrorCondition.FENCING, str(error))
            except (MirrorError, ProtocolError) as error:
                # The source answers, so it may take pushes. An operator has to do something about it.
                mirror.report(MirrorCondition.UNFENCED, str(error))
            await trio.sleep(RETRY_S)
        # The stream may have got another task meanwhile.
        if self._find(mirror.stream.identity) is mirror:
            self._forget(mirror.stream.identity)
            # The former source is stored as a mirror now, if the stream still fenced it.
            if follower is not None:
                self._followers.add(mirror.stream.identity, follower)

    async def _fence_once(self, mirror: Mirror, remote: RemoteNode) -> None:
        (name, partition), row = mirror.stream.identity, mirror.row
        now = await mirror.change_source(remote)
        address, history = self.get_own_address(), await mirror.stream.get_history()
        if now.role is Role.MIRROR and (now.source, now.stream_name) == (address, name):
            # The former source is a mirror already, by a planned promotion, which moves no messages aside. If a forced
            # promotion ended the planned one, the former source can have messages that this node lacks.
            ends = [after.first_index for entry, after in pairwise(history) if entry.entry_id == now.entry_id]
            if not ends or now.next_index <= ends[0]:
                return
        elif now.entry_id not in {entry.entry_id for entry in history}:
            # Both streams have gone on since: an operator decides which one is right.
            raise Parted(
                f"{row.source_name!r} at {row.source} was promoted or restored since; "
                "make one of both a mirror by `mirror add --force`"
            )
        await mirror.change_source(remote, BeMirror(address, name), force=True)
        logger.warning("source_fenced", stream=name, partition=partition, source=row.source)

    def _copy_stream(self, name: str, row: MirrorRow) -> None:
        copier = self.copiers.get(name)
        if copier is not None and copier.is_of(row):
            # The copier of the stream asks this source already.
            return
        self.end(("copier", name))
        copier = self.copiers[name] = StreamCopier(
            self.directory,
            name,
            row,
            follow=lambda partition: self.make(name, [partition], row),
            agrees=lambda partition, connection: self._agrees((name, partition), connection),
        )
        self.begin(("copier", name), copier.run)

    async def make(
        self, name: str, partitions: Sequence[int], row: MirrorRow, *, force: bool = False, origin: Origin = HERE
    ) -> None:
        """Makes partitions of this node mirrors; creates those that are missing. Raises MirrorError, StorageError.
        origin: the client whose quota the missing ones count for."""
        addresses = [stream_address(name, partition) for partition in partitions]
        missing = [address for address in addresses if not self._node.is_registered(address)]
        # The streams are counted before they are made, so that two requests together stay within the quota.
        reserved = self.directory.reserve(origin, missing) if missing else None
        if isinstance(reserved, str):
            raise MirrorError(reserved)
        try:
            for partition in partitions:
                await self._make(name, partition, row, force)
        finally:
            # The streams that were made count by themselves now; the places of the others are free again.
            if reserved is not None:
                failed = sum(not self._node.is_registered(address) for address in missing)
                self.directory.give_back(reserved, failed)

    async def _make(self, name: str, partition: int, row: MirrorRow, force: bool) -> None:
        stream = self.stream((name, partition))
        # A stream that exists changes its role; `force` says whether it may have messages of its own.
        change = BeMirror(row.source, row.source_name)
        if self._node.is_registered(stream.address):
            changed = await stream.change(partial(store_role, to=change, force=force))
            self.note_role(stream.identity, changed.mirror)
            return
        # Two writers would give the same index to two messages.
        if self.directory.find_keeper(name) is not None:
            raise MirrorError(f"a part of this node writes {name!r}, so it cannot be a mirror")
        made = await stream.write(
            partial(make_mirror, name=name, partition=partition, created_us=self.directory.now_us(), source=change)
        )
        self.directory.open_stream(made)
        self.note_role(stream.identity, made.mirror)

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
        """Runs a task until it ends or is cancelled. Logs and restarts it if it fails by a mistake of this program."""
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


TAGS = (PUSH.tag, PUSH_BATCH.tag, RICH_PUSH.tag)
BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""The backlog of a source above which the mirror refuses pushes, as it does without `mirror_passes_pushes`."""


class Passing(Worker):
    """Passes the pushes that a mirror gets on to its source, under the name of this node, and the answers back.
    The source answers by the return route of the push, in which this worker stands before the route of the publisher.
    So nothing is remembered about a push. If the source does not answer it, its publisher sends it again."""

    def __init__(self, node: Node, find_source: Callable[[Identity], MirrorRow | None]) -> None:
        self._node = node
        self._find_source = find_source
        # By the `host:port` of a source: the senders of the pushes that went there, and the connection of its answers.
        self._senders: dict[str, OpenRequests] = {}
        self._ways: dict[str, Origin] = {}

    def pass_on(self, identity: Identity, run: Sequence[Message]) -> Sequence[Message]:
        """Passes those pushes on that may go to the source of a mirror. Returns the other messages, in order."""
        row = self._find_source(identity)
        if row is None:
            return run
        # A source that reads slower than the publishers push must not fill the memory of this node.
        way = self._ways.get(row.source)
        if way is not None and way.is_behind(BACKLOG_BYTES_MAX):
            return run
        passed: list[Message] = []
        kept: list[Message] = []
        for message in run:
            (passed if self._may_pass(message, identity[0], row.source_name) else kept).append(message)
        # The sender is remembered before its push leaves, since only senders get answers.
        self._senders.setdefault(row.source, OpenRequests()).note(passed)
        onward = (tcp(row.source), stream_address(row.source_name, identity[1]))
        back = (self.context.address, stream_address(*identity))
        self.context.send_run([Message(onward, (*back, *each.return_route), each.payload) for each in passed])
        return kept

    def demand(self, message: Message) -> Demand | None:
        """Returns NOTHING, so no right is needed, for messages of a source that got passed-on pushes; else None."""
        return NOTHING if message.origin.peer in self._senders else None

    def handle(self, message: Message) -> None:
        source, route = message.origin.peer, message.onward_route[1:]
        # A source may answer only those whose pushes it has got. Otherwise it could send anything to any worker here.
        if len(route) < 2 or source not in self._senders or not self._senders[source].is_sender(route[1]):
            return
        self._ways[source] = message.origin
        self.context.send(Message(route[1:], (route[0],), message.payload))

    def _may_pass(self, message: Message, name: str, source_name: str) -> bool:
        """Whether a message is a push that has not passed this node before and whose sender may push to the source."""
        gate = self._node.gate
        return (
            message.payload.startswith(TAGS)
            and bool(message.return_route)
            and self.context.address not in message.return_route
            and (gate is None or name == source_name or gate.holds(message.origin, Right.WRITE, source_name))
            and (gate is None or not _has_number(message.payload))
        )


def _has_number(payload: bytes) -> bool:
    """Whether a push has a sequence number.
    Such a push cannot be passed on: its publisher id belongs to one identity, and the source sees this node's."""
    try:
        return payload.startswith(RICH_PUSH.tag) and RICH_PUSH.decode_request(payload).sequence is not None
    except ProtocolError:
        return False
