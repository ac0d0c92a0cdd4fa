"""Goal: a crash of an exporter at any point is harmless on a store: no row lost, none doubled.

Method: the command in a child process that is killed with SIGKILL at a named site, or in the middle of a request to the
store; then a run as usual. Readers look at the table in between.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from spark_export.exporter.failpoint import SITES
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import Fault, Request, fault_proxy

COMPACTION_SITES = {"compact_planned", "compact_written", "between_turn_and_ledger"}
BEFORE_PUBLICATION = {"planned", "writing", "tasks_done", "written"}
RUN_SITES = {*BEFORE_PUBLICATION, "between_publish_and_ledger", "published", "saved"}
PATIENCE_S = 60


def test_all_sites_are_tried() -> None:
    assert RUN_SITES | COMPACTION_SITES <= SITES


@pytest.mark.parametrize("site", sorted(RUN_SITES))
def test_killed_at_a_site_and_run_again(world: StoreWorld, site: str) -> None:
    world.push(500)
    world.run()
    before = world.rows()
    # Enough for tasks to be seen writing before they are done.
    world.push(60_000 if site == "writing" else 500, size=1_000)
    code, _, err = world.command("run", site=site)
    assert code == -signal.SIGKILL, err
    if site in BEFORE_PUBLICATION:
        assert world.rows() == before, "a reader sees a part of a run that was not published"
    else:
        assert world.rows() == world.stored()
    world.push(7)
    outcome = world.run()
    assert len(outcome.recovered) == (0 if site == "saved" else 1)
    world.assert_whole()
    assert sorted(world.objects()) == sorted(world.files()), "files of the killed run are left"


@pytest.mark.parametrize("site", sorted(COMPACTION_SITES))
def test_a_compaction_killed_at_a_site(world: StoreWorld, site: str) -> None:
    for _ in range(3):
        world.push(100)
        world.run()
    before = world.rows()
    code, _, err = world.command("compact", site=site)
    assert code == -signal.SIGKILL, err
    assert world.rows() == before
    assert world.verify().problems == ()
    world.push(5)
    world.run()
    world.assert_whole()
    world.compact()
    world.assert_whole()


class Hold:
    """Holds one put to the server: the one with this number, from 1. after: whether the server gets it before."""

    def __init__(self, number: int, *, after: bool) -> None:
        self._left = number
        self._after = after
        self.reached = threading.Event()
        self.never = threading.Event()

    def __call__(self, request: Request) -> Fault | None:
        if request.method != "PUT":
            return None
        self._left -= 1
        if self._left:
            return None
        self.reached.set()
        if not self._after:
            self.never.wait(PATIENCE_S)
        # The client never learns that the server has it.
        return Fault(status=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_in_the_middle_of_requests(world: StoreWorld, seed: int) -> None:
    """Method: the proxy holds a put that the seed chooses, before or after the server has it, and the child is killed
    there; again and again, each time with more to export."""
    chance = random.Random(seed)
    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        for _ in range(5):
            world.push(50, size=100)
            hold = Hold(chance.randrange(1, 9), after=chance.random() < 0.5)
            proxy.choose = hold
            with subprocess.Popen(
                world.arguments("run"), env=world.environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as child:
                while not hold.reached.wait(0.05) and child.poll() is None:
                    pass
                child.kill()
                hold.never.set()
                child.communicate()
            proxy.choose = lambda request: None
            assert set(world.rows()) <= set(world.stored())
            assert len(set(world.rows())) == len(world.rows())
        world.run()
        world.assert_whole()
        assert sorted(world.objects()) == sorted(world.files())


def test_a_fence_before_a_run_is_abandoned(world: StoreWorld) -> None:
    """A run was written, and one of its files is lost: it is abandoned, and its own exporter could not publish it any
    more, if it was only paused."""
    world.push(100)
    assert world.command("run", site="written")[0] == -signal.SIGKILL
    (staged,) = world.objects()
    world.reader.delete([staged])
    outcome = world.run()
    assert (outcome.run_id, outcome.rows, outcome.recovered) == (2, 100, ("run 1, left written: abandon",))
    assert len(world.objects("_manifests")) == 2, "the fence, and the run"
    world.assert_whole()
