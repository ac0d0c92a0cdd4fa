"""Goal: silver/batches and silver/updates have what the consumer of Cardinal Streams delivers, in every row.

Method: recordings of simulated chains and of real Ethereum blocks. The consumer reads the recording; the pipeline reads
an export's folder with the same messages.
"""

from __future__ import annotations

import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

from cardinal_streams.application import Application, Prefix
from cardinal_streams.consume.consuming import consume, consume_unordered
from cardinal_streams.evm import evm
from cardinal_streams.machines.events import Checkpoint
from cardinal_streams.payload import parse_payloads
from cardinal_streams.produce.simulation_machine import GENESIS, SIMULATED, SentRecord, SimulationOptions, simulate
from cardinal_streams.transports.file_transport import FileTransport, replay
from cardinal_streams.transports.transport import Delivery, is_reorg_topic
from spark_export.pipeline.run import Pipeline
from spark_export.pipeline.silver_cardinal import Topics
from spark_export.pipeline.step import Settings
from tests.cardinal_streams.chains import Ledger
from tests.spark_export.pipeline.lake import Lake, Row, read_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Update = tuple[str, bytes | None]


def streams_of(deliveries: Iterable[Delivery], prefix: str = "") -> dict[str, list[Row]]:
    """The messages of each stream, in the order of recording."""
    streams: dict[str, list[Row]] = defaultdict(list)
    for at, each in enumerate(deliveries):
        streams[prefix + each.topic].append((each.partition, each.offset, at, each.key, [], each.value))
    return streams


def contents(values: dict[str, bytes], deletes: Iterable[str]) -> Counter[Update]:
    return Counter([*values.items(), *((key, None) for key in deletes)])


def updates_in(tables: Path, chain: str) -> dict[bytes, Counter[Update]]:
    found: dict[bytes, Counter[Update]] = defaultdict(Counter)
    for row in read_rows(tables, "silver/updates"):
        if row["chain"] == chain:
            found[row["hash"]][row["key"], row["value"]] += 1
    return found


def states_in(tables: Path, chain: str) -> dict[bytes, str]:
    rows = [row for row in read_rows(tables, "silver/batches") if row["chain"] == chain]
    found = {row["hash"]: row["state"] for row in rows}
    assert len(found) == len(rows), "a block has two rows"
    assert all(row["reorged"] == (row["state"] == "reorged") for row in rows)
    return found


async def consumer_of(
    application: Application, transport: FileTransport
) -> tuple[list[bytes], dict[bytes, Counter[Update]]]:
    """The chain on which a consumer ends that begins at genesis, and the contents of every block that is complete."""
    ledger = Ledger(GENESIS.hash)
    async with consume(application, transport, checkpoint=Checkpoint(start=GENESIS), stop_at_end=True) as updates:
        async for update in updates:
            ledger.apply(update)
            update.done()
    found: dict[bytes, Counter[Update]] = {}
    async with consume_unordered(application, transport, stop_at_end=True) as arrivals:
        async for arrival in arrivals:
            found[arrival.batch.hash] = contents(arrival.batch.values, arrival.batch.deletes)
            arrival.done()
    for hash_, batch in ledger.batches.items():
        found[hash_] = contents(batch.values, batch.deletes)
    return ledger.hashes[1:], found


def simulated(seed: int, losses: int) -> list[SentRecord]:
    """A simulation's messages; of some blocks a message never comes: a Batch, or an item or header of a sub-batch.

    Not of a reorg's blocks: a consumer leaves the old chain when the reorg is announced, also if its blocks never come.
    """
    randomness = random.Random(seed)
    options = SimulationOptions(
        blocks=60, deep_reorgs=seed % 4, producers=1 + seed % 3, delay_max=seed * 7, loss_rate=0.2, fork_rate=0.4
    )
    steps = simulate(randomness, options).steps
    in_channels = {step.record.key for step in steps if is_reorg_topic(step.topic)}
    keys = sorted({step.record.key for step in steps if step.record.key[0] <= 2} - in_channels)
    lost = set(randomness.sample(keys, losses))
    return [step for step in steps if step.record.key not in lost]


@pytest.mark.parametrize("seed", range(4))
async def test_every_row_is_as_the_consumer_has_it(session: Any, seed: int, tmp_path: Path) -> None:
    """Two chains in one table, with the same names of topics in two namespaces; one of them lost messages."""
    lake = Lake(tmp_path / "lake")
    expected = {}
    for chain, losses in (("one", 0), ("two", seed % 4)):
        transport = FileTransport(tmp_path / chain, partitions=1 + seed % 4)
        # Of two heaviest branches of equal weight, the first complete one wins, which a table need not see in the same
        # order. No simulation of these seeds ends with two.
        steps = simulated(seed + (200 if losses else 0), losses)
        await transport.send_in_order([(step.topic, step.record) for step in steps])
        expected[chain] = await consumer_of(SIMULATED, transport)
        transport.close()
        lake.add_run(streams_of(replay(tmp_path / chain), f"{chain}."))
    # Behind a block that lost a message, more blocks can follow than before it: the start says which of them count.
    starts = dict.fromkeys(expected, GENESIS.hash)
    Pipeline(lake.table, tmp_path / "out", Settings(Topics(r"(one|two)\.sim-.*"), starts=starts)).run(session)
    for chain, (canonical, blocks) in expected.items():
        states = states_in(tmp_path / "out", chain)
        assert {hash_ for hash_, state in states.items() if state == "canonical"} == set(canonical)
        assert {hash_ for hash_, state in states.items() if state != "incomplete"} == set(blocks)
        assert updates_in(tmp_path / "out", chain) == {hash_: each for hash_, each in blocks.items() if each}
        if chain == "one":
            assert set(states.values()) <= {"canonical", "reorged"}, "nothing is lost, so nothing waits"
    for row in read_rows(tmp_path / "out", "silver/updates"):
        state = states_in(tmp_path / "out", row["chain"])[row["hash"]] if seed == 0 else None
        assert state is None or (row["canonical"], row["reorged"]) == (state == "canonical", state == "reorged")
        assert row["number"] is not None


async def test_deep_reorgs_leave_no_orphan_unmarked(session: Any, tmp_path: Path) -> None:
    """A reorg's channel is a stream of its own; its blocks and the removed ones are compared all the same."""
    simulation = simulate(random.Random(5), SimulationOptions(blocks=120, deep_reorgs=3, fork_rate=0.4))
    transport = FileTransport(tmp_path / "recording", partitions=2)
    await transport.send_in_order([(step.topic, step.record) for step in simulation.steps])
    transport.close()
    lake = Lake(tmp_path / "lake")
    streams = streams_of(replay(tmp_path / "recording"))
    assert sum(is_reorg_topic(stream) for stream in streams) == 3
    lake.add_run(streams)
    Pipeline(lake.table, tmp_path / "out", Settings(Topics("sim-.*"))).run(session)
    tables = tmp_path / "out"
    states = Counter(states_in(tables, "sim-.*").values())
    assert states == {"canonical": 120, "reorged": simulation.blocks_off_chain}
    reorgs = read_rows(tables, "gold/reorgs")
    assert sum(row["blocks"] for row in reorgs) == simulation.blocks_off_chain
    assert max(row["depth"] for row in reorgs) == SIMULATED.reorg_threshold + 2


async def test_real_ethereum_blocks(session: Any, shared_dir: Path, tmp_path: Path) -> None:
    """Updates travel on other topics than Batches, in other partitions; every fifth message comes twice."""
    text = gzip.decompress((shared_dir / "data" / "cardinal" / "ethereum_batches.json.gz").read_bytes())
    payloads = parse_payloads(text)
    transport = FileTransport(tmp_path / "ethereum", partitions=4)
    for _ in range(2):
        producer = evm().producer()
        for payload in payloads:
            await transport.send(producer.add_block(payload))
    transport.close()
    deliveries = list(replay(tmp_path / "ethereum"))
    lake = Lake(tmp_path / "lake")
    lake.add_run(streams_of(deliveries))
    Pipeline(lake.table, tmp_path / "out", Settings(Topics("(evm-1)-.*"))).run(session)
    tables = tmp_path / "out"
    expected = {each.hash: contents(dict(each.updates), each.deletes) for each in payloads}
    assert updates_in(tables, "evm-1") == {hash_: each for hash_, each in expected.items() if each}
    rows = read_rows(tables, "silver/updates")
    assert len(rows) == 23_174 + sum(len(each.deletes) for each in payloads)
    by_hash = {each.hash: each for each in payloads}
    assert {(row["hash"], row["number"]) for row in rows} <= {(each.hash, each.number) for each in payloads}
    batches = {row["hash"]: row for row in read_rows(tables, "silver/batches")}
    for hash_, row in batches.items():
        payload = by_hash[hash_]
        assert (row["number"], row["parent"], int(row["weight"])) == (payload.number, payload.parent, payload.weight)
        assert (row["updates"], row["deletes"]) == (len(payload.updates), len(payload.deletes))
    assert len(batches) == 43
    canonical = {row["number"] for row in batches.values() if row["state"] == "canonical"}
    assert canonical == {0, 1}, "the blocks that a consumer has that begins at genesis"
    assert {row["state"] for row in batches.values()} == {"canonical", "waiting"}
    (start,) = (each.hash for each in payloads if each.number == 14_000_000)
    settings = Settings(Topics("(evm-1)-.*"), starts={"evm-1": start})
    Pipeline(lake.table, tmp_path / "out", settings).run(session, rebuild=True)
    rows = read_rows(tmp_path / "out", "silver/batches")
    canonical = {row["number"] for row in rows if row["state"] == "canonical"}
    assert canonical == set(range(14_000_000, 14_000_022)), "the blocks of a consumer that begins there, and the first"


async def test_deletes_and_a_key_that_is_set_and_deleted(session: Any, tmp_path: Path) -> None:
    application = Application("small", "d", (Prefix(pattern="a/", topic="t"),), reorg_threshold=4)
    transport = FileTransport(tmp_path / "small")
    producer = application.producer()
    from tests.cardinal_streams.helpers import payload

    whole = payload("b", "a", 1, updates={"a/1": b"v", "x": b"", "both": b"w"}, deletes={"a/2", "gone"})
    await transport.send(producer.add_block(whole))
    transport.close()
    lake = Lake(tmp_path / "lake")
    lake.add_run(streams_of(replay(tmp_path / "small")))
    Pipeline(lake.table, tmp_path / "out", Settings(Topics("[dt]"))).run(session)
    found: Any = {(row["key"], row["value"]) for row in read_rows(tmp_path / "out", "silver/updates")}
    assert found == {("a/1", b"v"), ("x", b""), ("both", b"w"), ("a/2", None), ("gone", None)}
