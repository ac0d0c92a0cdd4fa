"""Goal: `node/stream_copy/1` does what docs/wire.md says. Method: single requests to a real server, raw answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam.actors.address import Route
from stream_service.appending import COPY, CopiedMessage, CopyRequest, CopyResponse
from stream_service.extensions import FromIndex, FromTime, Header
from stream_service.protocol import PUSH, PushRequest
from tests.support.rich import ask, data_of, info, pull, push, refusal
from tests.support.served import served
from tests.support.stream_peer import StreamPeer, stream_peer

pytestmark = pytest.mark.usefixtures("each_database")

HOUR_US = 3_600_000_000
OLD_US = 1_700_000_000_000_000


def message(number: int, time_us: int) -> CopiedMessage:
    return CopiedMessage(time_us, None if number % 2 else b"k", [Header("n", b"%d" % number)], b"%d" % number)


async def copy(peer: StreamPeer, route: Route, index: int, *messages: CopiedMessage) -> CopyResponse:
    return await ask(peer, route, COPY, CopyRequest(1, index, list(messages)))


async def test_copies_keep_times_keys_headers_and_indexes(tmp_path: Path) -> None:
    """Over a restart too; and what is published afterwards goes on behind them, at a time that is later."""
    messages = [message(number, OLD_US + number // 3 * HOUR_US) for number in range(10)]
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert await copy(peer, route, 100, *messages[:6]) == CopyResponse(1, True, 106)
        assert await copy(peer, route, 106, *messages[6:]) == CopyResponse(1, True, 110)
        assert (await push(peer, route, b"new")).index == 110
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        found = (await pull(peer, route, FromIndex(0))).messages
        assert [(each.index, each.time_us, each.key, each.headers, each.data) for each in found[:-1]] == [
            (100 + at, each.time_us, each.key, each.headers, each.data) for at, each in enumerate(messages)
        ]
        assert (found[-1].index, found[-1].time_us > OLD_US + 10 * HOUR_US) == (110, True)
        at_time = await pull(peer, route, FromTime(OLD_US + 2 * HOUR_US))
        assert data_of(at_time) == [b"6", b"7", b"8", b"9", b"new"]
        about = await info(peer, route)
        assert (about.first_index, about.next_index, about.first_time_us) == (100, 111, OLD_US)


async def test_a_copy_is_stored_where_it_says_or_not_at_all(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push(peer, route, b"first")
        for index in (0, 2, 2**40):
            assert await copy(peer, route, index, message(1, OLD_US)) == CopyResponse(1, False, 1)
        assert await copy(peer, route, 1, message(1, OLD_US)) == CopyResponse(1, True, 2)
        assert await copy(peer, route, 1, message(1, OLD_US)) == CopyResponse(1, False, 2)
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"first", b"1"]


async def test_times_neither_fall_nor_lie_in_the_future(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        future_us = OLD_US + 100 * 365 * 24 * HOUR_US
        await copy(peer, route, 0, message(0, OLD_US), message(1, OLD_US - 5), message(2, future_us), message(3, 0))
        await push(peer, route, b"new")
        times = [each.time_us for each in (await pull(peer, route, FromIndex(0))).messages]
        assert times[:2] == [OLD_US, OLD_US]
        assert times == sorted(times)
        assert times[-1] < future_us


async def test_copies_stand_among_pushes_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        payloads = [PUSH.encode_request(PushRequest(number, b"p%d" % number)) for number in range(6)]
        payloads.insert(2, COPY.encode_request(CopyRequest(50, 2, [message(7, OLD_US)])))
        payloads.insert(4, COPY.encode_request(CopyRequest(51, 4, [message(8, OLD_US), message(9, OLD_US)])))
        payloads.insert(6, COPY.encode_request(CopyRequest(52, 0, [message(0, OLD_US)])))
        for payload in payloads:
            await peer.send(route, payload)
        answers = [(await peer.receive()).payload for _ in payloads]
        copies = [COPY.decode_response(each) for each in answers if COPY.is_in(each)]
        assert copies == [CopyResponse(50, True, 3), CopyResponse(51, True, 6), CopyResponse(52, False, 7)]
        assert data_of(await pull(peer, route, FromIndex(0))) == [
            *(b"p0", b"p1", b"7", b"p2", b"8", b"9", b"p3", b"p4", b"p5")
        ]


@pytest.mark.parametrize(
    ("index", "messages", "says"),
    [
        (0, [], "a copy without messages"),
        (2**63, [message(0, 0)], "the highest is"),
        (0, [CopiedMessage(0, b"k" * 5_000, [], b"")], "a key of 5000 bytes"),
        (0, [CopiedMessage(0, None, [Header("n", b"v" * 20_000)], b"")], "headers of 20001 bytes"),
    ],
)
async def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, index: int, messages: list[CopiedMessage], says: str
) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert says in await refusal(peer, route, COPY, CopyRequest(1, index, messages))
        assert (await push(peer, route, b"next")).index == 0


async def test_a_pull_that_waits_is_answered_by_a_copy(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer, stream_peer(node.address) as other:
        route = await peer.create("s")
        await push(peer, route, b"first")
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"first"]
        await copy(other, await other.create("s"), 1, message(1, OLD_US))
        assert data_of(await pull(peer, route, FromIndex(1), wait_ms=5_000)) == [b"1"]
