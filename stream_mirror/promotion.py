"""Promotion: makes the mirror of a stream, with all its partitions, a primary.

A planned promotion loses nothing:

1. Every partition of the source becomes a mirror of this node. Its answer tells its end: it confirms no push beyond.
2. This node copies up to these ends, and copies the positions of consumers once more.
3. Every partition of this node becomes a primary.

If one of the first two steps fails, the partitions of the source become primaries again. A forced promotion does
the third step alone. The former source then becomes a mirror when it can be reached again (`stream_mirror.fencer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from index_service.fences import RaiseFences
from index_service.lease_groups import LeaseGroups
from storage.errors import StorageError
from stream_mirror.asking import asking
from stream_mirror.errors import MirrorError, SourceLost, SourceRefused
from stream_mirror.fencer import change_role
from stream_mirror.figures import Figures
from stream_mirror.keeper import Keeper
from stream_mirror.local_stream import LocalStream, completed
from stream_mirror.protocol import MirrorCondition
from stream_service.mirror_operations import ChangeRole
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import BeMirror, BePrimary, Role

COPY_LOOK_S = 0.01
"""The interval between two checks whether the last messages are copied, in seconds."""
COPY_S_MAX = 60.0
"""The longest time without a copied message during a promotion, in seconds."""

logger = structlog.get_logger(__name__)


class Following:
    """One partition that follows a source."""

    def __init__(self, stream: LocalStream, row: MirrorRow, figures: Figures) -> None:
        self.stream = stream
        self.row = row
        self.figures = figures


class Promotion:
    """The promotion of one stream. All its partitions follow the same node.

    following: the partitions that follow.
    """

    def __init__(
        self,
        name: str,
        following: Sequence[Following],
        keeper: Keeper,
        groups: LeaseGroups,
        new_id: Callable[[], str],
        role_changed: Callable[[tuple[str, int], MirrorRow | None], None],
    ) -> None:
        self._name = name
        self._following = following
        self._keeper = keeper
        self._groups = groups
        self._new_id = new_id
        self._role_changed = role_changed

    async def run(self, own_address: str) -> None:
        """A planned promotion. Raises MirrorError, StorageError.

        own_address: the `host:port` at which the source reaches this node.
        """
        demoted: list[Following] = []
        try:
            ends = []
            for each in self._following:
                demoted.append(each)
                ends.append(await self._demote(each, own_address))
            for each, end in zip(self._following, ends, strict=True):
                await self._wait_copied(each, end)
            await self._copy_positions()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._restore(demoted, own_address)
            raise
        await self.finish()

    async def finish(self, *, fences: bool = True) -> None:
        """Makes the partitions primaries, whatever they lack. Raises MirrorError, StorageError.

        fences: whether the former source becomes a mirror.
        """
        directory = self._following[0].stream.directory
        # No member may save with a lease that the source has given: this node may give the same partition anew.
        await completed(directory.storage.submit_write, lambda done: RaiseFences(self._name, directory.now_us(), done))
        self._groups.forget(lambda name: name == self._name)
        for each in self._following:
            operation = await each.stream.change(
                lambda stream_id, done: ChangeRole(stream_id, BePrimary(fences), True, done)
            )
            name, partition = each.stream.identity
            logger.warning("role_changed", stream=name, partition=partition, role="primary", at=each.stream.next_index)
            self._role_changed(each.stream.identity, operation.mirror)

    async def _demote(self, each: Following, own_address: str) -> int:
        """Makes a partition of the source a mirror of this node. Returns its end."""
        name, partition = each.stream.identity
        node, row = each.stream.directory.node, each.row
        with asking(node, row.source, self._new_id) as asker:
            now = await change_role(asker, row.source_name, partition, None, force=False)
            if now.role is Role.MIRROR and (now.source, now.stream_name) != (own_address, name):
                raise MirrorError(
                    f"{row.source_name!r} at {row.source} is itself a mirror, of {now.stream_name!r} at {now.source}: "
                    "promote it there, or promote this one with --force"
                )
            answer = await change_role(asker, row.source_name, partition, BeMirror(own_address, name), force=False)
            return answer.next_index

    async def _wait_copied(self, each: Following, end: int) -> None:
        """Waits until a partition has everything up to this index."""
        copied, deadline_s = -1, 0.0
        while each.stream.next_index < end:
            if each.stream.next_index != copied:
                copied, deadline_s = each.stream.next_index, trio.current_time() + COPY_S_MAX
            condition = each.figures.condition
            if condition in (MirrorCondition.UNREACHABLE, MirrorCondition.PARTED) or trio.current_time() > deadline_s:
                raise SourceLost(
                    f"{end - each.stream.next_index} messages of partition {each.stream.identity[1]} could not be "
                    f"copied: {each.figures.reason or 'nothing comes from the source'}"
                )
            await trio.sleep(COPY_LOOK_S)

    async def _copy_positions(self) -> None:
        first = self._following[0]
        with asking(first.stream.directory.node, first.row.source, self._new_id) as asker:
            try:
                await self._keeper.copy_positions(asker)
            except SourceRefused as error:
                # A source can allow its messages to be copied, and not the positions of its consumers.
                logger.warning("mirror_positions_not_copied", stream=self._name, reason=str(error))

    async def _restore(self, demoted: Sequence[Following], own_address: str) -> None:
        """Makes partitions of the source primaries again, because the promotion has failed."""
        for each in demoted:
            name, partition = each.stream.identity
            try:
                with asking(each.stream.directory.node, each.row.source, self._new_id) as asker:
                    source_name = each.row.source_name
                    now = await change_role(asker, source_name, partition, None, force=False)
                    if now.role is Role.MIRROR and (now.source, now.stream_name) == (own_address, name):
                        await change_role(asker, source_name, partition, BePrimary(False), force=True)
            except (MirrorError, StorageError) as error:
                logger.error("source_not_restored", stream=name, partition=partition, reason=str(error))
