"""Real Ethereum batches through the producer, four partitions of a recording or of a running node, duplication and
disorder, and the consumer: they come out equal. The data are beside the repository; without them this is skipped."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from cardinal_streams.consume.consuming import consume_unordered
from cardinal_streams.evm import evm
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import ChainUpdate, Checkpoint, Start
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import Record, decode
from cardinal_streams.payload import CompleteBatch, Payload, format_payloads, parse_payloads
from cardinal_streams.transports.file_transport import FileTransport, replay
from cardinal_streams.transports.transport import Delivery
from tests.cardinal_streams.chains import served_transport
from tests.cardinal_streams.helpers import completed

ETHEREUM = evm()
# The first of 21 blocks, each the next one's parent.
FIRST_OF_A_ROW = 14_000_001


@pytest.fixture(scope="module")
def payloads(shared_dir: Path) -> list[Payload]:
    text = gzip.decompress((shared_dir / "data" / "cardinal" / "ethereum_batches.json.gz").read_bytes())
    found = parse_payloads(text)
    assert parse_payloads(format_payloads(found)) == found
    return found


@pytest.fixture
async def deliveries(payloads: list[Payload], tmp_path: Path) -> list[Delivery]:
    """What two redundant producers recorded, with every fifth message again, in a random order of all."""
    transport = FileTransport(tmp_path / "ethereum", partitions=4)
    for _ in range(2):
        producer = ETHEREUM.producer()
        for payload in payloads:
            await transport.send(producer.add_block(payload))
    transport.close()
    found = list(replay(tmp_path / "ethereum"))
    found += found[::5]
    random.Random(8).shuffle(found)
    return found


def assert_equal(batch: CompleteBatch, payload: Payload) -> None:
    assert (batch.hash, batch.number, batch.parent) == (payload.hash, payload.number, payload.parent)
    assert batch.weight == payload.weight
    assert batch.values == payload.updates
    assert batch.deletes == payload.deletes


async def test_all_blocks_come_out_once_and_equal(payloads: list[Payload], deliveries: list[Delivery]) -> None:
    machine = Reassembler()
    batches: list[CompleteBatch] = []
    for each in deliveries:
        batches += completed(machine.receive(decode(each.key, each.value), each.source, each.offset))
    machine.check()
    by_hash = {payload.hash: payload for payload in payloads}
    assert len(payloads) == 43
    assert sum(len(payload.updates) for payload in payloads) == 23_174
    assert sorted(batch.hash for batch in batches) == sorted(by_hash)
    for batch in batches:
        assert_equal(batch, by_hash[batch.hash])
    assert machine.statistics().incomplete == 0
    assert machine.statistics().refused == 0


async def test_the_row_of_blocks_comes_out_in_order(payloads: list[Payload], deliveries: list[Delivery]) -> None:
    by_number = {payload.number: payload for payload in payloads}
    before = by_number[FIRST_OF_A_ROW - 1]
    start = Start(before.hash, before.number, before.weight)
    consumer = ChainConsumer(reorg_threshold=128, checkpoint=Checkpoint(start=start))
    chain: list[CompleteBatch] = []
    for each in deliveries:
        for event in consumer.receive(each.key, each.value, each.source, each.offset):
            assert isinstance(event, ChainUpdate)
            assert event.removed == ()
            chain += event.added
            consumer.done(event)
    consumer.check()
    assert [batch.number for batch in chain] == list(range(FIRST_OF_A_ROW, FIRST_OF_A_ROW + len(chain)))
    assert len(chain) == 21
    for batch in chain:
        assert_equal(batch, by_number[batch.number])


@pytest.mark.slow
async def test_through_a_running_node(payloads: list[Payload], tmp_path: Path) -> None:
    """Goal: all 43 blocks come out once and equal. Method: every message, and every fifth again, is pushed in a random
    order; four partitions for each of six topics."""
    producer = ETHEREUM.producer()
    records = [
        (topic, each) for payload in payloads for topic, made in producer.add_block(payload).items() for each in made
    ]
    records += records[::5]
    random.Random(9).shuffle(records)
    outgoing: dict[str, list[Record]] = {}
    for topic, record in records:
        outgoing.setdefault(topic, []).append(record)
    found: dict[bytes, CompleteBatch] = {}
    async with served_transport(tmp_path, partitions=4) as (_, transport):
        await transport.send(outgoing)
        async with consume_unordered(ETHEREUM, transport, stop_at_end=True) as arrivals:
            async for arrival in arrivals:
                assert arrival.batch.hash not in found
                found[arrival.batch.hash] = arrival.batch
                arrival.done()
            assert arrivals.statistics().reassembly.messages == len(records)
            assert len({source for source in arrivals.checkpoint().position if source.startswith("evm-1-logs")}) == 4
    assert len(found) == len(payloads)
    for payload in payloads:
        assert_equal(found[payload.hash], payload)
