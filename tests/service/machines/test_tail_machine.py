"""Goal: a page found in the tail is the page that the log would read, and the room for tails is kept.

Method: random appends, truncations and reads of a tail and of the log in memory (which the storage tests hold equal to
SQLite), with little room; then a whole server, with room for tails and without.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.transport.wire_head import HEAD
from stream_service.limits import StreamLimits
from stream_service.protocol import PULL, PullRequest
from stream_service.workers.tail_machine import Tail, Tails
from stream_storage.contract import Append
from tests.support.served import served
from tests.support.storage.memory import MemoryDatabase

data = st.lists(st.binary(max_size=60), min_size=1, max_size=6)
appends = st.tuples(st.just("append"), data, st.booleans(), st.integers(0, 5))
truncations = st.tuples(st.just("truncate"), st.integers(0, 60))
reads = st.tuples(st.just("read"), st.integers(0, 60), st.integers(1, 12), st.integers(0, 400), st.integers(0, 70))
forgets = st.tuples(st.just("forget"))


@given(steps=st.lists(st.one_of(appends, truncations, reads, reads, forgets), max_size=40))
def test_a_page_of_the_tail_is_the_page_of_the_log(steps: list[tuple[object, ...]]) -> None:
    session = MemoryDatabase().session()
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 0).stream_id
    tails = Tails(bytes_max=1_500, stream_bytes_max=900)
    tail = Tail(tails)
    for step in steps:
        stream = session.log.get_stream(stream_id)
        match step:
            case ("append", list(messages), bool(beside), int(time_us)):
                keys = [None if number % 2 else b"key" for number in range(len(messages))] if beside else None
                headers = [b"headers"] * len(messages) if beside else None
                append = Append(stream_id, stream.next_index, time_us, messages, keys, headers)
                session.log.append([append])
                tail.append(append)
            case ("truncate", int(index)):
                session.log.truncate_before(stream_id, index)
            case ("forget",):
                tail.clear()
            case ("read", int(index), int(limit), int(bytes_max), int(first_bytes_max)):
                found = tail.find_page(max(index, stream.first_index), limit, bytes_max, first_bytes_max)
                if found is not None and index < stream.next_index and tail.next_index == stream.next_index:
                    read = session.log.read(stream_id, index, limit, bytes_max, first_bytes_max=first_bytes_max)
                    assert found == read
        assert tails.size_bytes == tail.size_bytes <= tails.stream_bytes_max
    tail.close()
    tail.append(Append(1, 0, 0, [b"late"]))
    assert (tail.size_bytes, tails.size_bytes) == (0, 0)


@given(appended=st.lists(st.tuples(st.integers(0, 5), data), max_size=60))
def test_all_tails_together_keep_their_room_and_the_one_unused_for_longest_goes(
    appended: list[tuple[int, list[bytes]]],
) -> None:
    tails = Tails(bytes_max=2_000, stream_bytes_max=1_000)
    streams, ends = [Tail(tails) for _ in range(6)], [0] * 6
    for number, messages in appended:
        streams[number].append(Append(number, ends[number], 0, messages))
        ends[number] += len(messages)
        assert tails.size_bytes == sum(tail.size_bytes for tail in streams) <= 2_000
        assert streams[number].next_index in (ends[number], -1)
    written = list(dict.fromkeys(number for number, _ in reversed(appended)))
    kept = [streams[number].size_bytes > 0 for number in written]
    assert kept == sorted(kept, reverse=True)


def test_an_append_that_does_not_follow_begins_anew() -> None:
    tail = Tail(Tails(1_000, 1_000))
    tail.append(Append(1, 0, 0, [b"a", b"b"]))
    tail.append(Append(1, 5, 0, [b"f"]))
    assert tail.find_page(4, 10, 100, 100) is None
    assert tail.find_page(5, 10, 100, 100) == [(5, b"f", 0, None, None)]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_server_answers_the_same_with_and_without_tails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """And with them, without a read; also after the front was cut."""
    if not kept:
        without = msgspec.structs.replace(StreamLimits(), tails_bytes_max=0)
        monkeypatch.setattr(
            "stream_node.node.services.StreamLimits", lambda **given: msgspec.structs.replace(without, **given)
        )
    async with served(tmp_path) as server:
        peer = await server.peer(HEAD)
        route = await peer.create("s")
        for first in range(0, 100, 10):
            await peer.push_all(route, [b"%d" % number for number in range(first, first + 10)])
        reads = server.statistics().storage.reads
        for index, limit in ((0, 5), (0, 1_000), (37, 13), (99, 10), (99, 1)):
            await peer.send(route, PULL.encode_request(PullRequest(index, index, limit)))
            page = PULL.decode_response((await peer.receive()).payload)
            expected = range(index, min(index + limit, 100))
            assert [(each.index, each.data) for each in page.messages] == [(each, b"%d" % each) for each in expected]
        assert (server.statistics().storage.reads == reads) is kept
