"""ClusterMember: one node as a member of its cluster. It takes shards, gives them away, and leaves. Each second it
writes to the tables that it is alive; this write is a beat. `PlanMachine` decides, and `Router` sends the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import structlog
import trio

from ockam.actors.message import Message
from stream_node.fleet.cluster.hand_overs import HandOver, HandOvers
from stream_node.fleet.cluster.plan_machine import MemberPlan, PlanMachine
from stream_node.fleet.cluster.router import Router, RouterStatistics
from stream_node.fleet.cluster.tables import beat, join, leave, move_shards, set_leaving, with_view
from stream_node.fleet.cluster.view import SHARDS, ClusterView, Shard, StoredMember, choose_owner
from stream_storage.contract import Do, Session
from stream_storage.errors import StorageBusy, StorageClosed, StorageError
from stream_storage.runner import Runner, do

BEAT_S = 1.0
READ_S_MIN = 0.02
QUIET_S = 0.5
"""A member that leaves ends when it has sent no message to other members for this long."""
RETRY_S = 0.5

logger = structlog.get_logger(__name__)

T = TypeVar("T")


class PeerStatistics(msgspec.Struct, frozen=True):
    """One member of the cluster, as a member sees it; also that member itself."""

    name: str
    address: str
    lives: bool
    leaves: bool  # whether it gives its shards away
    is_fenced: bool  # whether another member took its shards because it was silent: then it can write nothing more
    silent_s: float  # for how long it has not written that it lives
    shards: int  # how many it owns


class MemberStatistics(msgspec.Struct, frozen=True):
    """The statistics of a member. Counters begin at its start."""

    name: str
    shards: int  # how many it serves
    members: int  # how many live
    taken: int  # the shards that it took
    router: RouterStatistics
    peers: tuple[PeerStatistics, ...]  # all members, by name
    owners: tuple[Shard, ...]  # all shards with their owners and epochs, by number
    given: int = 0  # the shards that it gave away
    fenced: int = 0  # the members that it has fenced
    beats_failed: int = 0  # the beats that an unreachable or slow database made fail
    unowned_s: dict[int, float] = {}  # by number, for how long each shard without an owner has had none
    hand_overs: tuple[HandOver, ...] = ()  # the latest first
    moved: dict[str, int] = {}  # by reason, the shards with a new owner
    is_fixed: bool = False  # whether each shard has its owner for good


def _peer(each: StoredMember, view: ClusterView, lives: bool, silent_s: float) -> PeerStatistics:
    shards = len(view.owned_by(each.name))
    return PeerStatistics(each.name, each.address, lives, each.leaves, not each.token, silent_s, shards)


class ShardServices(Protocol):
    async def open_shards(self, shards: Sequence[int], serve: Callable[[], None]) -> None:
        """Starts the workers of the streams of shards of which no message is under way to an earlier owner. Raises
        StorageError.
        serve: called at once after their start, before any message comes."""
        ...

    def close_shards(self, shards: Sequence[int]) -> dict[int, list[Message]]:
        """Stops the workers of shards. Returns by shard their messages that are not served, in each worker's order."""
        ...


class ClusterMember:
    def __init__(
        self,
        router: Router,
        storage: Runner,
        services: ShardServices,
        *,
        address: str,  # where other members reach this process
        now_us: Callable[[], int],
    ) -> None:
        self.router = router
        self._storage = storage
        self._services = services
        self._address = address
        self._token = router.token
        self._now_us = now_us
        self._hand_overs = HandOvers()
        self._machine = PlanMachine(router.name, trio.current_time())
        self._wake = trio.Event()
        self._on_read: list[Callable[[], None]] = []
        self._leaves = False
        self._left = trio.Event()
        self._taken = self._given = self._fenced = self._beats_failed = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Joins, and beats until `leave` has ended. Raises StorageError if another process has replaced this one.
        `task_status` is started when the node has joined."""
        joined = await self._retried(partial(join, name=self.router.name, address=self._address, token=self._token))
        logger.info("cluster_joined", member=self.router.name, address=self._address, members=sorted(joined.members))
        self._note(joined)
        # An earlier process of this name may have left shards behind. They need no new owner.
        mine = joined.owned_by(self.router.name)
        await self._open(mine)
        task_status.started()
        while not self._left.is_set():
            # Whoever asks for a read from now on gets the next read: this one may begin too early.
            asked, self._on_read = self._on_read, []
            # One transaction writes the beat and reads the tables. A failed one is tried again at the next beat.
            beaten = await self._do(partial(beat, name=self.router.name, token=self._token))
            if isinstance(beaten, StorageError):
                self._beats_failed += 1
                logger.warning("cluster_beat_failed", reason=str(beaten))
            else:
                _, view = beaten
                self._note(view)
                await self._follow(self._machine.plan(view))
            # The tables were read, or could not be: those who asked for a read must not wait longer.
            for on_read in asked:
                on_read()
            # The next beat comes early if somebody asks, but not before READ_S_MIN.
            with trio.move_on_after(BEAT_S):
                await trio.sleep(READ_S_MIN)
                await self._wake.wait()
            self._wake = trio.Event()

    async def leave(self, deadline_s: float) -> None:
        """Leaves the cluster, by `deadline_s` on trio's clock."""
        self._leaves = True
        self.router.passed_on.clear()
        # Give the shards away until none is left, as long as another member can take them. The last beat, or the
        # last quarter of a short time, is for the removal of the row: also a member with little time gives its shards.
        with trio.move_on_at(deadline_s - min(BEAT_S, (deadline_s - trio.current_time()) / 4)):
            await self._retried(partial(set_leaving, name=self.router.name, leaves=True))
            while self.router.served and self._has_successor():
                self.refresh()
                await self._after_read()
            # The answers to messages that were passed on must come back before the connections end.
            if self._has_successor():
                await self._all_seen()
                await self._quiet()
        self._left.set()
        # The row is removed even if the steps above took too long: then the others need not wait until this member
        # counts as dead.
        with trio.move_on_at(deadline_s):
            await self._retried(partial(leave, name=self.router.name, token=self._token))
            logger.info("cluster_left", member=self.router.name)

    def refresh(self) -> None:
        self._wake.set()

    def read(self, on_read: Callable[[], None], *, soon: bool) -> None:
        """Calls `on_read` after a read of the tables, or a failed one. soon: whether to read before the next beat."""
        self._on_read.append(on_read)
        if soon:
            self._wake.set()

    async def _after_read(self) -> None:
        """Returns when the tables were read and the resulting plan was carried out."""
        done = trio.Event()
        self._on_read.append(done.set)
        await done.wait()

    async def _all_seen(self) -> None:
        """Returns when every other living member has read the present tables, so that it sends nothing more here.
        A member reads the tables with a beat, and its next beat shows that it has done so."""
        before = dict(self.router.view.members)
        while any(
            self.lives(name) and member.beats < before[name].beats + 2
            for name, member in self.router.view.members.items()
            if name != self.router.name and name in before and before[name].token == member.token
        ):
            await trio.sleep(BEAT_S / 4)
            await self._after_read()

    async def _quiet(self) -> None:
        """Returns when no message was sent to other members for QUIET_S, and all passed-on messages are answered."""
        sent = -1
        while True:
            before, sent = sent, sum(self.router.statistics().sent.values())
            if sent == before and not self.router.owes_answers:
                return
            await trio.sleep(QUIET_S)

    def lives(self, name: str) -> bool:
        return self._machine.lives(self.router.view, name)

    def set_leaving(self, name: str, leaves: bool, on_done: Callable[[StorageError | None], None]) -> None:
        """Makes a member give its shards away, or take shards again. on_done: gets the error of the write, if any."""

        def done(operation: Do[tuple[None, ClusterView]]) -> None:
            if operation.error is None:
                self._note(operation.result[1])
                self.refresh()
            on_done(operation.error)

        work = partial(set_leaving, name=name, leaves=leaves)
        self._storage.submit_write(Do(partial(with_view, work), done))

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
            peers=tuple(
                _peer(each, view, self.lives(name), self._machine.silent_s(name)) for name, each in view.members.items()
            ),
            owners=view.shards,
            unowned_s=self._hand_overs.unowned_s(trio.current_time()),
            hand_overs=self._hand_overs.latest(),
            moved={str(reason): count for reason, count in self._hand_overs.moved.items()},
        )

    def _note(self, view: ClusterView) -> None:
        self._machine.note(view, trio.current_time())
        self._hand_overs.note(view, trio.current_time(), self._now_us())
        self.router.update(view)

    def _has_successor(self) -> bool:
        view = self.router.view
        return any(
            self.lives(name) and not member.leaves for name, member in view.members.items() if name != self.router.name
        )

    async def _follow(self, plan: MemberPlan) -> None:
        """Takes and gives the shards of a plan. If a step fails, the rest waits for the next plan."""
        # Give first: a shard that another member shall have is not served here any longer.
        for owner, shards in plan.give.items():
            if not await self._give(owner, [shard for shard in shards if shard in self.router.served]):
                # The shards may have a new owner all the same: the next beat reads that from the tables.
                return
        if plan.take and not self._leaves:
            await self._take(plan)
        # Open the shards that an earlier process of this name had, or that could not be opened before.
        unopened = set(self.router.view.owned_by(self.router.name)).difference(self.router.served)
        if unopened:
            await self._open(sorted(unopened))

    async def _take(self, plan: MemberPlan) -> None:
        # The table decides: another member may have been faster.
        moved = await self._do(partial(move_shards, owner=self.router.name, moves=plan.take, fences=plan.fences))
        if isinstance(moved, StorageError):
            logger.warning("cluster_shards_not_taken", shards=len(plan.take), reason=str(moved))
            return
        # Only the shards that the table now gives to this member are opened.
        fenced, view = moved
        taken = [shard for shard, _ in plan.take if view.shards[shard].owner == self.router.name]
        self._fenced += len(fenced)
        logger.info("cluster_shards_taken", shards=len(taken), fenced=sorted(fenced))
        self._note(view)
        await self._open(taken)

    async def _open(self, shards: Sequence[int]) -> None:
        """Starts to serve shards that this member owns.
        If messages of this member's clients are under way to a shard's earlier owner, a later beat opens the shard."""
        shards = self.router.clear(shards)
        if not shards:
            return
        try:
            await self._services.open_shards(shards, partial(self.router.serve, shards))
        except StorageError as error:
            if _is_final(error):
                raise
            logger.warning("cluster_shards_not_opened", shards=len(shards), reason=str(error))
        else:
            self._taken += len(shards)

    async def _give(self, owner: str, shards: Sequence[int]) -> bool:
        """Gives shards away when all that was submitted for them is stored. Returns False if the result is unknown."""
        if not shards:
            return True
        # The workers stop, and messages wait from here on.
        for shard, waiting in self._services.close_shards(shards).items():
            self.router.stop_serving(shard, waiting)
        # The writes that were submitted before are committed before this one.
        moves = [(shard, self.router.name) for shard in shards]
        moved = await self._do(partial(move_shards, owner=owner, moves=moves, fences={}))
        if isinstance(moved, StorageError):
            logger.warning("cluster_shards_not_given", shards=len(shards), reason=str(moved))
            # If the table still gives the shards to this member at the next beat, they are given away or opened then.
            return False
        self._given += len(shards)
        logger.info("cluster_shards_given", shards=len(shards), to=owner)
        self._note(moved[1])
        return True

    async def _retried(self, work: Callable[[Session], None]) -> ClusterView:
        """Repeats a change of the tables until it succeeds. Raises StorageError if it never can."""
        while True:
            changed = await self._do(work)
            if not isinstance(changed, StorageError):
                return changed[1]
            logger.warning("cluster_table_not_written", reason=str(changed))
            await trio.sleep(RETRY_S)

    async def _do(self, work: Callable[[Session], T]) -> tuple[T, ClusterView] | StorageError:
        """Changes the tables. Returns the result with the new content of the tables, or an error that can pass.
        Raises StorageError if this process can write no more."""
        try:
            return await do(self._storage.submit_write, partial(with_view, work))
        except StorageError as error:
            if _is_final(error):
                raise
            return error


def _is_final(error: StorageError) -> bool:
    """Whether this process can write no more. Then it must end, and start again as a new member."""
    return error.fatal or isinstance(error, StorageClosed)


LOOK_S = 0.5


def fixed_view(members: Sequence[StoredMember]) -> ClusterView:
    """Returns the view in which each member owns its share of the shards."""
    by_name = {member.name: member for member in members}
    return ClusterView(by_name, tuple(Shard(choose_owner(shard, by_name) or "", 1) for shard in range(SHARDS)))


class FixedMember:
    """One of the processes of one machine that share the shards for good. It has the methods of ClusterMember, except
    `leave`. The supervisor starts a dead process again, so no process takes shards of another one or writes beats."""

    def __init__(self, router: Router, services: ShardServices, view: ClusterView) -> None:
        """view: from `fixed_view`, with this member."""
        self.router = router
        self._services = services
        self._view = view
        self._wake = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves the shards of this member, and connects to the others again and again. Raises StorageError.
        `task_status` is started when this member serves its shards."""
        own = self._view.owned_by(self.router.name)
        self.router.update(self._view)
        # Nobody else ever has these shards, so no earlier route has to be cleared.
        await self._services.open_shards(own, partial(self.router.serve, own))
        logger.info("worker_serves", worker=self.router.name, shards=len(own))
        task_status.started()
        while True:
            self.router.update(self._view)
            with trio.move_on_after(LOOK_S):
                await self._wake.wait()
                # A connection has ended. The next update settles its requests and shards.
            self._wake = trio.Event()

    def refresh(self) -> None:
        self._wake.set()

    def read(self, on_read: Callable[[], None], *, soon: bool) -> None:
        """Calls `on_read` at once: the owners of the shards never change."""
        on_read()

    def lives(self, name: str) -> bool:
        return name in self._view.members

    def set_leaving(self, name: str, leaves: bool, on_done: Callable[[StorageError | None], None]) -> None:
        """Refuses: the shards of workers do not move."""
        on_done(StorageBusy("the shards of the workers of one machine do not move"))

    def statistics(self) -> MemberStatistics:
        return MemberStatistics(
            name=self.router.name,
            shards=len(self.router.served),
            members=len(self._view.members),
            taken=len(self.router.served),
            router=self.router.statistics(),
            peers=tuple(_peer(each, self._view, True, 0.0) for each in self._view.members.values()),
            owners=self._view.shards,
            is_fixed=True,
        )
