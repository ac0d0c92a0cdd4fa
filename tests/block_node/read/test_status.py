"""Goal: `block_status` tells what is stored and what is wanted next, and nothing that is not so (T1, T2).

Method: the service on a node with real storage; the asker is a worker of the node.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from block_node.node import BlockNode
from block_node.persist.store import BlockRetention
from block_node.protocol_reading import STATUS, BlockRange, PluginVersion, StatusRequest, StatusResponse
from block_node.read.services import ReadServices, StatusService
from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.actors.worker import Worker
from ockam.protocol import ERROR
from tests.block_node.persist.block_world import World, world
from tests.support.served import wait_until

SERVICE, ASKER = local("block_status"), local("asker")


class Asker(Worker):
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def handle(self, message: Message) -> None:
        self.seen.append(message.payload)


class Services(ReadServices):
    """Says what the parts of a whole node would say."""

    expected: int | None = None

    def plugins(self) -> dict[str, str]:
        return {"verify": "5", "persist": "4"}

    def next_expected(self) -> int | None:
        return self.expected


class Status:
    def __init__(self, made: World, *, next_expected: int | None = None, address_book: bytes | None = None) -> None:
        self.node = made.node
        self.asker = Asker()
        made.node.register([ASKER], lambda: self.asker)
        blocks = cast("BlockNode", SimpleNamespace(store=made.store))
        services = Services(made.node, blocks, version="1.2.3", new_id=str, address_book=address_book)
        services.expected = next_expected
        made.node.register([SERVICE], lambda: StatusService(services))

    async def ask(self, *, detail: bool = False, frame_bytes_max: int = 1 << 24) -> StatusResponse:
        payload = STATUS.encode_request(StatusRequest(3, detail))
        self.node.send(Message((SERVICE,), (ASKER,), payload, Origin("tcp", frame_bytes_max=frame_bytes_max)))
        await wait_until(lambda: self.asker.seen)
        payload = self.asker.seen.pop()
        assert len(payload) <= frame_bytes_max
        response = STATUS.decode_response(payload)
        assert response.request_id == 3
        return response


async def test_t1_an_empty_node_knows_no_block(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        assert await Status(made).ask() == StatusResponse(3, None, None, True, None, None)


@pytest.mark.parametrize("first_block", [0, 1_000])
async def test_t1_what_is_stored_is_told_and_never_what_was_configured(tmp_path: Path, first_block: int) -> None:
    """After block 0 it is 0 and 0, whatever the node wants next."""
    async with world(tmp_path) as made:
        status = Status(made, next_expected=first_block + 1)
        made.persist(0)
        await made.persisted(1)
        assert await status.ask() == StatusResponse(3, 0, 0, True, first_block + 1, None)
        made.persist(1)
        await made.persisted(2)
        answer = await status.ask()
        assert (answer.first_available, answer.last_available) == (0, 1)


async def test_t2_the_detail(tmp_path: Path) -> None:
    async with world(tmp_path, BlockRetention(blocks=3)) as made:
        status = Status(made, address_book=b"a book")
        for number in (1, 2, 5, 6, 7):
            made.persist(number)
        await made.persisted(5)
        await wait_until(lambda: made.store.available.first == 5)
        detail = (await status.ask(detail=True)).detail
        assert detail is not None
        assert (detail.version, detail.address_book) == ("1.2.3", b"a book")
        assert detail.plugins == [PluginVersion("persist", "4"), PluginVersion("verify", "5")]
        assert detail.available == [BlockRange(5, 7)]
        assert detail.stored == [BlockRange(1, 2), BlockRange(5, 7)]


async def test_t2_the_last_range_ends_where_the_node_is(tmp_path: Path) -> None:
    """Both are read at one moment, so that none lags behind the other."""
    async with world(tmp_path) as made:
        status = Status(made)
        for number in range(20):
            made.persist(number)
            answer = await status.ask(detail=True)
            assert answer.detail is not None
            assert answer.last_available == (
                answer.detail.available[-1].last_block if answer.detail.available else None
            )
        await made.persisted(20)


async def test_t2_a_detail_fits_the_way_back(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        status = Status(made, address_book=b"x" * 70_000)
        for number in range(0, 10_000, 2):
            made.store.available.add(number)
        detail = (await status.ask(detail=True, frame_bytes_max=65_000)).detail
        assert detail is not None
        assert detail.address_book is None
        assert detail.available[-1] == BlockRange(9_998, 9_998)
        assert 1_000 < len(detail.available) < 5_000
        whole = (await status.ask(detail=True)).detail
        assert whole is not None
        assert (len(whole.available), whole.address_book) == (5_000, b"x" * 70_000)


@pytest.mark.parametrize("payload", [b"", b"\x0cblock_status\x00"])
async def test_what_is_no_request_gets_an_error(tmp_path: Path, payload: bytes) -> None:
    async with world(tmp_path) as made:
        status = Status(made)
        made.node.send(Message((SERVICE,), (ASKER,), payload))
        await wait_until(lambda: status.asker.seen)
        assert ERROR.decode_response(status.asker.seen.pop()).reason.startswith("Invalid request: ")
