"""Promotions: makes mirrors primaries, each stream with all its partitions.

A planned promotion loses nothing:

1. This node checks that the source can become a mirror.
2. It stores that it promotes the stream (`StreamRole.PROMOTING`), and its own address. Without that, a node that is
   killed in the next steps would leave two mirrors of each other.
3. Every partition of the source becomes a mirror of this node, and answers with its end. It confirms no push after
   that.
4. This node copies up to these ends, and copies the positions of consumers once more.
5. Every partition of this node becomes a primary. No position stays beyond its end.

After a start, a promotion goes on at step 3. If step 3 or 4 fails, this node stores that it gives the role back
(`StreamRole.RESTORING`), and the partitions of the source become primaries again.

A forced promotion does step 5 alone. The former source becomes a mirror when it can be reached again
(`stream_node.fleet.mirror.tasks`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import structlog
import trio

from index_service.fences import raise_fences
from index_service.lease_groups import LeaseGroups
from index_service.storage import lower_positions
from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.mirror import (
    Mirror,
    MirrorError,
    Parted,
    RemoteNode,
    SourceGoesOn,
    SourceLost,
    SourceRefused,
)
from stream_node.fleet.mirror.protocol import MirrorCondition, MirrorState
from stream_node.fleet.mirror.stream_copier import StreamCopier
from stream_node.fleet.mirror.tasks import MirrorTasks
from stream_service.mirror_operations import AnyChange, step_promotion, store_role
from stream_service.mirror_rows import list_addresses
from stream_service.mirroring import BeMirror, BePrimary, Role, RoleResponse
from stream_service.role_machine import FOLLOWING, UNDER_PROMOTION, RoleEvent, StreamRole
from stream_service.stored import StoredStream
from stream_storage.contract import Session
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.failpoint import failpoint
from stream_storage.runner import do

IDS_MAX = 64
"""The largest number of operators who wait for one promotion, and of promotions whose end is remembered."""
RETRY_S = 0.5
"""The pause before another try of a step that must succeed in the end."""
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


class Begun(msgspec.Struct):
    """A planned promotion that was begun."""

    before: list[MirrorState]  # the mirrors as they were before it
    ids: set[int]  # the ids of the requests that wait for it
    is_resumed: bool = False  # whether an earlier run of the node has begun it
    is_noted: bool = False  # whether all partitions are stored as being promoted
    takes: bool = False  # whether a partition of this node may be a primary, so that the promotion cannot be undone
    is_known: bool = False  # whether its result can be reported
    # Why the promotion failed. Then the source gets its role back, which may end after `is_known` is set.
    failure: MirrorError | StorageError | ProtocolError | None = None
    has_ended: bool = False  # whether nothing is left to be done


class Promotions:
    """The promotions of the streams of one node. A planned promotion lasts until the missing messages are copied. So an
    operator begins it by a request with an id, and asks again with the same id until it has ended. Its result is
    reported to this id alone: a later request has another id, and begins another promotion.
    own_address, in all methods: the `host:port` at which the source reaches this node."""

    def __init__(self, tasks: MirrorTasks, groups: LeaseGroups) -> None:
        self._tasks = tasks
        self._groups = groups
        self._begun: dict[str, Begun] = {}

    # Requests of an operator.

    async def plan(self, name: str, promotion_id: int) -> tuple[bool, list[MirrorState]]:
        """Begins a planned promotion, or reports its progress. Raises MirrorError, StorageError, ProtocolError.
        Returns whether the stream is promoted, and its states before the promotion; if it is not, the present ones."""
        states = self._tasks.states(name)
        begun = self._begun.get(name)
        # The request asks again about a promotion that runs, or about one whose result this id may still read.
        if begun is not None and (promotion_id in begun.ids or not begun.has_ended):
            if begun.is_known:
                if begun.failure is not None:
                    raise begun.failure
                # The answer is about the present, and not about the moment at which the promotion ended.
                if self.mirrors(name):
                    raise MirrorError(f"{name!r} was promoted, and has become a mirror again since")
                return True, begun.before
            # Another operator may have begun the same promotion.
            if promotion_id not in begun.ids and len(begun.ids) >= IDS_MAX:
                raise MirrorError(f"{IDS_MAX} requests wait for the promotion of {name!r} already")
            begun.ids.add(promotion_id)
            return False, states
        self._get(name)
        self._tasks.get_own_address()
        logger.info("promotion_begun", stream=name, source=states[0].source)
        self._begin(name, Begun(states, {promotion_id}))
        return False, states

    def resume(self, name: str, stored: Sequence[StoredStream]) -> None:
        """Resumes a promotion that an earlier run of the node has begun. stored: the partitions of the stream."""
        logger.info("promotion_resumed", stream=name)
        begun = Begun(self._tasks.states(name), set(), is_resumed=True, takes=has_taken(stored))
        if self.mirrors(name, {StreamRole.RESTORING}):
            begun.failure, begun.is_known = MirrorError(f"an earlier promotion of {name!r} has failed"), True
        self._begin(name, begun)

    async def check_source_ends(self, name: str) -> None:
        """Raises SourceGoesOn if the source answers and cannot become a mirror; MirrorError if there is no mirror."""
        first, reasons = self._get(name)[0], list[str]()

        async def ask(remote: RemoteNode, scope: trio.CancelScope) -> None:
            try:
                now = await first.change_source(remote)
                if not now.can_change:
                    reasons.append(NO_ROLES)
                self._tasks.get_own_address()
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
        if reasons:
            raise SourceGoesOn(
                f"the source of {name!r} answers, and this node cannot make it a mirror: {reasons[0]}. So it would "
                f"take pushes beside this stream. {WAY_WITHOUT_FENCE}"
            )

    async def force(self, name: str) -> list[MirrorState]:
        """Promotes a stream without its source. Returns its earlier states. Raises MirrorError, StorageError."""
        mirrors = self._get(name)
        # A planned promotion that is under way waits for the source.
        self._tasks.end(("promotion", name))
        before = await self._finish(name, mirrors)
        begun = self._begun.get(name)
        if begun is not None:
            if not begun.has_ended and begun.failure is None:
                # Operators who wait for the planned promotion must not read that nothing is lost.
                begun.failure = MirrorError(
                    f"{name!r} takes pushes here now, but another request has promoted it by force meanwhile: messages "
                    "of its source may be missing, see `mirror status`"
                )
            begun.has_ended = begun.is_known = True
        return before

    async def remove(self, name: str) -> None:
        """Makes primaries of the partitions that follow, and fences nobody. Raises MirrorError, StorageError."""
        mirrors = self.mirrors(name)
        if mirrors:
            self._tasks.end(("promotion", name))
            await self._finish(name, mirrors, fences=False)
            self._begun.pop(name, None)

    def is_under_way(self, name: str) -> bool:
        return bool(self.mirrors(name, UNDER_PROMOTION))

    def mirrors(self, name: str, roles: Collection[StreamRole] = FOLLOWING) -> list[Mirror]:
        return [mirror for mirror in self._tasks.mirrors(name) if mirror.has_role(roles)]

    def _get(self, name: str) -> list[Mirror]:
        mirrors = self.mirrors(name)
        if not mirrors:
            raise MirrorError(f"{name!r} is no mirror on this node")
        return mirrors

    # The task of a planned promotion.

    def _begin(self, name: str, begun: Begun) -> None:
        self._begun.pop(name, None)
        self._begun[name] = begun
        # Promotions that have ended are remembered for late questions, up to IDS_MAX of all.
        ended = [each for each, of in self._begun.items() if of.has_ended]
        for each in ended[: max(0, len(self._begun) - IDS_MAX)]:
            del self._begun[each]
        self._tasks.begin(("promotion", name), lambda: self._run(name, begun))

    async def _run(self, name: str, begun: Begun) -> None:
        """Promotes a stream, or gives the role back to its source.
        The promotion, or the return, is repeated until it is done: otherwise no node might take pushes."""
        while True:
            reason = ""
            try:
                if begun.failure is None:
                    await self._promote(name, begun)
                if begun.failure is not None and (restored := self.mirrors(name, UNDER_PROMOTION)):
                    await self._give_back(restored, self._tasks.get_own_address())
                begun.is_known = begun.has_ended = True
                return
            except StorageClosed:
                # The node is stopping. It goes on after its next start.
                return
            except (MirrorError, StorageError, ProtocolError) as error:
                reason = str(error)
            # An operator need not wait until the source is a primary again, which may take long.
            if begun.failure is not None and not begun.is_known:
                begun.failure = MirrorError(
                    f"{begun.failure}; the source may still be a mirror of this node, which goes on trying to make it "
                    f"a primary again: {reason}"
                )
                begun.is_known = True
            for each in self.mirrors(name):
                each.promotion_reason = reason
            await trio.sleep(RETRY_S)

    async def _promote(self, name: str, begun: Begun) -> None:
        """Does the remaining steps of a promotion. Notes a failure, or raises it if the promotion must be repeated."""
        mirrors = self.mirrors(name)
        if begun.takes and not self.mirrors(name, {StreamRole.PROMOTING}):
            # The last step has raised an error, but its change was stored.
            return
        ended = MirrorError(f"another request has ended the promotion of {name!r}")
        if not mirrors:
            # A request has made all partitions primaries while the source could not be reached.
            begun.failure = ended
            return
        own_address = self._tasks.get_own_address()
        try:
            # Steps 1 and 2. A resumed promotion has looked at its source before it was stored.
            if not begun.is_noted:
                # If the source cannot become a mirror, nothing is stored.
                for each in () if begun.is_resumed else mirrors:
                    with each.asking() as remote:
                        await _ask_role(remote, each, own_address)
                failpoint("promotion_begun")
                for each in mirrors:
                    await _step(each, RoleEvent.PROMOTE, own_address)
                    failpoint("promotion_noted")
                begun.is_noted = True
            # A part of the partitions may be primaries already.
            mirrors = self.mirrors(name, {StreamRole.PROMOTING})
            if not mirrors:
                raise ended
            copier = self._tasks.copiers[name]
            # Step 3: from here on the source confirms no push beyond these ends.
            ends = []
            for each in mirrors:
                with each.asking() as remote:
                    await _ask_role(remote, each, own_address)
                    ends.append((await each.change_source(remote, BeMirror(own_address, name))).next_index)
                failpoint("promotion_source_demoted")
            # Step 4: copying ends, since nothing is added any more.
            for each, end in zip(mirrors, ends, strict=True):
                await _wait_copied(each, end)
            await _copy_positions(name, mirrors, copier)
            failpoint("promotion_copied")
            # Step 5.
            await self._finish(name, mirrors, begun)
        except StorageClosed:
            raise
        except (MirrorError, StorageError, ProtocolError) as error:
            # The source may be a mirror already, or some partitions here primaries: then the promotion is repeated.
            if begun.takes or (begun.is_resumed and isinstance(error, SourceLost)):
                raise
            logger.error("promotion_failed", stream=name, reason=str(error))
            begun.failure = error

    async def _give_back(self, mirrors: Sequence[Mirror], own_address: str) -> None:
        """Makes the source's partitions primaries again where this promotion made them mirrors. Safe to repeat."""
        # A node that is killed now must not go on with the promotion: a part of the source takes pushes again.
        for each in mirrors:
            await _step(each, RoleEvent.GIVE_BACK, own_address)
        failpoint("promotion_give_back_noted")
        for each in mirrors:
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

    async def _finish(
        self, name: str, mirrors: Sequence[Mirror], begun: Begun | None = None, *, fences: bool = True
    ) -> list[MirrorState]:
        """Makes the partitions primaries, whatever they lack. Returns their last states as mirrors. begun: a planned
        promotion, under which the partitions must still be. fences: whether the former source becomes a mirror."""
        directory = self._tasks.directory
        # No consumer may save with a lease of the source: this node may lease the same partition to another consumer.
        work = partial(raise_fences, stream_name=name, now_us=directory.now_us())
        await do(directory.storage.submit_write, work)
        self._groups.forget(lambda each: each == name)
        failpoint("promotion_fences_raised")
        if begun is not None:
            begun.takes = True
        before = []
        for each in mirrors:
            before.append(await self._take(each, fences, is_planned=begun is not None))
            failpoint("promotion_partition_taken")
        return before

    async def _take(self, each: Mirror, fences: bool, *, is_planned: bool) -> MirrorState:
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


async def _ask_role(remote: RemoteNode, each: Mirror, own_address: str) -> RoleResponse:
    """Returns the role of a source. Raises MirrorError if it cannot become a mirror, Parted if it lacks messages."""
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
    if now.role is Role.PRIMARY and now.next_index < end:
        # A primary that has lost messages may have confirmed others since, which this node would never copy.
        raise _parted(each)
    return now


async def _is_followed_by(mirror: Mirror, source: RoleResponse, own_address: str) -> bool:
    """Whether the source follows this partition, also at the address that this node had when the promotion began."""
    if source.role is not Role.MIRROR or source.stream_name != mirror.stream.identity[0]:
        return False
    known = await mirror.stream.read(partial(list_addresses, stream_id=mirror.row.stream_id))
    return source.source in (own_address, *known)


def _parted(mirror: Mirror) -> Parted:
    return Parted(
        f"{mirror.row.source_name!r} at {mirror.row.source} does not have all messages of this mirror. Decide which is "
        "right; `mirror promote --force` takes this one as it is"
    )


async def _step(mirror: Mirror, event: RoleEvent, own_address: str) -> None:
    """Stores a step of a promotion. Raises MirrorError, StorageError: NoMirror if the partition is at another step."""
    await mirror.stream.change(partial(step_promotion, event=event, own_address=own_address))


async def _wait_copied(each: Mirror, end: int) -> None:
    """Waits until a partition has everything before this index. Raises SourceLost, Parted if copying stands still."""
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


async def _copy_positions(name: str, mirrors: Sequence[Mirror], copier: StreamCopier) -> None:
    # The copier leaves out a mirror that has not compared its messages since the start of this node. Then consumers
    # would get many messages again.
    deadline_s = trio.current_time() + COMPARE_S_MAX
    while any(each.condition in UNCOMPARED for each in mirrors):
        if trio.current_time() > deadline_s:
            break
        await trio.sleep(COPY_LOOK_S)
    for each in mirrors:
        if each.condition is MirrorCondition.PARTED:
            raise _parted(each)
    with mirrors[0].asking() as remote:
        try:
            await copier.copy_positions(remote)
        except SourceRefused as error:
            # A source can allow its messages to be copied, and not the positions of its consumers.
            logger.warning("mirror_positions_not_copied", stream=name, reason=str(error))


def has_taken(stored: Sequence[StoredStream]) -> bool:
    """Whether a partition of a stream that is being promoted is a primary already.
    Such a primary fences the source of the other partitions, or has that source as its mirror."""
    rows = [each.mirror for each in stored if each.mirror is not None]
    sources = {(row.source, row.source_name) for row in rows if row.follows}
    fenced = {(row.source, row.source_name) for row in rows if not row.follows}
    primaries = [each for each in stored if each.mirror is None or not each.mirror.follows]
    mirrors = {(row.address, row.stream_name) for each in primaries for row in each.followers}
    return bool(sources & (fenced | mirrors))
