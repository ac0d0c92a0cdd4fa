"""Goal: our own stream protocols do what docs/wire.md says. Method: single requests to a real server, raw answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.address import local
from ockam.protocol import ERROR, Protocol
from stream_service.extensions import (
    CUT_PULL,
    DELETE,
    INDEX_KNOWN,
    INFO,
    LIST,
    RETENTION,
    RICH_PULL,
    RICH_PUSH,
    TRUNCATE,
    Before,
    BeforeIndex,
    BeforeTime,
    CutMessage,
    CutPull,
    DeleteRequest,
    FromEnd,
    FromIndex,
    FromTime,
    Header,
    InfoRequest,
    ListRequest,
    Retention,
    RetentionRequest,
    RichConfirm,
    RichPull,
    RichPush,
    RichStatus,
    StreamKey,
    TruncateRequest,
)
from stream_service.extensions import Sequence as PushSequence
from tests.support.rich import ask, data_of, info, pull, push, refusal
from tests.support.served import served
from tests.support.stream_peer import SERVICE

pytestmark = pytest.mark.usefixtures("each_database")


BOUNDS = ("first_index", "next_index", "resume_index")


async def test_key_headers_and_time_come_back_as_pushed_also_after_a_restart(tmp_path: Path) -> None:
    headers = [Header("kind", b"\x00"), Header("kind", b"again"), Header("", b"")]
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await push(peer, route, b"rich", key=b"k", headers=headers)
        await peer.push(route, b"plain")
    async with served(tmp_path) as server:
        peer = await server.peer()
        page = await pull(peer, await peer.create("s"), FromIndex(0))
        rich, plain = page.messages
        assert (rich.data, rich.key, rich.headers) == (b"rich", b"k", headers)
        assert (plain.data, plain.key, plain.headers) == (b"plain", None, [])
        assert 0 < rich.time_us <= plain.time_us
        assert (page.first_index, page.next_index, page.resume_index) == (0, 2, 2)
        assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == [b"rich", b"plain"]


async def test_starts_first_last_index_and_time(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for number in range(10):
            await peer.push(route, b"%d" % number)
            await trio.sleep(0.001)
        times = [message.time_us for message in (await pull(peer, route, FromIndex(0))).messages]
        assert times == sorted(set(times))
        assert data_of(await pull(peer, route, FromIndex(7))) == [b"7", b"8", b"9"]
        assert data_of(await pull(peer, route, FromEnd(2))) == [b"8", b"9"]
        assert data_of(await pull(peer, route, FromEnd(1_000), 1)) == [b"0"]
        assert data_of(await pull(peer, route, FromTime(times[4]))) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert data_of(await pull(peer, route, FromTime(times[4] + 1), 1)) == [b"5"]
        for nothing in (FromEnd(0), FromIndex(2**64 - 1), FromTime(2**63)):
            assert data_of(await pull(peer, route, nothing)) == []
        assert (await pull(peer, route, FromEnd(0))).resume_index == 10


async def test_a_long_poll_is_answered_by_the_next_push_or_empty_when_its_time_is_up(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        waiting, pusher = await server.peer(), await server.peer()
        route = await waiting.create("s")
        await waiting.send(route, RICH_PULL.encode_request(RichPull(7, FromEnd(0), 10, 60_000)))
        await waiting.send(route, RICH_PULL.encode_request(RichPull(8, FromEnd(0), 10, 10)))
        late = RICH_PULL.decode_response((await waiting.receive()).payload)
        assert (late.request_id, late.messages, late.resume_index) == (8, [], 0)
        await pusher.push(route, b"news")
        page = RICH_PULL.decode_response((await waiting.receive()).payload)
        assert (page.request_id, data_of(page), page.resume_index) == (7, [b"news"], 1)


@pytest.mark.parametrize("data_bytes_max", [0, 3, 2**40])
async def test_a_cut_pull_has_the_beginnings_of_messages(tmp_path: Path, data_bytes_max: int) -> None:
    """Each message with the size of its whole data, also while it waits, and from every start."""
    async with served(tmp_path) as server:
        peer, pusher = await server.peer(), await server.peer()
        route = await peer.create("s")
        await push(peer, route, b"first", key=b"k", headers=[Header("h", b"v")])
        await push(peer, route, b"")
        for start in (FromIndex(0), FromIndex(1), FromEnd(1), FromTime(1), FromIndex(9)):
            whole = await pull(peer, route, start)
            cut = await ask(peer, route, CUT_PULL, CutPull(1, start, 100, 0, data_bytes_max))
            assert [getattr(cut, each) for each in BOUNDS] == [getattr(whole, each) for each in BOUNDS]
            assert cut.messages == [
                CutMessage(each.index, each.time_us, each.key, each.headers, len(each.data), each.data[:data_bytes_max])
                for each in whole.messages
            ]
        await peer.send(route, CUT_PULL.encode_request(CutPull(7, FromEnd(0), 1, 5_000, data_bytes_max)))
        await push(pusher, route, b"news")
        (news,) = CUT_PULL.decode_response((await peer.receive()).payload).messages
        assert (news.index, news.size_bytes, news.data) == (2, 4, b"news"[:data_bytes_max])


async def test_a_sequenced_push_is_stored_once_however_often_it_is_sent(tmp_path: Path) -> None:
    """Also when it comes again after a restart of the node, and with others between."""
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        first = await push(peer, route, b"a", sequence=(b"p", 5))
        await peer.push(route, b"other")
        again = await push(peer, route, b"a", sequence=(b"p", 5))
        second = await push(peer, route, b"b", sequence=(b"p", 6))
        assert (first.status, first.index, second.index) == (RichStatus.OK, 0, 2)
        assert (again.status, again.index, again.expected) == (RichStatus.DUPLICATE, 0, INDEX_KNOWN)
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        again = await push(peer, route, b"b", sequence=(b"p", 6))
        assert (again.status, again.index) == (RichStatus.DUPLICATE, 2)
        skips = await push(peer, route, b"d", sequence=(b"p", 8))
        assert (skips.status, skips.expected) == (RichStatus.OUT_OF_ORDER, 7)
        assert (await push(peer, route, b"c", sequence=(b"p", 7))).status is RichStatus.OK
        assert (await push(peer, route, b"x", sequence=(b"other publisher", 0))).status is RichStatus.OK
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"a", b"other", b"b", b"c", b"x"]


async def test_a_whole_window_sent_twice_in_one_write_is_stored_once(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        window = [RichPush(number, b"%d" % number, None, [], PushSequence(b"p", number)) for number in range(50)]
        frames = [peer.frame(route, RICH_PUSH.encode_request(request)) for request in window]
        await peer.stream.send_all(b"".join([*frames, *frames]))
        confirms = [RICH_PUSH.decode_response((await peer.receive()).payload) for _ in range(100)]
        assert [confirm.index for confirm in confirms] == [*range(50), *range(50)]
        assert [confirm.status for confirm in confirms[50:]] == [RichStatus.DUPLICATE] * 50
        assert (await info(peer, route)).next_index == 50


async def test_keys_and_headers_have_bounds(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        large = [Header("h", bytes(16 * 1024))]
        refused = [
            RichPush(1, b"", bytes(4097), [], None),
            RichPush(2, b"", None, large, None),
            RichPush(3, b"", None, [], PushSequence(bytes(65), 0)),
            RichPush(4, bytes(16 * 1024 * 1024 - 16 * 1024), None, [], None),
        ]
        for request in refused:
            answer = await peer.ask(route, RICH_PUSH.encode_request(request))
            confirm = RICH_PUSH.decode_response(answer.payload)
            assert confirm == RichConfirm(request.request_id, RichStatus.REFUSED, 0, 0)
        unreadable = RICH_PUSH.encode_request(RichPush(5, b"", None, [], None))[:-1]
        assert ERROR.is_in((await peer.ask(route, unreadable)).payload)
        assert (await info(peer, route)).count == 0


async def test_info_and_listing_with_prefix_and_pages(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        for name, partitions in (("a", 1), ("b.x", 2), ("b.y", 1), ("c", 1)):
            await peer.create_partitions(name, partitions)
        route = await peer.create("b.y")
        await peer.push(route, b"12345")
        told = await info(peer, route)
        assert (told.stream_name, told.first_index, told.next_index, told.size_bytes) == ("b.y", 0, 1, 5)
        assert told.first_time_us == told.last_time_us is not None
        assert told.retention is None
        first = await ask(peer, SERVICE, LIST, ListRequest(1, "b.", None, 2))
        assert [(each.stream_name, each.partition) for each in first.streams] == [("b.x", 0), ("b.x", 1)]
        assert first.more
        rest = await ask(peer, SERVICE, LIST, ListRequest(1, "b.", StreamKey("b.x", 1), 2))
        assert (rest.streams, rest.more) == ([told], False)


@pytest.mark.parametrize("by_time", [False, True], ids=["index", "time"])
async def test_truncating_deletes_before_and_keeps_indexes(tmp_path: Path, by_time: bool) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for number in range(10):
            await peer.push(route, b"%d" % number)
            await trio.sleep(0.001)
        time_us = (await pull(peer, route, FromIndex(6), 1)).messages[0].time_us
        before: Before = BeforeTime(time_us) if by_time else BeforeIndex(6)
        done = await ask(peer, route, TRUNCATE, TruncateRequest(1, before))
        assert (done.deleted, done.first_index) == (6, 6)
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"6", b"7", b"8", b"9"]
        again = await ask(peer, route, TRUNCATE, TruncateRequest(1, before))
        assert (again.deleted, again.first_index) == (0, 6)
        everything = await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(2**64 - 1)))
        assert (everything.deleted, everything.first_index) == (4, 10)
        assert (await peer.push(route, b"next")).index == 10


async def test_a_deleted_stream_is_gone_and_its_name_is_free(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for _ in range(5):
            await peer.push(route, b"x")
        assert (await ask(peer, route, DELETE, DeleteRequest(1))).deleted == 5
        assert server.statistics().services.streams == 0
        route = await peer.create("s")
        assert (await peer.push(route, b"new")).index == 0
    async with served(tmp_path) as server:
        peer = await server.peer()
        assert data_of(await pull(peer, await peer.create("s"), FromIndex(0))) == [b"new"]


async def test_a_stream_of_many_messages_is_deleted_in_steps_while_others_push(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer, other = await server.peer(), await server.peer()
        route, other_route = await peer.create("big"), await other.create("other")
        requests = [RichPush(number, b"x", None, [], None) for number in range(5_000)]
        await peer.stream.send_all(b"".join(peer.frame(route, RICH_PUSH.encode_request(each)) for each in requests))
        for _ in requests:
            await peer.receive()
        await peer.send(route, DELETE.encode_request(DeleteRequest(1)))
        assert [(await other.push(other_route, b"y")).index for _ in range(5)] == [0, 1, 2, 3, 4]
        assert DELETE.decode_response((await peer.receive()).payload).deleted == len(requests)


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        pytest.param(Retention(messages=3), 3, id="count"),
        pytest.param(Retention(size_bytes=45), 4, id="bytes"),
        pytest.param(Retention(age_s=0), 0, id="age"),
    ],
)
async def test_retention_deletes_what_is_beyond_it(tmp_path: Path, retention: Retention, left: int) -> None:
    async with served(tmp_path, retention_interval_s=0.02) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for _ in range(10):
            await peer.push(route, bytes(10))
        kept = await ask(peer, route, RETENTION, RetentionRequest(1, retention))
        assert kept.info.retention == retention
        with trio.fail_after(20):
            while (await info(peer, route)).count > left:
                await trio.sleep(0.01)
        assert ((await info(peer, route)).count, (await info(peer, route)).next_index) == (left, 10)
    async with served(tmp_path) as server:
        peer = await server.peer()
        assert (await info(peer, await peer.create("s"))).retention == retention


async def test_the_nodes_default_retention_and_a_streams_own(tmp_path: Path) -> None:
    async with served(tmp_path, retention_interval_s=0.02, retention_messages=2) as server:
        peer = await server.peer()
        plain, own = await peer.create("plain"), await peer.create("own")
        await ask(peer, own, RETENTION, RetentionRequest(1, Retention(messages=5)))
        for _ in range(10):
            await peer.push(plain, b"x")
            await peer.push(own, b"x")
        with trio.fail_after(20):
            while (await info(peer, plain)).count > 2 or (await info(peer, own)).count > 5:
                await trio.sleep(0.01)
        assert (await info(peer, own)).count == 5
        await ask(peer, own, RETENTION, RetentionRequest(1, None))
        with trio.fail_after(20):
            while (await info(peer, own)).count > 2:
                await trio.sleep(0.01)
        assert "without any limit" in await refusal(peer, own, RETENTION, RetentionRequest(1, Retention()))


# A node does not see the disk of a PostgreSQL server.
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
async def test_below_the_disk_floor_pushes_are_refused_and_reading_and_deleting_go_on(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push(route, b"before")
    async with served(tmp_path, free_disk_bytes_min=2**60, error_delay_s=0.01) as server:
        peer = await server.peer()
        route = await peer.create("s")
        assert (await push(peer, route, b"x")).status is RichStatus.ERROR
        assert (await peer.push(route, b"x")).status.name == "ERROR"
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"before"]
        assert (await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(1)))).deleted == 1


async def test_unknown_protocols_of_ours_are_refused_by_name(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        future: Protocol[InfoRequest, InfoRequest] = Protocol("node/stream_info/2", InfoRequest, InfoRequest)
        assert "node/stream_info/2" in await refusal(peer, route, future, InfoRequest(1))
        assert "node/stream_info/1" in await refusal(peer, (local("stream_service"),), INFO, InfoRequest(1))
