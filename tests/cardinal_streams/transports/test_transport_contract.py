"""What every transport promises (`cardinal_streams.transports.transport`), on a file, a node and Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio

from cardinal_streams.message.messages import Record
from cardinal_streams.transports.file_transport import FileTransport
from cardinal_streams.transports.kafka_transport import KafkaTransport
from cardinal_streams.transports.transport import Delivery, Transport, reorg_topic, split_source
from tests.cardinal_streams.chains import served_transport
from tests.cardinal_streams.helpers import hash_of

Open: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Transport]]
CHANNEL = reorg_topic("default", hash_of("a"))
RECORDS = [Record(b"key %d" % number, b"value %d" % number) for number in range(100)]


@asynccontextmanager
async def over_file(path: Path) -> AsyncIterator[Transport]:
    transport = FileTransport(path / "recording", partitions=3)
    yield transport
    transport.close()


@asynccontextmanager
async def over_node(path: Path) -> AsyncIterator[Transport]:
    async with served_transport(path) as (_, transport):
        yield transport


@asynccontextmanager
async def over_kafka(path: Path) -> AsyncIterator[Transport]:
    import confluent_kafka

    cluster: Any = confluent_kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = cluster.list_topics(timeout=60).brokers.values()
    async with KafkaTransport(f"{broker.host}:{broker.port}", config={"log_level": 0}) as transport:
        yield transport
    cluster.purge()


WITHOUT_KAFKA = pytest.mark.skipif(find_spec("confluent_kafka") is None, reason="needs the extra kafka")


@pytest.fixture(params=[over_file, over_node, pytest.param(over_kafka, marks=WITHOUT_KAFKA)])
def opened(request: pytest.FixtureRequest) -> Open:
    opener: Open = request.param
    return opener


async def read(transport: Transport, topics: list[str], position: dict[str, int] | None = None) -> list[Delivery]:
    found: list[Delivery] = []
    with trio.fail_after(60):
        async with transport.subscribe(topics, position or {}, stop_at_end=True) as receiver:
            while page := await receiver.receive_some():
                found += page
    return found


async def test_all_of_several_topics_in_the_order_of_their_partitions(opened: Open, tmp_path: Path) -> None:
    async with opened(tmp_path) as transport:
        await transport.send({"a": RECORDS[:40], "b": RECORDS[40:], CHANNEL: RECORDS[:10]})
        found = await read(transport, ["a", "b", CHANNEL])
    by_topic = {topic: [each for each in found if each.topic == topic] for topic in ("a", "b", CHANNEL)}
    assert sorted((each.key, each.value) for each in by_topic["a"]) == sorted(RECORDS[:40])
    assert sorted((each.key, each.value) for each in by_topic["b"]) == sorted(RECORDS[40:])
    assert [Record(each.key, each.value) for each in by_topic[CHANNEL]] == RECORDS[:10]
    assert {each.partition for each in by_topic[CHANNEL]} == {0}
    assert len({each.partition for each in by_topic["a"]}) > 1
    for source in {each.source for each in found}:
        own = [each for each in found if each.source == source]
        assert [each.offset for each in own] == list(range(len(own)))
        sent = [each.key for each in RECORDS]
        assert [sent.index(each.key) for each in own] == sorted(sent.index(each.key) for each in own)


async def test_a_key_keeps_its_partition(opened: Open, tmp_path: Path) -> None:
    async with opened(tmp_path) as transport:
        for _ in range(2):
            await transport.send({"a": RECORDS})
        found = await read(transport, ["a"])
    places: dict[bytes, set[int]] = {}
    for each in found:
        places.setdefault(each.key, set()).add(each.partition)
    assert len(found) == 2 * len(RECORDS)
    assert all(len(partitions) == 1 for partitions in places.values())


async def test_each_partition_is_read_from_its_position(opened: Open, tmp_path: Path) -> None:
    async with opened(tmp_path) as transport:
        await transport.send({"a": RECORDS})
        ends = await transport.ends(["a"])
        position = {source: end // 2 for source, end in ends.items()}
        found = await read(transport, ["a"], position)
        assert await read(transport, ["a"], ends) == []
    assert sum(ends.values()) == len(RECORDS)
    assert len(found) == sum(end - end // 2 for end in ends.values())
    assert all(each.offset >= position[each.source] for each in found)
    assert {split_source(source)[0] for source in ends} == {"a"}


async def test_what_is_empty_stays_empty(opened: Open, tmp_path: Path) -> None:
    async with opened(tmp_path) as transport:
        await transport.send({})
        assert sum((await transport.ends(["a"])).values()) == 0
        assert await read(transport, ["a"]) == []
        await transport.send({"a": [Record(b"key", b"")]})
        (only,) = await read(transport, ["a"])
    assert (only.key, only.value, only.offset) == (b"key", b"", 0)
