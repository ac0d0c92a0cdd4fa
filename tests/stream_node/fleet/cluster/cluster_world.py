"""One seeded run: members of a cluster on one database in virtual time, their users, and what goes wrong.

Everything random comes from the seed, also the order in which trio runs ready tasks, so a failing seed replays.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from itertools import count

import msgspec
import trio

from stream_node.fleet.cluster.router import Link
from stream_node.fleet.cluster.tables import TABLES
from stream_node.fleet.cluster.view import SHARDS
from tests.simulation.world import Stuck
from tests.stream_node.fleet.cluster.cluster_auditor import ClusterAuditor
from tests.stream_node.fleet.cluster.pipes import MemberEnd, Pipe
from tests.stream_node.fleet.cluster.simulated_member import Process
from tests.stream_node.fleet.cluster.simulated_users import Consumer, GroupMember, Line, Publisher, User
from tests.support.storage.memory import MemoryDatabase
from tests.support.virtual_time import run_seeded

VIRTUAL_TIMEOUT_S = 600.0
SERVED_S_MAX = 30.0
"""All shards are served again so long after the last fault."""
RESTART_S = 1.0
STREAMS = ("s0", "s1", "s2", "s3")
FAULTS = (
    *("kill", "kill", "join", "leave", "drain", "reset", "hold", "hold", "cut", "cut", "freeze", "freeze"),
    *("usurp", "outage", "doubt"),
)


class Outcome(msgspec.Struct, frozen=True):
    """What happened, to show that runs are not all alike and that no check was idle.

    moved: shards that were taken. fenced: processes that ended because they were replaced. forwarded: messages that
    one member sent to another one. served_s: how long after the last fault all shards were served. For the last four
    see `ClusterAuditor`.
    """

    faults: dict[str, int]
    moved: int
    fenced: int
    forwarded: int
    confirmed: int
    served_s: float
    ordered: int
    leased: int
    old_fences: int
    saves: int


def run_seed(seed: int) -> Outcome:
    """Runs the cluster of one seed. Raises BrokenPromise, Stuck, AssertionError."""
    return run_seeded(seed, ClusterWorld(random.Random(seed)).run)


class ClusterWorld:
    """The members, the network between them, and the users."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._database = MemoryDatabase(TABLES)
        self._auditor = ClusterAuditor()
        self._processes: list[Process] = []
        self._pipes: list[Pipe] = []
        self._serials = count()
        self._apart: dict[str, int] = {}
        self._held: set[str] = set()
        self._frozen: set[str] = set()
        self._leaving: set[Process] = set()
        self._under_way = 0
        self._calm = False
        self._users = 0
        self._faults: Counter[str] = Counter()

    async def run(self) -> Outcome:
        with trio.move_on_after(VIRTUAL_TIMEOUT_S) as patience:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for number in range(self._rng.randint(2, 3)):
                    nursery.start_soon(self._keep, f"n{number}")
                self._start_users()
                await self._harm()
                served_s = await self._recover()
                while self._users:
                    await trio.sleep(0.5)
                nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            raise Stuck(f"{self._users} users still wait after {VIRTUAL_TIMEOUT_S:g} virtual seconds")
        auditor = self._auditor
        auditor.check_log(self._database.read_session(), STREAMS)
        statistics = [each.member.statistics() for each in self._processes if each.member is not None]
        return Outcome(
            faults=dict(self._faults),
            moved=sum(each.taken for each in statistics),
            fenced=sum(each.failure is not None for each in self._processes),
            forwarded=sum(sum(each.router.sent.values()) for each in statistics),
            confirmed=sum(map(len, auditor.confirms.values())),
            served_s=served_s,
            ordered=auditor.ordered,
            leased=auditor.leased,
            old_fences=auditor.old_fences,
            saves=auditor.saves,
        )

    async def leave_within(self, time_s: float) -> int:
        """One of two members leaves, without users. Returns how many shards it has not given to the other one."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for number in range(2):
                nursery.start_soon(self._keep, f"n{number}")
            await trio.sleep(4.0)
            await self._recover()
            member = self._living[0].member
            assert member is not None
            assert member.router.served
            await member.leave(trio.current_time() + time_s)
            nursery.cancel_scope.cancel()
        return len(member.router.served)

    # The users.

    def _start_users(self) -> None:
        rng = self._rng
        users: list[User] = []

        def common(name: str) -> tuple[object, ...]:
            return name, random.Random(rng.random()), self._auditor, self._dial, lambda: self._calm

        for number in range(rng.randint(2, 4)):
            window = rng.choice((1, 4, 20))
            numbers, stream = rng.random() < 0.4, rng.choice(STREAMS)
            users.append(Publisher(*common(f"publisher{number}"), stream=stream, numbers=numbers, window=window))
        users += [Consumer(*common(f"consumer{number}"), stream=rng.choice(STREAMS)) for number in range(2)]
        users += [GroupMember(*common(f"member{number}"), stream="s0") for number in range(rng.randint(0, 3))]
        for user in users:
            self._users += 1
            self._nursery.start_soon(self._use, user)

    async def _use(self, user: User) -> None:
        await user.run()
        self._users -= 1

    # The network.

    def _dial(self, line: Line) -> bool:
        found = [each for each in self._processes if each.accepts]
        if not found:
            return False
        process = self._rng.choice(found)
        end = process.accept(f"{line.address}:1")
        is_held = partial(self._is_held, process.address, process.address)
        self._pipes.append(Pipe(self._nursery, self._rng, end, line, (process.address, ""), is_held))
        return True

    def _call(self, caller: Process, link: Link) -> MemberEnd | None:
        called = next((each for each in self._processes if each.address == link.member.address), None)
        if called is None or not called.accepts or not caller.lives:
            return None
        between = called.address, caller.address
        if self._are_apart(*between):
            return None
        end = caller.accept(called.address, link)
        called_end = called.accept(caller.address)
        self._pipes.append(Pipe(self._nursery, self._rng, called_end, end, between, partial(self._is_held, *between)))
        return end

    def _are_apart(self, one: str, other: str) -> bool:
        return self._apart.get(one, 0) != self._apart.get(other, 0) or bool({one, other} & self._frozen)

    def _is_held(self, one: str, other: str) -> bool:
        return bool({one, other} & self._frozen) or (bool(self._held) and (one in self._held) != (other in self._held))

    # The members.

    async def _keep(self, name: str) -> None:
        """A member: a process that is started again when it has ended, unless it has left."""
        while True:
            process = self._make(name)
            await process.run()
            if process in self._leaving:
                return
            await trio.sleep(RESTART_S + round(self._rng.random() * 8, 1))

    def _make(self, name: str) -> Process:
        address = f"{name}-{next(self._serials)}:4000"
        rng = random.Random(self._rng.random())
        process = Process(name, address, rng, self._database, self._call, self._auditor.answered)
        self._processes.append(process)
        return process

    @property
    def _living(self) -> list[Process]:
        return [each for each in self._processes if each.accepts]

    # What goes wrong.

    async def _harm(self) -> None:
        rng = self._rng
        await trio.sleep(4.0)
        for _ in range(rng.randint(2, 6)):
            await trio.sleep(round(rng.random() * rng.choice((0.5, 4.0)), 2))
            if self._living:
                fault = rng.choice(FAULTS)
                self._faults[fault] += 1
                process, lasts_s = rng.choice(self._living), round(rng.uniform(0.3, 12.0), 1)
                self._nursery.start_soon(self._inflict, fault, process, lasts_s)
        while self._under_way:
            await trio.sleep(0.1)

    async def _inflict(self, fault: str, process: Process, lasts_s: float) -> None:
        self._under_way += 1
        await getattr(self, f"_{fault}")(process, lasts_s)
        self._under_way -= 1

    async def _kill(self, process: Process, lasts_s: float) -> None:
        process.kill()

    async def _join(self, process: Process, lasts_s: float) -> None:
        self._nursery.start_soon(self._keep, f"j{next(self._serials)}")

    async def _leave(self, process: Process, lasts_s: float) -> None:
        if len(self._living) > 1 and process not in self._leaving:
            self._leaving.add(process)
            await process.leave()

    async def _drain(self, process: Process, lasts_s: float) -> None:
        for leaves in (True, False):
            if process.accepts and process.member is not None and process not in self._leaving:
                process.member.set_leaving(process.name, leaves, lambda error: None)
            await trio.sleep(lasts_s)

    async def _reset(self, process: Process, lasts_s: float) -> None:
        """The connections between two groups of members end, and no others can be made."""
        self._apart = {each.address: self._rng.randint(0, 1) for each in self._processes}
        for pipe in self._pipes:
            if pipe.between[1] and self._are_apart(*pipe.between):
                pipe.cut()
        await trio.sleep(lasts_s)
        self._apart = {}

    async def _hold(self, process: Process, lasts_s: float) -> None:
        """Nothing arrives on the connections between two groups of members for a while."""
        self._held = {each.address for each in self._processes if self._rng.random() < 0.5}
        await trio.sleep(lasts_s)
        self._held = set()

    async def _cut(self, process: Process, lasts_s: float) -> None:
        """A member does not reach the database."""
        process.has_database = False
        await trio.sleep(lasts_s)
        process.has_database = True

    async def _freeze(self, process: Process, lasts_s: float) -> None:
        """A process does nothing: no messages arrive there or from there, and it does not reach the database."""
        self._frozen.add(process.address)
        await self._cut(process, lasts_s)
        self._frozen.discard(process.address)

    async def _usurp(self, process: Process, lasts_s: float) -> None:
        """A second process of the name starts while the first one does not reach the database."""
        self._nursery.start_soon(self._cut, process, lasts_s)
        await trio.sleep(round(self._rng.random() * 3, 1))
        self._nursery.start_soon(self._make(process.name).run)
        await trio.sleep(lasts_s)

    async def _outage(self, process: Process, lasts_s: float) -> None:
        """No member reaches the database."""
        async with trio.open_nursery() as nursery:
            for each in self._processes:
                nursery.start_soon(self._cut, each, lasts_s)

    async def _doubt(self, process: Process, lasts_s: float) -> None:
        """A member does not learn whether its changes of the cluster's tables are stored."""
        process.loses_answers = True
        await trio.sleep(lasts_s)
        process.loses_answers = False

    # The end.

    async def _recover(self) -> float:
        """Waits until all shards are served again. Returns how long it took."""
        began_s = trio.current_time()
        if not [each for each in self._processes if each.lives]:
            self._nursery.start_soon(self._keep, "last")
        while not self._are_all_served():
            if trio.current_time() - began_s > SERVED_S_MAX:
                served = Counter(shard for each in self._living if each.router for shard in each.router.served)
                raise Stuck(f"{SHARDS - len(served)} shards are not served {SERVED_S_MAX:g} s after the last fault")
            await trio.sleep(0.1)
        self._calm = True
        return trio.current_time() - began_s

    def _are_all_served(self) -> bool:
        served = Counter(shard for each in self._living if each.router is not None for shard in each.router.served)
        return len(served) == SHARDS and set(served.values()) == {1}
