"""Bounds of memory: over a log they cost time, and never a block. What a bound drops is read again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cardinal_streams.application import Application
from cardinal_streams.consume.checkpoints import CheckpointStore, FileCheckpoints
from cardinal_streams.consume.consuming import consume, consume_unordered
from cardinal_streams.limits import ChainLimits, ConsumerLimits, ReassemblyLimits
from cardinal_streams.machines.events import Checkpoint, Dropped, Evicted
from cardinal_streams.message.messages import Record
from cardinal_streams.produce.simulation_machine import GENESIS, SIMULATED, Simulation, SimulationOptions, simulate
from cardinal_streams.transports.file_transport import FileTransport
from tests.cardinal_streams.chains import EVERYTHING, Ledger, values_of
from tests.cardinal_streams.chains import blocks_of as chain_of
from tests.cardinal_streams.world import GENESIS as LETTERS_GENESIS
from tests.cardinal_streams.world import GENESIS_HASH

TIGHT = {
    "waiting_max": ConsumerLimits(chain=ChainLimits(waiting_max=12)),
    "waiting_bytes_max": ConsumerLimits(chain=ChainLimits(waiting_bytes_max=15_000)),
    "incomplete_max": ConsumerLimits(reassembly=ReassemblyLimits(incomplete_max=6)),
    "incomplete_bytes_max": ConsumerLimits(reassembly=ReassemblyLimits(incomplete_bytes_max=8_000)),
    "idle_messages_max": ConsumerLimits(reassembly=ReassemblyLimits(idle_messages_max=40)),
    "held_max": ConsumerLimits(held_max=3),
    "finished_max": ConsumerLimits(reassembly=ReassemblyLimits(finished_max=32), chain=ChainLimits(remembered_max=32)),
    "all": ConsumerLimits(
        reassembly=ReassemblyLimits(incomplete_max=12, incomplete_bytes_max=16_000, idle_messages_max=60),
        chain=ChainLimits(waiting_max=24, waiting_bytes_max=35_000),
        held_max=3,
    ),
}


def tight(application: Application, limits: ConsumerLimits) -> Application:
    return Application(
        application.name,
        application.default_topic,
        application.prefixes,
        reorg_threshold=application.reorg_threshold,
        limits=limits,
    )


async def lived(
    application: Application,
    transport: FileTransport,
    ledger: Ledger,
    first: Checkpoint,
    *,
    store: CheckpointStore | None = None,
    updates_max: int | None = None,
    on_event: Any = None,
) -> bool:
    """One life of a consumer: it is killed after `updates_max` updates, without a last save. Whether it came to the
    end."""
    known = first if store is None else await store.load() or first
    manager = consume(
        application, transport, store, checkpoint=known, save_interval_s=0, stop_at_end=True, on_event=on_event
    )
    updates = await manager.__aenter__()
    try:
        left = updates_max
        while left is None or left:
            try:
                update = await anext(updates)
            except StopAsyncIteration:
                updates.machine.check()
                return True
            ledger.repeat(update)
            update.done()
            left = None if left is None else left - 1
        raise KeyboardInterrupt
    except KeyboardInterrupt as killed:
        await manager.__aexit__(KeyboardInterrupt, killed, None)
        return False
    finally:
        if left is None or left:
            await manager.__aexit__(None, None, None)


def made(seed: int, deep_reorgs: int) -> Simulation:
    options = SimulationOptions(
        blocks=80, deep_reorgs=deep_reorgs, producers=1 + seed % 2, delay_max=seed * 60, loss_rate=0.2, fork_rate=0.4
    )
    return simulate(random.Random(seed), options)


@pytest.mark.parametrize(("seed", "kills"), [(2, False), (3, True)])
@pytest.mark.parametrize("bound", TIGHT)
async def test_a_simulation_ends_on_its_chain_whatever_is_bounded(
    seed: int, bound: str, kills: bool, tmp_path: Path
) -> None:
    """Goal: a consumer with bounds far below what the disorder needs has the chain and contents that the simulation
    promises. Method: each bound alone, all at once; lives of a few updates each, or one life."""
    simulation = made(seed, seed % 3)
    application = tight(SIMULATED, TIGHT[bound])
    transport = FileTransport(tmp_path / "recording", partitions=1 + seed % 3)
    await transport.send_in_order([(step.topic, step.record) for step in simulation.steps])
    ledger, store = Ledger(GENESIS.hash), FileCheckpoints(tmp_path / "position")
    randomness, lives = random.Random(seed), 1
    while not await lived(
        application,
        transport,
        ledger,
        Checkpoint(start=GENESIS),
        store=store if kills else None,
        updates_max=randomness.randint(3, 25) if kills else None,
    ):
        lives += 1
        assert lives < 100
    transport.close()
    assert ledger.hashes[1:] == [block.hash for block in simulation.chain]
    for block in simulation.chain:
        assert ledger.batches[block.hash].values == simulation.contents[block.hash]


@pytest.mark.parametrize("bound", ["incomplete_max", "incomplete_bytes_max", "idle_messages_max"])
async def test_unordered_every_block_comes_whatever_is_bounded(bound: str, tmp_path: Path) -> None:
    simulation = made(3, 2)
    transport = await recorded(tmp_path / "recording", [(step.topic, step.record) for step in simulation.steps])
    found = set()
    async with consume_unordered(tight(SIMULATED, TIGHT[bound]), transport, stop_at_end=True) as arrivals:
        async for arrival in arrivals:
            assert arrival.batch.values == simulation.contents[arrival.batch.hash]
            found.add(arrival.batch.hash)
            arrival.done()
    transport.close()
    assert len(found) == len(simulation.chain) + simulation.blocks_off_chain


async def recorded(path: Path, rows: Sequence[tuple[str, Record]]) -> FileTransport:
    transport = FileTransport(path)
    await transport.send_in_order(rows)
    return transport


def rows_of(count: int) -> tuple[list[Any], list[list[tuple[str, Record]]]]:
    """A chain, and the messages of each block with their topics."""
    blocks = chain_of("o", "g", 1, count)
    producer = EVERYTHING.producer()
    rows = []
    for block in blocks:
        made = [producer.add_block(block.payload)]
        made += [
            producer.send_sub_batch(block.payload.hash, id_, each.deletes, each.updates)
            for id_, each in block.sub_batches.items()
        ]
        rows.append([(topic, record) for outgoing in made for topic, records in outgoing.items() for record in records])
    return blocks, rows


@pytest.mark.slow
async def test_a_message_that_comes_after_more_blocks_than_may_wait(tmp_path: Path) -> None:
    """Goal: one message that comes 4,200 blocks late stops no consumer with the default bounds, and is no news."""
    blocks, rows = rows_of(4_300)
    rows[4_250].append(rows[9].pop(0))
    transport = await recorded(tmp_path / "recording", [row for of_block in rows for row in of_block])
    ledger, events = Ledger(GENESIS_HASH), list[Any]()
    assert await lived(EVERYTHING, transport, ledger, LETTERS_GENESIS, on_event=events.append)
    transport.close()
    assert ledger.hashes[1:] == [block.payload.hash for block in blocks]
    assert ledger.batches[blocks[9].payload.hash].values == values_of(blocks[9])
    assert not [event for event in events if isinstance(event, (Dropped, Evicted))]
