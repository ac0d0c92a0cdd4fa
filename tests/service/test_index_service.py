"""Goal: the index service keeps, per consumer, stream and partition, the highest index ever saved, and tells it.

Method: raw requests to a whole server; a property against a dict of maxima, with restarts in between.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from index_service.extensions import LEASE, LeaseRequest
from index_service.limits import INDEX_MAX, PARTITION_MAX, TEXT_BYTES_MAX
from index_service.protocol import (
    INDEX,
    INDEX_PARTITIONED,
    PARTITIONED_BODY,
    GetIndex,
    GetPartitionIndex,
    SaveIndex,
    SavePartitionIndex,
)
from index_service.worker import SERVICE_ADDRESSES
from ockam.actors.address import local
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import InvalidArgument, SavedIndexes, connect
from tests.support.examples import examples
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import INDEX_SERVICE, StreamPeer

pytestmark = pytest.mark.usefixtures("each_database")


class Request(msgspec.Struct, frozen=True):
    """One request to the service. form: "plain", "plain name" with a partition, or "partitioned". index None: a get."""

    form: str
    client_id: str
    stream_name: str
    partition: int
    index: int | None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.client_id, self.stream_name, 0 if self.form == "plain" else self.partition

    def payload(self) -> bytes:
        names = (self.client_id, self.stream_name)
        if self.form == "plain":
            return INDEX.encode_request(GetIndex(*names) if self.index is None else SaveIndex(*names, self.index))
        protocol = PARTITIONED_BODY if self.form == "plain name" else INDEX_PARTITIONED
        if self.index is None:
            return protocol.encode_request(GetPartitionIndex(*names, self.partition))
        return protocol.encode_request(SavePartitionIndex(*names, self.partition, self.index))

    def answered(self, payload: bytes) -> int | None:
        """The index in the answer to this get, which must be in the form and for the key that was asked."""
        if self.form == "plain":
            plain = INDEX.decode_response(payload)
            assert (plain.client_id, plain.stream_name) == (self.client_id, self.stream_name)
            return plain.index
        protocol = PARTITIONED_BODY if self.form == "plain name" else INDEX_PARTITIONED
        answer = protocol.decode_response(payload)
        assert (answer.client_id, answer.stream_name, answer.partition) == self.key
        return answer.index


names = st.sampled_from(["", "a", "b", "ü\x00"])
indexes = st.one_of(st.integers(0, 20), st.sampled_from([127, 128, 2**32, INDEX_MAX - 1, INDEX_MAX]))
requests = st.builds(
    Request,
    st.sampled_from(["plain", "plain name", "partitioned"]),
    names,
    names,
    st.sampled_from([0, 1, 300, PARTITION_MAX]),
    st.none() | indexes,
)
lives = st.lists(st.lists(requests, max_size=12), min_size=1, max_size=3)
"""What is asked of one node after another on the same data directory."""


@settings(max_examples=examples(12))
@given(lives, st.random_module())
def test_it_keeps_the_maximum_of_each_key_in_every_form_and_over_restarts(
    lives: list[list[Request]], seed: object
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        trio.run(run_lives, Path(directory), lives)


async def run_lives(directory: Path, lives: list[list[Request]]) -> None:
    maxima: dict[tuple[str, str, int], int] = {}
    for asked in lives:
        expected = []
        for request in asked:
            known = maxima.get(request.key, 0)
            maxima[request.key] = max(known, request.index or 0)
            if request.index is None:
                expected.append((request, known))
        async with served(directory) as server:
            peer = await server.peer()
            await peer.stream.send_all(b"".join(peer.frame(INDEX_SERVICE, request.payload()) for request in asked))
            for request, index in expected:
                assert request.answered((await peer.receive()).payload) == index
            await in_order_after(peer)


async def in_order_after(peer: StreamPeer) -> None:
    """Everything sent before has been handled, and nothing that should be silent has been answered."""
    assert await peer.get_index("a client that asks nothing else", "barrier") == 0


@pytest.mark.parametrize("address", SERVICE_ADDRESSES)
@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
async def test_every_alias_leads_to_it_and_answers_under_itself(tmp_path: Path, address: str, wire: Wire) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer(wire)
        await peer.save_index("c", "s", 4)
        answer = await peer.ask((local(address),), INDEX.encode_request(GetIndex("c", "s")))
        assert answer.return_route == (local(address),)
        assert INDEX.decode_response(answer.payload).index == 4


async def test_the_plain_protocol_is_partition_0(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        await peer.save_index("c", "s", 4)
        await peer.save_partition_index("c", "s", 1, 9, plain_name=True)
        assert await peer.get_partition_index("c", "s", 0) == 4
        assert await peer.get_partition_index("c", "s", 0, plain_name=True) == 4
        assert await peer.get_partition_index("c", "s", 1) == 9
        assert await peer.get_index("c", "s") == 4


async def test_it_has_no_link_to_the_streams_and_takes_empty_names(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        await peer.save_index("", "", 3)
        assert await peer.get_index("", "") == 3
        assert server.statistics().services.streams == 0


IGNORED = {
    "garbage": b"garbage",
    "nothing": b"",
    "another protocol": b"\x04nope\x01x",
    "a stream's protocol": bytes.fromhex("0b73747265616d5f707573680701056d73675f31"),
    "union tag 2": INDEX.tag + b"\x05\x02\x01c\x01s",
    "a byte behind a get": INDEX.tag + b"\x07\x00\x01c\x01s\x00\x00",
    "a byte behind a save": INDEX.tag + b"\x08\x01\x01c\x01s\x05\x05\x05",
    "a byte behind the envelope": INDEX.encode_request(GetIndex("c", "s")) + b"\x00",
    "a cut get": INDEX.tag + b"\x04\x00\x01c\x01",
    "a client id that is not UTF-8": INDEX.tag + b"\x05\x00\x01\xff\x01s",
    "a stream name that is not UTF-8": INDEX.tag + b"\x05\x00\x01c\x01\xff",
    "a surrogate": INDEX.tag + b"\x07\x00\x01c\x03\xed\xa0\x80",
    "an index above 64 bits": INDEX.tag + b"\x10\x01\x01c\x01s" + b"\xff" * 10 + b"\x01",
}


@pytest.mark.parametrize("payload", IGNORED.values(), ids=IGNORED)
async def test_what_cannot_be_read_is_not_answered_but_counted_and_logged(tmp_path: Path, payload: bytes) -> None:
    with capture_logs() as logs:
        async with served(tmp_path) as server:
            peer = await server.peer()
            await peer.save_index("c", "s", 7)
            await peer.send(INDEX_SERVICE, payload)
            with trio.fail_after(PATIENCE_S):
                assert await peer.get_index("c", "s") == 7
            statistics = server.statistics().services.index
            assert (statistics.gets, statistics.saves, statistics.ignored) == (1, 1, 1)
    (line,) = [line for line in logs if line["event"] == "index_request_ignored"]
    assert line["peer"].startswith("127.0.0.1:")
    assert line["reason"]


BEYOND = {
    "a long client id": (INDEX.encode_request(GetIndex("c" * (TEXT_BYTES_MAX + 1), "s")), "above 1024 bytes"),
    "a long stream name": (INDEX.encode_request(SaveIndex("c", "s" * (TEXT_BYTES_MAX + 1), 1)), "above 1024 bytes"),
    "partition 2^31": (
        INDEX_PARTITIONED.encode_request(GetPartitionIndex("c", "s", 2**31)),
        "partition 2147483648; at most 2147483647",
    ),
    "partition 2^31 under the plain name": (
        PARTITIONED_BODY.encode_request(SavePartitionIndex("c", "s", 2**31, 1)),
        "partition 2147483648; at most 2147483647",
    ),
    "index 2^63": (INDEX.encode_request(SaveIndex("c", "s", 2**63)), "index 9223372036854775808"),
    "index 2^64-1 of a partition": (
        INDEX_PARTITIONED.encode_request(SavePartitionIndex("c", "s", 0, 2**64 - 1)),
        "index 18446744073709551615",
    ),
}


async def test_what_is_beyond_a_limit_is_told_to_its_sender(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        await peer.save_index("c", "s", 7)
        for number, (what, (payload, words)) in enumerate(BEYOND.items(), 1):
            reason = await peer.refused(INDEX_SERVICE, payload)
            assert reason.startswith("Invalid request: "), what
            assert words in reason, what
            assert await peer.get_index("c", "s") == 7
            statistics = server.statistics().services.index
            assert (statistics.saves, statistics.ignored, statistics.refused) == (1, 0, number), what


async def test_a_client_is_told_at_once_which_index_cannot_be_saved(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(server.address) as client:
        positions = SavedIndexes(client, "c")
        for index in (2**63, -1):
            with trio.fail_after(PATIENCE_S), pytest.raises(InvalidArgument, match=f"index {index}"):
                await positions.save("s", {0: index})
        await positions.save("s", {0: 2**63 - 1})
        assert await positions.get("s") == 2**63 - 1


async def test_names_of_the_longest_length_are_kept_whole(tmp_path: Path) -> None:
    """1,024 bytes of UTF-8 each, which is fewer characters."""
    client_id, stream_name = "ü" * (TEXT_BYTES_MAX // 2), "s" * TEXT_BYTES_MAX
    async with served(tmp_path) as server:
        peer = await server.peer()
        await peer.save_index(client_id, stream_name, INDEX_MAX)
        assert await peer.get_index(client_id, stream_name) == INDEX_MAX
        assert await peer.get_index(client_id, stream_name[:-1]) == 0


async def test_leases_last_as_long_as_the_setting_says(tmp_path: Path) -> None:
    """Goal: `lease_ttl_s` reaches the leases that are given. Method: a whole server with it; the answer names it."""
    request = LeaseRequest(1, "client", "stream", "member", 2, [], False)
    async with served(tmp_path, lease_ttl_s=0.5) as server:
        peer = await server.peer()
        answer = await peer.ask(INDEX_SERVICE, LEASE.encode_request(request))
        terms = LEASE.decode_response(answer.payload)
    assert (terms.ttl_ms, [lease.partition for lease in terms.leases]) == (500, [0, 1])
