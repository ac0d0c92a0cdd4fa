"""Promotion: makes the mirror of a stream, with all its partitions, a primary.

A planned promotion loses nothing:

1. This node checks that the source can become a mirror.
2. It stores that it promotes the stream (`StreamRole.PROMOTING`), and its own address. Without that, a node that is
   killed in the next steps would leave two mirrors of each other.
3. Every partition of the source becomes a mirror of this node, and answers with its end. It confirms no push after
   that.
4. This node copies up to these ends, and copies the positions of consumers once more.
5. Every partition of this node becomes a primary. No position stays beyond its end.

After a start, `stream_node.fleet.mirror.promotions` goes on at step 3. If step 3 or 4 fails, this node stores that it
gives the role back (`StreamRole.RESTORING`), and the partitions of the source become primaries again.

A forced promotion does step 5 alone. The former source becomes a mirror when it can be reached again
(`stream_node.fleet.mirror.tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog
import trio

from index_service.fences import raise_fences
from index_service.lease_groups import LeaseGroups
from index_service.storage import lower_positions
from stream_node.fleet.mirror.asking import MirrorError, Parted, RemoteNode, SourceLost, SourceRefused
from stream_node.fleet.mirror.mirror import Mirror
from stream_node.fleet.mirror.protocol import MirrorCondition, MirrorState
from stream_node.fleet.mirror.tasks import MirrorTasks
from stream_service.mirror_operations import AnyChange, step_promotion, store_role
from stream_service.mirror_rows import list_addresses
from stream_service.mirroring import BeMirror, BePrimary, Role, RoleResponse
from stream_service.role_machine import RoleEvent
from stream_storage.contract import Session
from stream_storage.failpoint import failpoint
from stream_storage.runner import do

COPY_LOOK_S = 0.01
ASK_S_MAX = 2.0
"""The longest time for which a forced promotion waits for an answer of the source."""
COMPARE_S_MAX = 5.0
"""The longest wait of a planned promotion until its mirrors have compared their messages with those of the source."""
UNCOMPARED = (MirrorCondition.STARTING, MirrorCondition.UNREACHABLE, MirrorCondition.FAILED)
COPY_S_MAX = 60.0
"""The longest time without a copied message during a promotion."""

NO_ROLES = (
    "it is a member of a cluster, or has several workers, or gives this node no right to make it call here "
    "(docs/scale.md, Rights)"
)
WAY_WITHOUT_FENCE = "Stop its publishers, wait until nothing is missing here, and promote with --force --source-goes-on"

logger = structlog.get_logger(__name__)


class Promotion:
    """The promotion of one stream, all of whose partitions follow the same node.
    `takes`: whether a partition of this node may be a primary already, so that the promotion cannot be undone.
    own_address, in all methods: the `host:port` at which the source reaches this node."""

    def __init__(self, name: str, mirrors: Sequence[Mirror], tasks: MirrorTasks, groups: LeaseGroups) -> None:
        self._name = name
        self._mirrors = mirrors
        self._tasks = tasks
        self._copier = tasks.copiers[name]
        self._groups = groups
        self.takes = False

    async def begin(self, own_address: str, *, looks: bool) -> None:
        """Stores that the stream is promoted. Raises MirrorError, StorageError.
        looks: whether the source is asked before, so that nothing is stored if it cannot become a mirror."""
        if looks:
            for each in self._mirrors:
                with each.asking() as remote:
                    await self._ask_role(remote, each, own_address)
        failpoint("promotion_begun")
        for each in self._mirrors:
            await _step(each, RoleEvent.PROMOTE, own_address)
            failpoint("promotion_noted")

    async def run(self, own_address: str) -> None:
        """Does the rest of a planned promotion that is stored. Safe to repeat. Raises MirrorError, StorageError."""
        # Step 3: from here on the source confirms no push beyond these ends.
        ends = [await self._demote(each, own_address) for each in self._mirrors]
        # Step 4: copying ends, since nothing is added any more.
        for each, end in zip(self._mirrors, ends, strict=True):
            await self._wait_copied(each, end)
        await self._copy_positions()
        failpoint("promotion_copied")
        # Step 5.
        await self.finish(is_planned=True)

    async def give_back(self, own_address: str) -> None:
        """Makes the source's partitions primaries again where this promotion made them mirrors. Safe to repeat.
        Raises MirrorError, StorageError."""
        # A node that is killed now must not go on with the promotion: a part of the source takes pushes again.
        for each in self._mirrors:
            await _step(each, RoleEvent.GIVE_BACK, own_address)
        failpoint("promotion_give_back_noted")
        for each in self._mirrors:
            name, partition = each.stream.identity
            # Only a partition that follows this node is given back: an operator may have done something else with it
            # meanwhile.
            with each.asking() as remote:
                now = await each.change_source(remote)
                if await _is_followed_by(each, now, own_address):
                    await each.change_source(remote, BePrimary(False), force=True)
                    logger.warning("source_restored", stream=name, partition=partition, source=each.row.source)
            failpoint("promotion_source_restored")
            await _step(each, RoleEvent.GAVE_BACK, own_address)

    async def finish(self, *, fences: bool = True, is_planned: bool = False) -> list[MirrorState]:
        """Makes the partitions primaries, whatever they lack. Returns their last states as mirrors.
        Raises MirrorError, StorageError. fences: whether the former source becomes a mirror. is_planned: whether the
        partitions must still be under promotion."""
        directory = self._mirrors[0].stream.directory
        # No consumer may save with a lease of the source: this node may lease the same partition to another consumer.
        work = partial(raise_fences, stream_name=self._name, now_us=directory.now_us())
        await do(directory.storage.submit_write, work)
        self._groups.forget(lambda name: name == self._name)
        failpoint("promotion_fences_raised")
        self.takes = True
        before = []
        for each in self._mirrors:
            before.append(await self._take(each, fences, is_planned))
            failpoint("promotion_partition_taken")
        return before

    async def find_why_source_goes_on(self, own_address: Callable[[], str]) -> str | None:
        """Returns why the source would go on taking pushes; None if it does not answer, or can become a mirror."""
        first, reasons = self._mirrors[0], list[str]()

        async def ask(remote: RemoteNode, scope: trio.CancelScope) -> None:
            try:
                now = await first.change_source(remote)
                if not now.can_change:
                    reasons.append(NO_ROLES)
                own_address()
            except SourceLost:
                pass
            except MirrorError as error:
                reasons.append(str(error))
            scope.cancel()

        # A source whose stored address is not valid does not answer.
        with suppress(SourceLost), first.asking() as remote:
            with trio.move_on_after(ASK_S_MAX):
                async with trio.open_nursery() as nursery:
                    # The question ends with the first of three: an answer, ASK_S_MAX, or a mirror that finds the
                    # source unreachable.
                    nursery.start_soon(ask, remote, nursery.cancel_scope)
                    # In an emergency every second counts: a mirror that has noticed that its source is lost need not
                    # wait for an answer.
                    while True:
                        if first.condition is MirrorCondition.UNREACHABLE:
                            nursery.cancel_scope.cancel()
                        await trio.sleep(COPY_LOOK_S)
        return reasons[0] if reasons else None

    async def _take(self, each: Mirror, fences: bool, is_planned: bool) -> MirrorState:
        """Makes a partition of this node a primary. Returns its last state as a mirror."""
        name, partition = each.stream.identity
        before: list[MirrorState] = []
        now_us = each.stream.directory.now_us()

        def look() -> None:
            # The operator gets the state that the new primary stores: nothing is copied any more from here on.
            before[:] = [each.state(each.stream.bounds.mirror or each.row)]

        def take(session: Session, change: AnyChange) -> None:
            heard = (before[0].source_next_index, before[0].heard_us)
            store_role(session, change, BePrimary(fences), force=True, is_planned=is_planned, heard=heard)
            # Copied positions can be beyond the messages that were copied. New messages get the indexes in between.
            end = session.log.get_stream(change.stream_id).next_index
            lower_positions(session, name, partition, end, now_us, renews_all=not is_planned)

        operation = await each.stream.change(take, look)
        at = each.stream.bounds.next_index
        logger.warning("role_changed", stream=name, partition=partition, role="primary", at=at)
        self._tasks.note_role(each.stream.identity, operation.mirror)
        return before[0]

    async def _ask_role(self, remote: RemoteNode, each: Mirror, own_address: str) -> RoleResponse:
        """Returns the role of a partition of the source. Raises MirrorError if it cannot become a mirror, or Parted if
        it lacks messages of this node."""
        row, end = each.row, each.stream.bounds.next_index
        now = await each.change_source(remote)
        if now.role is Role.MIRROR and not await _is_followed_by(each, now, own_address):
            raise MirrorError(
                f"{row.source_name!r} at {row.source} is itself a mirror, of {now.stream_name!r} at {now.source}: "
                "promote it there, or promote this one with --force"
            )
        if not now.can_change:
            raise MirrorError(
                f"{row.source_name!r} at {row.source} cannot become a mirror: {NO_ROLES}. {WAY_WITHOUT_FENCE}"
            )
        # A primary that has lost messages may have confirmed others since, which this node would never copy.
        _check_agrees(each, parts=now.role is Role.PRIMARY and now.next_index < end)
        return now

    async def _demote(self, each: Mirror, own_address: str) -> int:
        """Makes a partition of the source a mirror of this node. Returns its end."""
        with each.asking() as remote:
            await self._ask_role(remote, each, own_address)
            answer = await each.change_source(remote, BeMirror(own_address, each.stream.identity[0]))
        failpoint("promotion_source_demoted")
        return answer.next_index

    async def _wait_copied(self, each: Mirror, end: int) -> None:
        """Waits until a partition has everything before this index. Raises SourceLost or Parted when copying stands
        still."""
        copied, deadline_s = -1, 0.0
        while (at := each.stream.bounds.next_index) < end:
            # Each copied message gives the copy another COPY_S_MAX.
            if at != copied:
                copied, deadline_s = at, trio.current_time() + COPY_S_MAX
            condition = each.condition
            if condition in (MirrorCondition.UNREACHABLE, MirrorCondition.PARTED) or trio.current_time() > deadline_s:
                failure = Parted if condition is MirrorCondition.PARTED else SourceLost
                raise failure(
                    f"{end - at} messages of partition {each.stream.identity[1]} could not be "
                    f"copied: {each.reason or 'nothing comes from the source'}"
                )
            await trio.sleep(COPY_LOOK_S)

    async def _copy_positions(self) -> None:
        first = self._mirrors[0]
        # The copier leaves out a mirror that has not compared its messages since the start of this node. Then consumers
        # would get many messages again.
        deadline_s = trio.current_time() + COMPARE_S_MAX
        while any(each.condition in UNCOMPARED for each in self._mirrors):
            if trio.current_time() > deadline_s:
                break
            await trio.sleep(COPY_LOOK_S)
        for each in self._mirrors:
            _check_agrees(each, parts=each.condition is MirrorCondition.PARTED)
        with first.asking() as remote:
            try:
                await self._copier.copy_positions(remote)
            except SourceRefused as error:
                # A source can allow its messages to be copied, and not the positions of its consumers.
                logger.warning("mirror_positions_not_copied", stream=self._name, reason=str(error))


def _check_agrees(mirror: Mirror, *, parts: bool) -> None:
    """Raises Parted if the mirror parts from its source: it is longer, or has found other messages there."""
    if parts:
        row = mirror.row
        raise Parted(
            f"{row.source_name!r} at {row.source} does not have all messages of this mirror. Decide which is right; "
            "`mirror promote --force` takes this one as it is"
        )


async def _step(mirror: Mirror, event: RoleEvent, own_address: str) -> None:
    """Stores a step of a promotion. Raises MirrorError, StorageError: NoMirror if the partition is at another step."""
    await mirror.stream.change(partial(step_promotion, event=event, own_address=own_address))


async def _is_followed_by(mirror: Mirror, source: RoleResponse, own_address: str) -> bool:
    """Whether the source is a mirror of this partition. Raises StorageError.
    The source may follow the address that this node had when it began the promotion."""
    if source.role is not Role.MIRROR or source.stream_name != mirror.stream.identity[0]:
        return False
    known = await mirror.stream.read(partial(list_addresses, stream_id=mirror.row.stream_id))
    return source.source in (own_address, *known)
