"""Consumers with a chain store that are killed at every site: exactly once, against a plain replay."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from cardinal_streams.produce.simulation_machine import Simulation, SimulationOptions, simulate
from cardinal_streams.transports.file_transport import FileTransport
from stream_storage.failpoint import ENVIRONMENT_VARIABLE
from tests.cardinal_streams.chain_journal import replayed, stored_chain, text_of
from tests.cardinal_streams.store_child import PARTITIONS, PLACES

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[2]
STORAGE_SITES = ("before_begin", "after_rows_before_commit", "after_commit_before_confirm")
LIVES_MAX = 60


async def recorded(path: Path, seed: int) -> Simulation:
    simulation = simulate(random.Random(seed), SimulationOptions(blocks=26, deep_reorgs=1, keys=1, delay_max=60))
    transport = FileTransport(path, partitions=PARTITIONS)
    await transport.send_in_order([(step.topic, step.record) for step in simulation.steps])
    transport.close()
    return simulation


def left_behind(folder: Path, copy: Path) -> Path:
    """A copy of what a killed process has left: to open the files themselves would change them."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return copy / "streams.sqlite"


@pytest.mark.parametrize("site", [*PLACES, *STORAGE_SITES])
def test_killed_at_a_site_again_and_again(site: str, tmp_path: Path) -> None:
    """Goal: whatever a kill comes in between, the chain in the store and the table that the application writes by
    `done` agree, and the whole is done exactly once. Method: SIGKILL at a random visit of the site in each life; after
    each, the files are read by sqlite3 alone; in the end both are the chain of the simulation."""
    simulation = trio.run(recorded, tmp_path / "recording", len(site))
    folder, randomness = tmp_path / "chain", random.Random(site)
    lengths: list[int] = []
    for _ in range(LIVES_MAX):
        visit = f"{site}:{randomness.randint(1, 12)}"
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        if site in STORAGE_SITES:
            environment[ENVIRONMENT_VARIABLE] = visit
        child = subprocess.run(
            [sys.executable, "-m", "tests.cardinal_streams.store_child", tmp_path / "recording", folder, visit],
            env=environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert child.returncode in (0, -signal.SIGKILL), child.stderr
        database = left_behind(folder, tmp_path / "copy")
        stored = [(each.hash, text_of(each.values)) for each in stored_chain(database)]
        assert replayed(database) == stored
        lengths.append(len(stored))
        if child.returncode == 0:
            break
    assert len(lengths) > 1
    assert stored == [(block.hash, text_of(simulation.contents[block.hash])) for block in simulation.chain]
