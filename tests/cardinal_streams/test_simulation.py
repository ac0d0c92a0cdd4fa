"""The simulator: every seed ends on the chain that it promised, whatever its disorder; the same seed is the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cardinal_streams.consume.consuming import consume, consume_unordered
from cardinal_streams.errors import SimulationError
from cardinal_streams.inspection import summarise_deliveries
from cardinal_streams.machines.events import Checkpoint
from cardinal_streams.produce.producer import Outgoing
from cardinal_streams.produce.simulation_machine import GENESIS, SIMULATED, Simulation, SimulationOptions, simulate
from cardinal_streams.transports.file_transport import FileTransport, replay
from cardinal_streams.transports.transport import Transport, is_reorg_topic
from tests.cardinal_streams.chains import Ledger, served_transport

SEEDS = range(24)


def made(seed: int, **options: int | float) -> Simulation:
    return simulate(random.Random(seed), SimulationOptions(**options))  # type: ignore[arg-type]


async def consumed(transport: Transport) -> Ledger:
    ledger = Ledger(GENESIS.hash)
    async with consume(SIMULATED, transport, checkpoint=Checkpoint(start=GENESIS), stop_at_end=True) as updates:
        async for update in updates:
            ledger.apply(update)
            update.done()
        updates.machine.check()
    return ledger


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_seed_ends_on_its_chain(seed: int, tmp_path: Path) -> None:
    simulation = made(
        seed, blocks=60, deep_reorgs=seed % 4, producers=1 + seed % 3, delay_max=seed * 7, loss_rate=0.2, fork_rate=0.4
    )
    transport = FileTransport(tmp_path / "recording", partitions=1 + seed % 4)
    await transport.send_in_order([(step.topic, step.record) for step in simulation.steps])
    ledger = await consumed(transport)
    transport.close()
    assert ledger.hashes[1:] == [block.hash for block in simulation.chain]
    for block in simulation.chain:
        assert ledger.batches[block.hash].values == simulation.contents[block.hash]
    assert ledger.reverts == seed % 4


async def test_through_a_node(tmp_path: Path) -> None:
    """The same over partitioned streams; unordered, every block is told once."""
    simulation = made(7, blocks=60, deep_reorgs=2, producers=2)
    async with served_transport(tmp_path) as (_, transport):
        for at in range(0, len(simulation.steps), 500):
            outgoing: Outgoing = {}
            for step in simulation.steps[at : at + 500]:
                outgoing.setdefault(step.topic, []).append(step.record)
            await transport.send(outgoing)
        ledger = await consumed(transport)
        found = []
        async with consume_unordered(SIMULATED, transport, stop_at_end=True) as arrivals:
            async for arrival in arrivals:
                found.append(arrival.batch.hash)
                assert arrival.batch.values == simulation.contents[arrival.batch.hash]
                arrival.done()
    assert ledger.hashes[1:] == [block.hash for block in simulation.chain]
    assert len(found) == len(set(found)) == len(simulation.chain) + simulation.blocks_off_chain


async def test_a_recording_of_it_is_whole(tmp_path: Path) -> None:
    simulation = made(3, duplicate_rate=0.5)
    transport = FileTransport(tmp_path / "recording")
    await transport.send_in_order([(step.topic, step.record) for step in simulation.steps])
    transport.close()
    summary = summarise_deliveries(SIMULATED, replay(tmp_path / "recording"))
    assert summary.blocks == len(simulation.chain) + simulation.blocks_off_chain
    assert (summary.incomplete, summary.problems) == (0, 0)
    assert summary.messages == len(simulation.steps)
    assert summary.duplicates > 0


def test_a_seed_is_a_seed() -> None:
    assert made(5) == made(5)
    assert made(5) != made(6)


def test_channels_stay_in_order() -> None:
    """On the first channel two producers write at once; each one's messages stay in order. On the second channel a
    section begins with its Reorg message and ends with its ReorgComplete."""
    simulation = made(1, blocks=60, deep_reorgs=2, producers=2, delay_max=300, duplicate_rate=0)
    channels: dict[str, list[bytes]] = {}
    for step in simulation.steps:
        if is_reorg_topic(step.topic):
            channels.setdefault(step.topic, []).append(step.record.key)
    assert len(channels) == 2
    both, in_turn = channels.values()
    text = "".join("(" if key[0] == 5 else ")" if key[0] == 6 else "." for key in in_turn)
    assert text.replace(".", "") == "()()"
    assert text.startswith("(.")
    assert text.endswith(".)")
    assert in_turn[: len(in_turn) // 2] == in_turn[len(in_turn) // 2 :]
    assert both[: len(both) // 2] != both[len(both) // 2 :]
    assert sorted(both) == sorted(2 * list(dict.fromkeys(both)))
    firsts = list(dict.fromkeys(both))
    assert [key[0] for key in firsts][:: len(firsts) - 1] == [5, 6]


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": 0},
        {"fork_rate": 1.5},
        {"loss_rate": -0.1},
        {"delay_max": -1},
        {"fork_blocks_max": SIMULATED.reorg_threshold + 1},
        {"blocks": 20, "deep_reorgs": 3},
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, int | float]) -> None:
    with pytest.raises(SimulationError):
        made(0, **options)
