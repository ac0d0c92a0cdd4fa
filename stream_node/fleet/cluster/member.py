"""ClusterMember: one node as a member of its cluster. It beats, takes shards, gives them away, and leaves.

`PlanMachine` decides what to do, and `Router` sends the messages. This module reads and writes the tables, and starts
and stops what serves a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol, TypeVar

import structlog
import trio

from ockam.actors.message import Message
from stream_node.fleet.cluster.hand_overs import HandOvers
from stream_node.fleet.cluster.plan_machine import Plan, PlanMachine
from stream_node.fleet.cluster.router import Router
from stream_node.fleet.cluster.statistics import MemberStatistics, peer_statistics
from stream_node.fleet.cluster.tables import Beat, ClusterOperation, Join, Leave, MoveShards, SetLeaving
from stream_node.fleet.cluster.view import View
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.runner import Runner

BEAT_S = 1.0
"""The time between two beats of a member."""
READ_S_MIN = 0.02
"""The shortest time between two reads of the tables."""
QUIET_S = 0.5
"""A member that leaves goes when it has sent no message to other members for this long."""
RETRY_S = 0.5

logger = structlog.get_logger(__name__)

T = TypeVar("T", bound=ClusterOperation)


class ShardServices(Protocol):
    """What serves the streams of a shard on this node."""

    def open_shards(self, shards: Sequence[int], on_done: Callable[[StorageError | None], None]) -> None:
        """Reads the streams of these shards and starts their workers. Then calls `on_done` at once, so that no message
        can come before."""
        ...

    def close_shards(self, shards: Sequence[int]) -> dict[int, list[Message]]:
        """Stops the workers of shards. Returns the messages that they have not served, by shard, in order for each
        worker."""
        ...


class ClusterMember:
    """The membership of one node, from `run` to `leave`.

    router: sends messages to the other members.
    """

    def __init__(
        self,
        router: Router,
        storage: Runner,
        services: ShardServices,
        *,
        token: str,
        address: str,
        now_us: Callable[[], int],
        beat_s: float = BEAT_S,
    ) -> None:
        """token: the text that stands for this process in the database. address: where other members reach it.

        now_us: returns the wall clock in microseconds since 1970."""
        self.router = router
        self._storage = storage
        self._services = services
        self._token = token
        self._address = address
        self._beat_s = beat_s
        self._now_us = now_us
        self._hand_overs = HandOvers()
        self._machine = PlanMachine(router.name, trio.current_time())
        self._wake = trio.Event()
        self._on_read: list[Callable[[], None]] = []
        self._busy = False
        self._leaves = False
        self._left = trio.Event()
        self._taken = self._given = self._fenced = self._beats_failed = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Joins, and beats until `leave` has ended. Raises StorageError if another process has replaced this one.

        Reports to `task_status` when the node has joined."""
        joined = await self._join()
        self._note(joined)
        # An earlier process of this name may have left shards behind. They need no new owner.
        mine = joined.owned_by(self.router.name)
        await self._open(mine)
        task_status.started()
        while not self._left.is_set():
            # A read that has begun before does not count for those who ask.
            asked, self._on_read = self._on_read, []
            try:
                beat = await self._do(Beat, self.router.name, self._token)
            except StorageError as error:
                if _is_final(error):
                    raise
                self._beats_failed += 1
                logger.warning("cluster_beat_failed", reason=str(error))
            else:
                self._note(beat.view)
                await self._follow(self._machine.plan(beat.view))
            for on_read in asked:
                on_read()
            with trio.move_on_after(self._beat_s):
                await trio.sleep(READ_S_MIN)
                await self._wake.wait()
            self._wake = trio.Event()

    async def leave(self, deadline_s: float) -> None:
        """Gives all shards away, and ends the membership. deadline_s: a time on trio's clock."""
        self._leaves = True
        self.router.passed_on.clear()
        with trio.move_on_at(deadline_s):
            await self._retried(SetLeaving, self.router.name, True)
            while self.router.served and self._has_successor():
                self.refresh()
                await self._after_read()
            # What was sent on must come back before the connections end.
            if self._has_successor():
                await self._all_seen()
                await self._quiet()
        self._left.set()
        with trio.move_on_at(deadline_s + self._beat_s):
            await self._retried(Leave, self.router.name, self._token)
            logger.info("cluster_left", member=self.router.name)

    def refresh(self) -> None:
        """Makes the member read the tables soon."""
        self._wake.set()

    def read(self, on_read: Callable[[], None], *, soon: bool) -> None:
        """Calls `on_read` after the tables were read again, or could not be read. soon: whether they are read at once,
        and not with the next beat."""
        self._on_read.append(on_read)
        if soon:
            self._wake.set()

    async def _after_read(self) -> None:
        """Returns when the tables were read, and the plan that follows was carried out."""
        done = trio.Event()
        self._on_read.append(done.set)
        await done.wait()

    async def _all_seen(self) -> None:
        """Returns when every other member that lives has read the tables as they are now, so that it sends nothing more
        to this one. A beat reads them, and the next one says that this is done."""
        before = dict(self.router.view.members)
        while any(
            self.lives(name) and member.beats < before[name].beats + 2
            for name, member in self.router.view.members.items()
            if name != self.router.name and name in before and before[name].token == member.token
        ):
            await trio.sleep(self._beat_s / 4)
            await self._after_read()

    async def _quiet(self) -> None:
        """Returns when no message was sent to other members for QUIET_S, and what was sent on for them is answered."""
        sent = -1
        for _ in count():
            before, sent = sent, sum(self.router.statistics().sent.values())
            if sent == before and not self.router.passed_on:
                return
            await trio.sleep(QUIET_S)

    def lives(self, name: str) -> bool:
        """Whether a member lives, as far as this one knows."""
        return self._machine.lives(self.router.view, name)

    def set_leaving(self, name: str, leaves: bool, on_done: Callable[[StorageError | None], None]) -> None:
        """Makes a member give its shards away, or take shards again."""

        def done(operation: SetLeaving) -> None:
            if operation.error is None:
                self._note(operation.view)
                self.refresh()
            on_done(operation.error)

        self._storage.submit_write(SetLeaving(name, leaves, done))

    def statistics(self) -> MemberStatistics:
        view = self.router.view
        return MemberStatistics(
            name=self.router.name,
            shards=len(self.router.served),
            members=sum(self.lives(name) for name in view.members),
            taken=self._taken,
            given=self._given,
            fenced=self._fenced,
            beats_failed=self._beats_failed,
            router=self.router.statistics(),
            peers=peer_statistics(
                view,
                ((each, self.lives(name), self._machine.silent_s(name)) for name, each in view.members.items()),
            ),
            owners=view.shards,
            unowned_s=self._hand_overs.unowned_s(trio.current_time()),
            hand_overs=self._hand_overs.latest(),
            moved={str(reason): count for reason, count in self._hand_overs.moved.items()},
        )

    def _note(self, view: View) -> None:
        self._machine.note(view, trio.current_time())
        self._hand_overs.note(view, trio.current_time(), self._now_us())
        self.router.update(view)

    def _has_successor(self) -> bool:
        view = self.router.view
        return any(
            self.lives(name) and not member.leaves for name, member in view.members.items() if name != self.router.name
        )

    async def _join(self) -> View:
        view = await self._retried(Join, self.router.name, self._address, self._token)
        logger.info("cluster_joined", member=self.router.name, address=self._address, members=sorted(view.members))
        return view

    async def _follow(self, plan: Plan) -> None:
        """Takes and gives the shards of a plan. Leaves the rest of it to the next plan if it fails."""
        for owner, shards in plan.give.items():
            if not await self._give(owner, [shard for shard in shards if shard in self.router.served]):
                # The shards may have a new owner all the same. Only the tables, which the next beat reads, can tell.
                return
        if plan.take and not self._leaves:
            await self._take(plan)
        # Shards that another process of this name had, or that could not be opened before.
        unopened = set(self.router.view.owned_by(self.router.name)).difference(self.router.served)
        if unopened:
            await self._open(sorted(unopened))

    async def _take(self, plan: Plan) -> None:
        try:
            move = await self._do(MoveShards, self.router.name, plan.take, plan.fences)
        except StorageError as error:
            if _is_final(error):
                raise
            logger.warning("cluster_shards_not_taken", shards=len(plan.take), reason=str(error))
            return
        taken = [shard for shard, _ in plan.take if move.view.shards[shard].owner == self.router.name]
        self._fenced += len(move.fenced)
        logger.info("cluster_shards_taken", shards=len(taken), fenced=sorted(move.fenced))
        self._note(move.view)
        await self._open(taken)

    async def _open(self, shards: Sequence[int]) -> None:
        """Starts to serve shards that this member owns, but for those that `run` opens later, since messages of this
        member's own clients are still on their way to an earlier owner."""
        shards = self.router.clear(shards)
        if not shards:
            return
        done = trio.Event()
        failure: list[StorageError] = []

        def opened(error: StorageError | None) -> None:
            if error is None:
                self.router.serve(shards)
            else:
                failure.append(error)
            done.set()

        self._services.open_shards(shards, opened)
        await done.wait()
        if failure:
            if _is_final(failure[0]):
                raise failure[0]
            logger.warning("cluster_shards_not_opened", shards=len(shards), reason=str(failure[0]))
            return
        self._taken += len(shards)

    async def _give(self, owner: str, shards: Sequence[int]) -> bool:
        """Gives shards to another member, after everything that was submitted for them is stored. Returns False if it
        is not known whether the other member has them."""
        if not shards:
            return True
        for shard, waiting in self._services.close_shards(shards).items():
            self.router.stop_serving(shard, waiting)
        # The writes that were submitted before are committed before this one.
        try:
            move = await self._do(MoveShards, owner, [(shard, self.router.name) for shard in shards], {})
        except StorageError as error:
            if _is_final(error):
                raise
            logger.warning("cluster_shards_not_given", shards=len(shards), reason=str(error))
            # If this member still has them after the next beat, it gives them away or opens them then.
            return False
        self._given += len(shards)
        logger.info("cluster_shards_given", shards=len(shards), to=owner)
        self._note(move.view)
        return True

    async def _retried(self, kind: Callable[..., T], *arguments: object) -> View:
        """Does an operation until it succeeds. Raises StorageError if it never can."""
        while True:
            try:
                return (await self._do(kind, *arguments)).view
            except StorageError as error:
                if _is_final(error):
                    raise
                logger.warning("cluster_table_not_written", reason=str(error))
                await trio.sleep(RETRY_S)

    async def _do(self, kind: Callable[..., T], *arguments: object) -> T:
        """Does an operation on the tables, and returns it with its results. Raises StorageError."""
        done = trio.Event()
        operation = kind(*arguments, lambda _: done.set())
        self._storage.submit_write(operation)
        await done.wait()
        if operation.error is not None:
            raise operation.error
        return operation


def _is_final(error: StorageError) -> bool:
    """Whether this process can write no more. Then it must end, and start again as a new member."""
    return error.fatal or isinstance(error, StorageClosed)
