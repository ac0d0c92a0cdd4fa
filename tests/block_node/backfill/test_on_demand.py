"""Claim: what publishers know of the network is fetched at once, survives a restart, and is not believed for ever.

Method: servers on real sockets and files. They look for gaps by themselves once an hour, so that what is filled is
filled on demand; another publisher stays connected, so that what only sources have is not wanted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from block_node.backfill import worker
from block_node.blocks.items import make_header
from block_node.client.publish_session import SERVICE
from block_node.protocol import (
    PUBLISH,
    Behind,
    BlockItems,
    EndStream,
    OpenSession,
    PublisherEndCode,
    PublishRequest,
    PublishResponse,
    PublishStatus,
    StreamEnded,
)
from stream_client import connect as connect_streams
from stream_client.session import Conversation
from tests.block_node.backfill.served_blocks import QUICK, backfill_status, chain, publish, source, wait_ranges
from tests.support.served import PATIENCE_S, served

pytestmark = pytest.mark.usefixtures("short_linger")
SELDOM = QUICK | {"backfill_scan_interval_secs": 3_600.0}
NOBODY = "127.0.0.1:1"
"""Nothing listens there."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SCAN_PAUSE_S", 0.1)


@asynccontextmanager
async def publisher(address: str) -> AsyncIterator[Conversation]:
    """Connected, with an open session."""
    async with connect_streams(address) as connection:
        conversation = connection.converse(SERVICE)
        await _ask(conversation, OpenSession(b"test"))
        yield conversation


async def _ask(conversation: Conversation, request: PublishRequest) -> PublishResponse:
    await conversation.send(PUBLISH.encode_request(request))
    answer = await conversation.receive(PATIENCE_S)
    assert answer is not None
    return PUBLISH.decode_response(answer)


async def offer_and_leave(address: str, number: int) -> None:
    """As a publisher does that is far ahead, and has nothing older."""
    async with publisher(address) as conversation:
        answer = await _ask(conversation, BlockItems(0, [make_header(number, (0, 78, 0), 1_750_000_000, 0)]))
        assert isinstance(answer, Behind)


async def test_b4_a_publisher_that_is_ahead_is_caught_up_with(tmp_path: Path) -> None:
    blocks = chain(40)
    async with source(tmp_path / "one", blocks[:10]) as one:
        settings = SELDOM | {"backfill_block_node_sources": (one.address,)}
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 9))
            await publish(one.address, blocks[10:])
            async with publisher(two.address):
                for newest in (29, 31):
                    await offer_and_leave(two.address, newest)
                    await wait_ranges(two, (0, newest))
            status = await backfill_status(two.address)
            assert (status.newest_known, status.missing, status.given_up, status.blocks_fetched) == (31, 0, 0, 32)


async def test_a_publisher_that_stays_connected_is_caught_up_with(tmp_path: Path) -> None:
    """specs/block_publish.md: a node that answers Behind records the offered block and goes on to catch up. What only
    sources have is fetched too, since this publisher feeds no blocks."""
    blocks = chain(40)
    async with source(tmp_path / "one", blocks[:10]) as one:
        settings = SELDOM | {"backfill_block_node_sources": (one.address,)}
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 9))
            await publish(one.address, blocks[10:])
            async with publisher(two.address) as conversation:
                header = make_header(29, (0, 78, 0), 1_750_000_000, 0)
                assert await _ask(conversation, BlockItems(0, [header])) == Behind(29, 9, 10)
                await wait_ranges(two, (0, 39))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
async def test_a_number_that_cannot_be_stored_poisons_nothing(tmp_path: Path, number: int) -> None:
    """Goal: such a header is refused; at the end of a stream, the number means "unknown", as in the real protocol; and
    backfill goes on. Method: both come, then another publisher, as any that is ahead."""
    blocks = chain(20)
    async with source(tmp_path / "one", blocks) as one:
        settings = SELDOM | {"backfill_block_node_sources": (one.address,)}
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 19))
            async with publisher(two.address) as conversation:
                answer = await _ask(conversation, BlockItems(0, [make_header(number, (0, 78, 0), 1_750_000_000, 0)]))
                assert isinstance(answer, StreamEnded)
                assert answer.status is PublishStatus.INVALID_REQUEST
            async with publisher(two.address) as conversation:
                end = EndStream(0, PublisherEndCode.TOO_FAR_BEHIND, 0, number)
                await conversation.send(PUBLISH.encode_request(end))
            await offer_and_leave(two.address, 25)
            with trio.fail_after(PATIENCE_S):
                while (status := await backfill_status(two.address, run=True)).newest_known != 25:
                    await trio.sleep(0.01)
            assert (status.missing, status.gaps, status.given_up) == (0, [], 0)


async def test_b4_a_big_block_is_fetched_on_demand(tmp_path: Path) -> None:
    """Larger than a frame, than what is read at once and than a window: 6 MB, in items of 1.5 MB."""
    blocks = chain(3, item_count=8, item_bytes=1_500_000)
    async with source(tmp_path / "one", blocks) as one:
        settings = SELDOM | {"backfill_block_node_sources": (NOBODY,), "backfill_fetch_timeout_secs": 1.0}
        async with served(tmp_path / "two", **settings) as two:
            await publish(two.address, blocks[:1])
        settings["backfill_block_node_sources"] = (one.address,)
        async with served(tmp_path / "two", **settings) as two, publisher(two.address):
            await offer_and_leave(two.address, 2)
            await wait_ranges(two, (0, 2))


async def test_what_was_told_before_a_restart_is_fetched_after_it(tmp_path: Path) -> None:
    """No source can be reached at first, so that after a restart only what was told can say that blocks are missing."""
    blocks = chain(20)
    settings = SELDOM | {"backfill_block_node_sources": (NOBODY,), "backfill_fetch_timeout_secs": 1.0}
    async with served(tmp_path / "two", **settings) as two:
        await publish(two.address, blocks[:5])
        await offer_and_leave(two.address, 19)
    async with served(tmp_path / "two", **settings) as two:
        with trio.fail_after(PATIENCE_S):
            while (status := await backfill_status(two.address, run=True)).missing != 15:
                await trio.sleep(0.01)
        assert status.newest_known == 19
        assert [(gap.live_tail, gap.first_block, gap.last_block) for gap in status.gaps] == [(True, 5, 19)]
    async with source(tmp_path / "one", blocks) as one:
        settings["backfill_block_node_sources"] = (one.address,)
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 19))


async def test_a_block_that_nobody_has_is_forgotten_after_some_looks(tmp_path: Path) -> None:
    """Anybody may publish, so a number alone is no reason to look for it for ever."""
    blocks = chain(10)
    async with source(tmp_path / "one", blocks) as one:
        settings = SELDOM | {"backfill_block_node_sources": (one.address,), "backfill_max_retries": 1}
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 9))
            async with publisher(two.address):
                await offer_and_leave(two.address, 2**40)
                with trio.fail_after(PATIENCE_S):
                    while (status := await backfill_status(two.address, run=True)).newest_known != 9 or status.missing:
                        assert status.newest_known in (None, 2**40, 9)
                        assert status.missing == 0, "the source contradicts it"
                        await trio.sleep(0.05)
        async with served(tmp_path / "two", **settings) as two:
            with trio.fail_after(PATIENCE_S):
                while (newest_known := (await backfill_status(two.address)).newest_known) is None:
                    await trio.sleep(0.01)
            assert newest_known == 9


async def test_a_search_that_was_asked_for_also_asks_sources_in_a_pause(tmp_path: Path) -> None:
    """The source was away when the node began; by itself, the node would leave it alone for an hour."""
    blocks = chain(10)
    async with source(tmp_path / "one", blocks) as one:
        address = one.address
    settings = SELDOM | {
        "backfill_block_node_sources": (address,),
        "backfill_fetch_timeout_secs": 1.0,
        "backfill_initial_retry_delay_secs": 3_600.0,
        "backfill_max_backoff_secs": 3_600.0,
    }
    async with served(tmp_path / "two", **settings) as two:
        with trio.fail_after(PATIENCE_S):
            while not (await backfill_status(two.address)).sources[0].backoff_ms:
                await trio.sleep(0.01)
        async with source(tmp_path / "one", (), block_first=0, listen=address):
            assert (await backfill_status(two.address, run=True)).sources[0].failures == 1
            await wait_ranges(two, (0, 9))
