"""Followers: writes down where the mirrors of this node's streams are, and asks them after a start
(`stream_mirror.returning`)."""

from __future__ import annotations

from collections.abc import Callable, Container

import structlog
import trio

from access.rights import Right
from ockam.message import Origin
from storage.errors import StorageError
from stream_mirror.errors import MirrorError
from stream_mirror.local_stream import LocalStream, completed
from stream_mirror.making import KeepFollower
from stream_mirror.returning import Answer, Returning
from stream_service.mirror_rows import MirrorRow, Task
from stream_service.mirroring import SOURCE_BYTES_MAX, Follower
from stream_service.names import refusal_of_name
from stream_service.workers.directory import StreamDirectory

Identity = tuple[str, int]

logger = structlog.get_logger(__name__)


class Followers:
    """The mirrors of the streams of a node: the first one that asked for messages, for each partition.

    role_changed: called with the identity and the row of a stream that became a mirror, or still has to fence.
    busy: the partitions that follow or fence; their rows in the table of mirrors are for that.
    """

    def __init__(
        self,
        directory: StreamDirectory,
        new_id: Callable[[], str],
        role_changed: Callable[[Identity, MirrorRow | None], None],
        busy: Container[Identity],
    ) -> None:
        self._directory = directory
        self._new_id = new_id
        self._role_changed = role_changed
        self._busy = busy
        self._known: set[Identity] = set()

    def add(self, identity: Identity) -> None:
        """Notes that the mirror of a partition is written down."""
        self._known.add(identity)

    def forget(self, identity: Identity) -> None:
        """Forgets the mirror of a partition. The next one that asks for messages is written down."""
        self._known.discard(identity)

    def begin_asking(self, identity: Identity, row: MirrorRow, nursery: trio.Nursery) -> None:
        """Makes a partition refuse pushes until its mirror was asked whether it has taken its place."""
        self.add(identity)
        returning = Returning(LocalStream(self._directory, identity), row, self._new_id)
        returning.hold_back()
        nursery.start_soon(self._ask, identity, row, returning)

    def note(self, nursery: trio.Nursery, identity: Identity, origin: Origin, mirror: Follower) -> None:
        """Called when a mirror asks a stream of this node for messages. Writes down where it is, if it is the first."""
        if identity in self._known or identity in self._busy:
            return
        gate = self._directory.node.gate
        is_valid = refusal_of_name(mirror.stream_name) is None and len(mirror.address.encode()) <= SOURCE_BYTES_MAX
        # Who is asked after a start can take the place of the stream, so a right to read is not enough.
        if not is_valid or (gate is not None and not gate.holds(origin, Right.ADMIN, identity[0])):
            return
        self.add(identity)
        nursery.start_soon(self._write, identity, mirror)

    async def _ask(self, identity: Identity, row: MirrorRow, returning: Returning) -> None:
        answer = await returning.run(self._role_changed)
        if answer is Answer.NONE:
            self.forget(identity)
        if answer is not Answer.REPLACED and row.task is Task.FENCE:
            self._role_changed(identity, row)

    async def _write(self, identity: Identity, mirror: Follower) -> None:
        try:
            bounds = LocalStream(self._directory, identity).get_worker().bounds
            row = MirrorRow(bounds.stream_id, Task.ASK, mirror.address, mirror.stream_name)
            await completed(self._directory.storage.submit_write, lambda done: KeepFollower(row, done))
        except (MirrorError, StorageError) as error:
            self.forget(identity)
            logger.warning("mirror_not_written_down", stream=identity[0], reason=str(error))
