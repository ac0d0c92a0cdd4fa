"""Consumers with a chain store: what they store, over restarts and any depth of undoing, against a plain replay."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cardinal_streams.application import Application
from cardinal_streams.consume.consuming import consume
from cardinal_streams.produce.simulation_machine import GENESIS, SIMULATED, SimulationOptions, simulate
from cardinal_streams.transports.file_transport import FileTransport
from tests.cardinal_streams.chain_journal import replayed, stored_chain, text_of, write_of


class KilledError(Exception):
    """Ends a consumer without its last save."""


async def lived(
    transport: FileTransport, folder: Path, updates_max: int | None, application: Application = SIMULATED
) -> bool:
    """One life of a consumer, which is killed after so many updates. Whether it came to the end."""
    try:
        async with consume(
            application, transport, chain_store=folder, start=GENESIS, save_interval_s=0, stop_at_end=True
        ) as updates:
            async for update in updates:
                if updates_max == 0:
                    raise KilledError
                updates_max = None if updates_max is None else updates_max - 1
                update.done(write_of(update.removed, update.added))
    except KilledError:
        return False
    return True


@pytest.mark.parametrize("seed", range(6))
async def test_a_simulated_chain_with_restarts_anywhere(seed: int, tmp_path: Path) -> None:
    randomness = random.Random(seed)
    simulation = simulate(
        randomness,
        SimulationOptions(blocks=60, deep_reorgs=2, producers=1 + seed % 2, delay_max=seed * 40, fork_rate=0.4),
    )
    transport = FileTransport(tmp_path / "recording", partitions=1 + seed % 3)
    await transport.send_in_order([(step.topic, step.record) for step in simulation.steps])
    lives = 1
    while not await lived(transport, tmp_path / "chain", randomness.randint(0, 15)):
        lives += 1
        assert lives < 200
    transport.close()
    expected = [(block.hash, simulation.contents[block.hash]) for block in simulation.chain]
    database = tmp_path / "chain" / "streams.sqlite"
    assert [(each.hash, each.values) for each in stored_chain(database)] == expected
    assert replayed(database) == [(hash_, text_of(values)) for hash_, values in expected]
