"""Goal: users of a cluster lose no confirmed message and no order, and all of them go on, whatever happens to members.

Method: whole members in virtual time on one database in memory, a seed each. What may be stored is known from the table
of members and from what the users did, not from the fence. A failure prints the line that replays it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from index_service.lease_groups import LeaseGroups
from stream_node.fleet.cluster.member import ClusterMember
from stream_node.fleet.cluster.router import Router
from stream_node.fleet.cluster.tables import TABLES
from stream_node.node.services import Services
from stream_storage.errors import NodeReplaced
from tests.simulation.noticing import assert_caught
from tests.stream_node.fleet.cluster.cluster_world import FAULTS, ClusterWorld, Outcome, run_seed
from tests.support.storage.memory import MemoryDatabase, MemorySession, SharedMemoryDatabase
from tests.support.virtual_time import run_seeded

SEEDS = range(8)
MANY_SEEDS = range(1_500)
REPLAY = "STREAM_NODE_SEED"


def run_or_tell(seed: int) -> Outcome:
    try:
        return run_seed(seed)
    except BaseException as error:
        error.add_note(f"replay: {REPLAY}={seed} python -m pytest tests/stream_node/fleet/cluster -k test_every_seed")
        raise


def run_seeds(seeds: range) -> None:
    """At least so much must happen in each hundred of them, or they would show little."""
    chosen = os.environ.get(REPLAY)
    if chosen is not None:
        run_or_tell(int(chosen))
        return
    outcomes = [run_or_tell(seed) for seed in seeds]
    for what, at_least in (
        ("moved", 30_000),
        ("fenced", 60),
        ("forwarded", 15_000),
        ("confirmed", 15_000),
        ("ordered", 10_000),
        ("leased", 1_000),
        ("old_fences", 50),
        ("saves", 2_000),
    ):
        assert 100 * sum(getattr(outcome, what) for outcome in outcomes) >= at_least * len(seeds), what
    assert sum((Counter(outcome.faults) for outcome in outcomes), Counter()).keys() == set(FAULTS)


@pytest.mark.slow
def test_every_seed_keeps_every_promise() -> None:
    run_seeds(SEEDS)


@pytest.mark.soak
def test_every_one_of_many_seeds_keeps_every_promise() -> None:
    run_seeds(MANY_SEEDS)


def test_shards_that_could_not_be_opened_are_opened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a mistake at the start of the workers of shards does not end the beats of a member without a word. Method:
    the block node of each process fails to start twice."""
    serve_chain, calls = Services.serve_chain, Counter[Services]()

    def fail_twice(self: Services) -> None:
        calls[self] += 1
        if calls[self] <= 2:
            raise RuntimeError("told to fail")
        serve_chain(self)

    monkeypatch.setattr(Services, "serve_chain", fail_twice)
    for seed in SEEDS[:4]:
        run_or_tell(seed)
    assert max(calls.values()) > 2


def test_a_member_that_has_only_a_second_to_leave_gives_its_shards_away() -> None:
    for seed in SEEDS[:2]:
        assert run_seeded(seed, partial(ClusterWorld(random.Random(seed)).leave_within, 1.0)) == 0


def test_a_seed_replays_to_the_same_outcome() -> None:
    assert run_or_tell(7) == run_or_tell(7)


def test_a_fenced_process_begins_no_transaction() -> None:
    database = MemoryDatabase(TABLES)
    one, other = (SharedMemoryDatabase(database, owner).session() for owner in ("one", "other"))
    other.begin()
    assert other.fence("one")
    other.commit()
    with pytest.raises(NodeReplaced):
        one.begin()


def plant_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemorySession, "fence", lambda self, owner: True)


def plant_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later messages go the new way at once."""

    def clear_at_once(self: Router, shard: int) -> None:
        self._unclear[shard] = 0.0
        self._cleared(shard)

    monkeypatch.setattr(Router, "_clear_way", clear_at_once)


def plant_clients_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of a member that has died are not told."""
    init = Router.__init__

    def deaf(self: Router, *arguments: object, **options: object) -> None:
        init(self, *arguments, **options | {"hang_up": lambda connections: None})  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "__init__", deaf)


def plant_opened_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that does not know whether it has given its shards away serves them again."""
    give = ClusterMember._give

    async def give_and_forget(self: ClusterMember, owner: str, shards: Sequence[int]) -> bool:
        await give(self, owner, shards)
        return True

    monkeypatch.setattr(ClusterMember, "_give", give_and_forget)


def plant_renewals_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that was replaced renews leases until it notices that."""
    init = LeaseGroups.__init__

    def forgetful(self: LeaseGroups, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self._writes_renewals = False

    monkeypatch.setattr(LeaseGroups, "__init__", forgetful)


@pytest.mark.parametrize(
    ("plant", "saying", "first"),
    [
        pytest.param(plant_no_fence, "is no member any more and has stored", 1, id="no-fence"),
        pytest.param(plant_no_marks, "overtook another one", 14, id="no-marks"),
        pytest.param(plant_clients_kept, "waits in vain", 0, id="clients-kept"),
        pytest.param(plant_opened_in_doubt, "is not the only one that writes a stream", 45, id="opened-in-doubt"),
        pytest.param(plant_renewals_from_memory, "has a lease beside", 1367, id="renewals-from-memory"),
    ],
)
def test_a_planted_mistake_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    plant: Callable[[pytest.MonkeyPatch], None],
    saying: str,
    first: int,
) -> None:
    plant(monkeypatch)
    assert_caught(lambda seed, _: run_seed(seed), range(60), tmp_path, saying, first)
