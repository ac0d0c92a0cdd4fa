"""Recordings: the format, torn and damaged files, and a transport over one."""

from __future__ import annotations

import asyncio
import io
import os
import random
import resource
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from cardinal_streams.errors import RecordingError, TornRecording
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.message.messages import Record
from cardinal_streams.produce.producer import Producer, ReorgChannel
from cardinal_streams.transports import file_transport
from cardinal_streams.transports.file_transport import (
    MAGIC,
    FileTransport,
    Recorder,
    encode_deliveries,
    read_deliveries,
    replay,
)
from cardinal_streams.transports.transport import Delivery, Transport, partition_of, reorg_topic
from tests.cardinal_streams.helpers import TOPICS, hash_of, payload
from tests.cardinal_streams.shell import Application
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, chain, producer_of

DELIVERIES = st.lists(
    st.builds(
        Delivery,
        st.sampled_from(["default", "ta", "t:é"]),
        st.integers(0, 3),
        st.integers(0, (1 << 64) - 1),
        st.binary(max_size=40),
        st.binary(max_size=300),
    ),
    max_size=12,
)
FOUR = [Delivery("t", index % 2, index // 2, b"key%d" % index, b"value" * index) for index in range(4)]


class Pieces(io.RawIOBase):
    """A file of which one read gives at most `chunk` bytes."""

    def __init__(self, data: bytes, chunk: int) -> None:
        self._data, self._chunk = io.BytesIO(data), chunk

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        piece = self._data.read(min(len(into), self._chunk))
        into[: len(piece)] = piece
        return len(piece)


def read(data: bytes, chunk: int = 1 << 20) -> list[Delivery]:
    return list(read_deliveries(io.BufferedReader(Pieces(data, chunk))))


def test_the_layout() -> None:
    body = b"\x01t\x02\x03\x01k\x02vv"
    record = struct.pack("<II", len(body), zlib.crc32(body)) + body
    assert encode_deliveries([Delivery("t", 2, 3, b"k", b"vv")]) == record
    assert read(b"CARDREC\x01" + record) == [Delivery("t", 2, 3, b"k", b"vv")]


@given(DELIVERIES, st.integers(1, 50))
def test_what_is_written_is_read_again_whatever_the_pieces(deliveries: list[Delivery], chunk: int) -> None:
    assert read(MAGIC + encode_deliveries(deliveries), chunk) == deliveries


def test_every_cut_gives_a_prefix_and_says_so() -> None:
    data = MAGIC + encode_deliveries(FOUR)
    ends = [len(MAGIC) + len(encode_deliveries(FOUR[:count])) for count in range(5)]
    for size in range(len(data)):
        found: list[Delivery] = []
        if size in ends:
            found += read(data[:size])
        else:
            with pytest.raises(TornRecording) as caught:
                found.extend(read_deliveries(io.BytesIO(data[:size])))
            assert caught.value.offset == (ends[len(found)] if size > len(MAGIC) else 0)
        assert found == FOUR[: len(found)]


def test_every_changed_byte_is_found() -> None:
    data = MAGIC + encode_deliveries(FOUR)
    for at in range(len(data)):
        with pytest.raises(RecordingError):
            read(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])


def test_a_body_that_is_no_delivery_is_damage() -> None:
    body = b"\x01t\x02\x03\x01k\x02vv\x00"
    with pytest.raises(RecordingError, match="no delivery"):
        read(MAGIC + struct.pack("<II", len(body), zlib.crc32(body)) + body)


def test_a_delivery_that_is_too_large_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transport, "BODY_BYTES_MAX", 20)
    with pytest.raises(RecordingError, match="more than 20"):
        encode_deliveries([Delivery("t", 0, 0, b"key", bytes(20))])


@given(st.binary(max_size=100))
def test_any_bytes_are_deliveries_or_a_recording_error(data: bytes) -> None:
    found: list[Delivery] = []
    try:
        found = read(MAGIC + data)
    except RecordingError:
        return
    assert encode_deliveries(found) == data


class TestRecorder:
    def test_it_goes_on_where_it_ended(self, tmp_path: Path) -> None:
        for part in (FOUR[:2], FOUR[2:]):
            with Recorder(tmp_path / "r") as recorder:
                recorder.record(part)
        assert recorder.statistics().recorded == 2
        assert recorder.next_offsets == {"t:0": 2, "t:1": 2}
        assert list(replay(tmp_path / "r")) == FOUR

    def test_a_torn_file_loses_its_last_record_only(self, tmp_path: Path) -> None:
        path = tmp_path / "r"
        whole = MAGIC + encode_deliveries(FOUR)
        path.write_bytes(whole[:-3])
        with pytest.raises(TornRecording):
            list(replay(path))
        assert list(replay(path, torn_ok=True)) == FOUR[:3]
        with Recorder(path) as recorder:
            assert recorder.statistics().cut_bytes == len(encode_deliveries(FOUR[3:])) - 3
            recorder.record(FOUR[3:])
        assert path.read_bytes() == whole

    def test_what_a_torn_record_left_is_gone_also_when_less_is_written(self, tmp_path: Path) -> None:
        path = tmp_path / "r"
        path.write_bytes((MAGIC + encode_deliveries([Delivery("t", 0, 0, b"k", bytes(500))]))[:-1])
        with Recorder(path) as recorder:
            recorder.record(FOUR[:1])
        assert list(replay(path)) == FOUR[:1]

    @pytest.mark.parametrize("size", [0, 1, 7])
    def test_a_file_torn_within_the_magic(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / "r"
        path.write_bytes(MAGIC[:size])
        with Recorder(path) as recorder:
            recorder.record(FOUR)
        assert list(replay(path)) == FOUR

    def test_a_damaged_file_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "r"
        data = bytearray(MAGIC + encode_deliveries(FOUR))
        data[20] ^= 1
        path.write_bytes(data)
        with pytest.raises(RecordingError):
            Recorder(path)
        assert path.read_bytes() == data

    def test_another_file_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "r"
        path.write_bytes(b"something else entirely")
        with pytest.raises(RecordingError, match="no recording"):
            Recorder(path)
        assert path.read_bytes() == b"something else entirely"

    def test_a_failed_write_closes_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_descriptor: int) -> None:
            raise OSError(28, "no space left on device")

        with Recorder(tmp_path / "r") as recorder:
            monkeypatch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="no space"):
                recorder.record(FOUR)
            with pytest.raises(RecordingError, match="closed"):
                recorder.record(FOUR)


class TestReplay:
    def test_topics_and_positions(self, tmp_path: Path) -> None:
        path = tmp_path / "r"
        with Recorder(path) as recorder:
            recorder.record([*FOUR, Delivery("u", 0, 0, b"k", b"")])
        assert list(replay(path, ["u"])) == [Delivery("u", 0, 0, b"k", b"")]
        assert list(replay(path, ["t"], {"t:0": 1, "t:1": 2})) == [FOUR[2]]


async def test_a_transport_over_a_file(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "r", partitions=3)
    interface: Transport = transport
    producer = Producer("default", TOPICS)
    sent: list[Record] = []
    for number in range(1, 30):
        outgoing = producer.add_block(payload(str(number), str(number - 1), number, updates={"a/1": b"1", "q/1": b"2"}))
        sent += [record for records in outgoing.values() for record in records]
        await interface.send(outgoing)
    channel = reorg_topic("default", hash_of("a"))
    await interface.send({channel: [Record(b"k%d" % number, b"") for number in range(9)]})
    transport.close()

    async with interface.subscribe(["default", "ta", "tq"], {}) as receiver:
        found = list(await receiver.receive_some())
        assert await receiver.receive_some() == []
    assert [Record(each.key, each.value) for each in found] == sent
    assert {each.partition for each in found} == {0, 1, 2}
    assert all(each.partition == partition_of(each.key, 3) for each in found)
    for source in {each.source for each in found}:
        offsets = [each.offset for each in found if each.source == source]
        assert offsets == list(range(len(offsets)))

    async with interface.subscribe([channel], {f"{channel}:0": 4}) as receiver:
        assert [each.offset for each in await receiver.receive_some()] == [4, 5, 6, 7, 8]


def test_it_runs_under_asyncio_too(tmp_path: Path) -> None:
    async def main() -> list[Delivery]:
        transport = FileTransport(tmp_path / "r")
        await transport.send({"t": [Record(b"k", b"v")]})
        transport.close()
        async with transport.subscribe(["t"], {}) as receiver:
            return list(await receiver.receive_some())

    assert asyncio.run(main()) == [Delivery("t", 0, 0, b"k", b"v")]


async def test_a_reorg_beyond_the_threshold_through_a_file(tmp_path: Path) -> None:
    """Produced to the file, and consumed from it: the normal topics, and the channel once it is announced."""
    transport = FileTransport(tmp_path / "r", partitions=4)
    producer = producer_of()
    old, new = chain("o", "g", 1, 10), chain("n", "o2", 3, 9, bonus=5)
    for block in old:
        await transport.send(producer.add_block(block))
        for id_ in block.sub_batches.values():
            await transport.send(producer.send_sub_batch(block.hash, id_))
    reorg = ReorgChannel(producer, old[1].hash, 2, 100)
    await transport.send(reorg.begin())
    for block in new:
        await transport.send({reorg.topic: reorg.add_block(block)})
        for id_ in block.sub_batches.values():
            await transport.send({reorg.topic: reorg.send_sub_batch(block.hash, id_)})
    await transport.send({reorg.topic: reorg.complete()})
    transport.close()

    consumer, application = ChainConsumer(reorg_threshold=4, checkpoint=GENESIS), Application(GENESIS_HASH)
    async with transport.subscribe(["default", "ta", "tb", "tq"], {}) as receiver:
        while deliveries := await receiver.receive_some():
            for each in deliveries:
                application.take(consumer.receive(each.key, each.value, each.source, each.offset))
    (ancestor,) = consumer.feeds.channels
    async with transport.subscribe([reorg_topic("default", ancestor)], {}) as receiver:
        while deliveries := await receiver.receive_some():
            for each in deliveries:
                application.take(consumer.receive_reorg(ancestor, each.key, each.value, each.source, each.offset))
    assert application.hashes == [GENESIS_HASH, *(block.hash for block in (*old[:2], *new))]
    assert application.reverts == 1


async def test_many_senders_at_once_share_the_file(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "r")
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(transport.send, {"t": [Record(b"%d" % number, b"")]})
    transport.close()
    found = list(replay(tmp_path / "r"))
    assert [each.offset for each in found] == list(range(20))
    assert sorted(int(each.key) for each in found) == list(range(20))


async def test_a_transport_sends_again_after_a_full_disk(tmp_path: Path) -> None:
    """Claim: a send that found no room may be repeated with the same transport. Method: a limit on the size of files
    cuts a record off in the middle, and is lifted."""
    transport = FileTransport(tmp_path / "r")
    await transport.send({"t": [Record(b"first", b"")]})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "r").stat().st_size + 10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            await transport.send({"t": [Record(b"second", b"x" * 100)]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await transport.send({"t": [Record(b"second", b"x" * 100)]})
    transport.close()
    assert [(each.offset, each.key) for each in replay(tmp_path / "r")] == [(0, b"first"), (1, b"second")]


async def test_two_transports_do_not_write_over_each_others_records(tmp_path: Path) -> None:
    """Claim: what one writer of a recording confirmed stays. Method: another one, as of a second program, begins
    meanwhile, and is refused until the first one ends; one that only asks for the ends keeps nobody from writing."""
    reader, one, two = (FileTransport(tmp_path / "r") for _ in range(3))
    assert await reader.ends(["t"]) == {}
    await one.send({"t": [Record(b"one", b"")]})
    with pytest.raises(RecordingError, match="another program writes"):
        await two.send({"t": [Record(b"two", b"")]})
    await one.send({"t": [Record(b"more", b"")]})
    assert await reader.ends(["t"]) == {"t:0": 2}
    one.close()
    await two.send({"t": [Record(b"two", b"")]})
    two.close()
    assert [each.key for each in replay(tmp_path / "r")] == [b"one", b"more", b"two"]


def test_a_transport_needs_a_partition(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        FileTransport(tmp_path / "r", partitions=0)


def test_keys_are_spread_over_partitions() -> None:
    randomness = random.Random(1)
    found = [partition_of(randomness.randbytes(33), 4) for _ in range(4_000)]
    assert all(900 < found.count(partition) < 1_100 for partition in range(4))
