"""Goal: partitions of a stream: which one a key belongs to, how they are made and added to, what is refused.

Method: written-down values of the documented hash; raw requests to a whole server under both names of the protocol.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

import bare
from ockam.protocol import ERROR, Protocol
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import UnexpectedAnswer, connect
from stream_client.core.payloads import created
from stream_service.names import partition_of, stream_address
from stream_service.protocol import CREATE_PARTITIONED, CREATE_PARTITIONS, CreatePartitions, PartitionCreated
from tests.support.served import neighbour, served
from tests.support.stream_peer import SERVICE

pytestmark = pytest.mark.usefixtures("each_database")

BOTH_NAMES = pytest.mark.parametrize(
    "protocol", [CREATE_PARTITIONED, CREATE_PARTITIONS], ids=lambda protocol: protocol.name
)
Partitioned = Protocol[CreatePartitions, PartitionCreated]

KEY_PARTITIONS = {
    b"": {1: 0, 2: 0, 3: 1, 4: 0, 7: 1, 12: 4, 4096: 3092, 2**40: 286034500628},
    b"a": {1: 0, 2: 0, 3: 1, 4: 2, 7: 4, 12: 10, 4096: 3530, 2**40: 80700227018},
    b"orders": {1: 0, 2: 0, 3: 1, 4: 0, 7: 6, 12: 4, 4096: 2276, 2**40: 940611602660},
    "schlüssel".encode(): {1: 0, 2: 1, 3: 0, 4: 3, 7: 3, 12: 3, 4096: 3851, 2**40: 610925780747},
    bytes(range(256)): {1: 0, 2: 0, 3: 0, 4: 2, 7: 4, 12: 6, 4096: 558, 2**40: 1004264788526},
}
"""The partition of each key among so many partitions. These must never change: stored keys stay where they are."""


@pytest.mark.parametrize("key", KEY_PARTITIONS)
def test_a_key_belongs_to_the_partition_that_is_written_down(key: bytes) -> None:
    for partitions, expected in KEY_PARTITIONS[key].items():
        assert partition_of(key, partitions) == expected


@given(st.binary(), st.integers(1, 2**40))
def test_the_hash_is_the_documented_one(key: bytes, partitions: int) -> None:
    """docs/wire.md, "Names"; written here a second time, from the documentation."""
    number = 0
    for byte in hashlib.sha256(key).digest()[:8]:
        number = number * 256 + byte
    assert partition_of(key, partitions) == number % partitions


def test_keys_spread_evenly() -> None:
    counts = Counter(partition_of(b"key %d" % number, 10) for number in range(10_000))
    assert set(counts) == set(range(10))
    assert max(counts.values()) < 1.2 * 1_000


@pytest.mark.parametrize("partitions", [0, -1])
def test_no_partition_of_none(partitions: int) -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partition_of(b"key", partitions)


async def test_our_client_pushes_by_key(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(server.address) as client:
        stream = await client.create_partitioned("by key", 4)
        for number in range(40):
            await stream.push(b"%d" % number, partition_key=b"%d" % (number % 10))
        for part in stream.partitions:
            numbers = [int(message.data) for message in await part.pull(0, 100)]
            assert numbers == sorted(numbers)
            assert {partition_of(b"%d" % (number % 10), 4) for number in numbers} <= {part.partition}


@BOTH_NAMES
@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
async def test_the_answer_comes_under_the_name_that_was_asked_from_each_partition(
    tmp_path: Path, protocol: Partitioned, wire: Wire
) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer(wire)
        inits = await peer.create_partitions("parted", 3, protocol)
    assert [init for init, _ in inits] == [PartitionCreated("parted", number) for number in range(3)]
    assert [route for _, route in inits] == [(stream_address("parted", number),) for number in range(3)]


@BOTH_NAMES
async def test_more_partitions_later_are_added_and_the_old_ones_keep_all(tmp_path: Path, protocol: Partitioned) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        first = await peer.create_partitions("parted", 2, protocol)
        for init, route in first:
            await peer.push(route, b"%d" % init.partition)
        more = await peer.create_partitions("parted", 5, protocol)
        assert more[:2] == first
        assert server.statistics().services.streams == 5
    async with served(tmp_path) as server:
        assert server.statistics().services.streams == 5
        peer = await server.peer()
        assert await peer.create_partitions("parted", 5, protocol) == more
        pages = [(await peer.pull(route, 0, 10)).messages for _, route in more]
        assert [[message.data for message in page] for page in pages] == [[b"0"], [b"1"], [], [], []]


@BOTH_NAMES
async def test_fewer_partitions_than_there_are_tell_of_the_first(tmp_path: Path, protocol: Partitioned) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        five = await peer.create_partitions("parted", 5, protocol)
        assert await peer.create_partitions("parted", 2, protocol) == five[:2]
        assert server.statistics().services.streams == 5


@BOTH_NAMES
async def test_partitions_without_a_name_share_one_generated_name(tmp_path: Path, protocol: Partitioned) -> None:
    async with served(tmp_path) as server:
        inits = await (await server.peer()).create_partitions(None, 3, protocol)
    (name,) = {init.stream_name for init, _ in inits}
    assert name.startswith("generated_")


@BOTH_NAMES
@pytest.mark.parametrize("partitions", [0, 4_097, 2**31, 2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("name", ["parted", None])
async def test_none_and_too_many_are_refused(
    tmp_path: Path, protocol: Partitioned, partitions: int, name: str | None
) -> None:
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            peer = await server.peer()
            reason = await peer.refused(SERVICE, protocol.encode_request(CreatePartitions(name, partitions)))
            assert reason == f"Invalid request: {partitions} partitions; a stream has 1 to 4096"
            assert server.statistics().services.streams == 1
            assert server.statistics().services.refused == 1
    (line,) = [line for line in logs if line["event"] == "request_refused"]
    assert f"{partitions} partitions" in line["reason"]


async def test_the_node_serves_no_more_streams_than_it_is_allowed(tmp_path: Path) -> None:
    async with served(tmp_path, streams_max=5) as server:
        peer = await server.peer()
        inits = await peer.create_partitions("parted", 4)
        reason = await peer.refused(SERVICE, CREATE_PARTITIONED.encode_request(CreatePartitions("parted", 6)))
        assert reason == "Invalid request: this node serves at most 5 streams"
        assert await peer.create_partitions("parted", 4) == inits
        assert len(await peer.create_partitions("parted", 5)) == 5
        assert server.statistics().services.streams == 5


async def test_creates_of_one_stream_at_the_same_time_reserve_its_partitions_once(tmp_path: Path) -> None:
    """Thirty clients make the same stream of 90 partitions, where the node has room for 100."""
    limits = {"identity_streams_per_hour": 100, "identity_limits_loopback": True}
    async with served(tmp_path, streams_max=100, **limits) as server:
        peer = await server.peer()
        request = peer.frame(SERVICE, CREATE_PARTITIONED.encode_request(CreatePartitions("parted", 90)))
        another = peer.frame(SERVICE, CREATE_PARTITIONED.encode_request(CreatePartitions("too much", 11)))
        await peer.stream.send_all(request * 30 + another)
        answers = [(await peer.receive()).payload for _ in range(30 * 90 + 1)]
        made = Counter(CREATE_PARTITIONED.decode_response(each) for each in answers if not ERROR.is_in(each))
        assert made == {PartitionCreated("parted", partition): 30 for partition in range(90)}
        (reason,) = [ERROR.decode_response(each).reason for each in answers if ERROR.is_in(each)]
        assert reason == "Invalid request: this node serves at most 100 streams"
        # Nothing stays reserved, so that the node has room for ten more, and no limit of the sender is used up.
        assert len(await peer.create_partitions("more", 10)) == 10
        assert server.statistics().services.streams == 100


async def test_bytes_behind_a_create_are_ignored(tmp_path: Path) -> None:
    """specs/stream_service.md, "Creating a stream": the payload may contain some additional information."""
    async with served(tmp_path) as server:
        peer = await server.peer()
        for name in (b"stream_create", b"stream_create_partitioned", b"stream_create_partitions"):
            partitions = b"" if name == b"stream_create" else b"\x01"
            fields = b"\x01\x05other" + partitions
            for body, behind in ((fields + b"more\xff", b""), (fields, b"\x00more"), (fields + b"m" * 300, b"m")):
                size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 127 | 128, len(body) >> 7])
                answer = await peer.ask(SERVICE, bytes([len(name)]) + name + size + body + behind)
                assert answer.return_route == (stream_address("other", 0),)
                # Our own answer has nothing behind its fields.
                assert answer.payload == bytes([len(name)]) + name + bytes([6 + len(partitions)]) + b"\x05other" + (
                    b"\x00" if partitions else b""
                )


@pytest.mark.parametrize("behind", [b"more", b"\x00" * 300])
def test_bytes_behind_an_init_are_ignored(behind: bytes) -> None:
    """As a service that adds information about the stream would send it."""
    for protocol, fields in (("stream_create", b"\x01s"), ("stream_create_partitioned", b"\x01s\x02")):
        body = fields + behind
        payload = bare.encode(protocol, str) + bare.encode(body, bytes)
        assert created(payload) == ("s", 2 * (protocol != "stream_create"))
        with pytest.raises(UnexpectedAnswer):
            created(bare.encode(protocol, str) + bare.encode(fields[:-1], bytes))
