"""The transport over Kafka, against the mock cluster of librdkafka: real sockets and Kafka's own protocol, no JVM. It
makes each topic with four partitions when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from cardinal_streams.consume.checkpoints import FileCheckpoints
from cardinal_streams.consume.consuming import consume, consume_unordered
from cardinal_streams.errors import CheckpointError, TransportError
from cardinal_streams.produce.publishing import publish
from cardinal_streams.transports.kafka_transport import KafkaTransport
from cardinal_streams.transports.transport import reorg_topic
from tests.cardinal_streams.chains import AFTER, EVERYTHING, NEW, OLD, Ledger, hashes, values_of
from tests.cardinal_streams.helpers import payload
from tests.cardinal_streams.world import GENESIS

kafka: Any = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
PATIENCE_S = 60.0


@pytest.fixture
def servers() -> Iterator[str]:
    """The address of a mock cluster that lives as long as the client that began it."""
    cluster = kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 2})
    (broker,) = cluster.list_topics(timeout=PATIENCE_S).brokers.values()
    yield f"{broker.host}:{broker.port}"
    cluster.purge()


async def read_all(transport: KafkaTransport, ledger: Ledger, path: Path) -> int:
    """Consume up to the end; how many updates there were."""
    count = 0
    store = FileCheckpoints(path)
    known = await store.load()
    async with consume(EVERYTHING, transport, store, checkpoint=known or GENESIS, stop_at_end=True) as updates:
        async for update in updates:
            ledger.apply(update)
            update.done()
            count += 1
    return count


async def test_a_chain_and_a_reorg(servers: str, tmp_path: Path) -> None:
    ledger = Ledger()
    with trio.fail_after(PATIENCE_S):
        async with KafkaTransport(servers) as transport:
            async with publish(EVERYTHING, transport) as publisher:
                assert await publisher.send(OLD) == len(OLD)
                await read_all(transport, ledger, tmp_path / "position")
                assert ledger.hashes == hashes(OLD)
                async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                    await channel.send(NEW)
                await publisher.send(AFTER)
            await read_all(transport, ledger, tmp_path / "position")
            assert await read_all(transport, ledger, tmp_path / "position") == 0
            topic = reorg_topic("default", OLD[1].payload.hash)
            assert list(await transport.ends([topic])) == [f"{topic}:0"]
    assert ledger.hashes == hashes(OLD[:2], NEW, AFTER)
    assert ledger.reverts == 1
    for block in (*NEW, *AFTER):
        assert ledger.batches[block.payload.hash].values == values_of(block)


async def test_it_is_followed_and_a_second_producer_sends_nothing(servers: str) -> None:
    ledger = Ledger()
    with trio.fail_after(PATIENCE_S):
        async with (
            KafkaTransport(servers) as transport,
            publish(EVERYTHING, transport) as first,
            consume(EVERYTHING, transport, checkpoint=GENESIS) as updates,
        ):
            for at in range(0, len(OLD), 5):
                await first.send(OLD[at : at + 5])
                while ledger.hashes != hashes(OLD[: at + 5]):
                    update = await anext(updates)
                    ledger.apply(update)
                    update.done()
            async with KafkaTransport(servers) as other, publish(EVERYTHING, other) as second:
                assert await second.send(OLD) == 0


async def test_unordered_from_all_partitions(servers: str) -> None:
    with trio.fail_after(PATIENCE_S):
        async with KafkaTransport(servers) as transport:
            async with publish(EVERYTHING, transport, redundant=False) as publisher:
                await publisher.send(OLD)
            async with consume_unordered(EVERYTHING, transport, stop_at_end=True) as arrivals:
                found = []
                async for arrival in arrivals:
                    found.append(arrival.batch.hash)
                    arrival.done()
                position = arrivals.checkpoint().position
    assert sorted(found) == sorted(hashes(OLD)[1:])
    assert len({source for source in position if source.startswith("default:")}) > 1


async def test_deletes_have_empty_values(servers: str) -> None:
    """A null value, as the real producer sends it, is read as an empty one."""
    whole = payload("a", "g", 1, deletes={"a/1"})
    with trio.fail_after(PATIENCE_S):
        async with KafkaTransport(servers) as transport:
            outgoing = EVERYTHING.producer().add_block(whole)
            await transport.send({"default": outgoing["default"]})
            raw = kafka.Producer({"bootstrap.servers": servers, "log_level": 2})
            raw.produce("ta", None, outgoing["ta"][0].key)
            assert await trio.to_thread.run_sync(raw.flush, PATIENCE_S) == 0
            async with consume_unordered(EVERYTHING, transport, stop_at_end=True) as arrivals:
                assert (await anext(arrivals)).batch.deletes == {"a/1"}


async def test_a_topic_that_was_made_again_is_told(servers: str) -> None:
    with trio.fail_after(PATIENCE_S):
        async with KafkaTransport(servers) as transport:
            subscription = transport.subscribe(["ta"], {"ta:0": 5})
            with pytest.raises(TransportError, match="position of ta:0 is 5, and it ends at 0"):
                await subscription.__aenter__()


async def test_a_cluster_that_does_not_answer_is_told() -> None:
    settings = {"message.timeout.ms": 500, "log_level": 0}
    with trio.fail_after(PATIENCE_S):
        async with KafkaTransport("127.0.0.1:9", config=settings) as transport:
            with pytest.raises(TransportError, match=r"1 of 1 records were not confirmed.*Connection refused"):
                await transport.send({"ta": EVERYTHING.producer().add_block(payload("a", "g", 1))["default"]})


async def test_a_file_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path / "position")
    assert await store.load() is None
    await store.save(GENESIS)
    assert await store.load() == GENESIS
    assert [str(path) for path in await trio.Path(tmp_path).iterdir()] == [str(store.path)]
    store.path.write_bytes(b"{")
    with pytest.raises(CheckpointError):
        await store.load()
