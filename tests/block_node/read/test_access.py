"""Goal: `block_get` gives any stored block, part by part, and says why where it cannot (A1).

Method: the service on a node with real storage; the asker is a worker of the node, with ways back of several widths.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from block_node.persist.store import BlockRetention
from block_node.protocol_reading import GET, BlockPart, GetBlock, GetStatus
from block_node.read import services
from block_node.read.services import AccessService
from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.actors.worker import Worker
from ockam.protocol import ERROR
from tests.block_node.persist.block_samples import items_of, root_of, serialized
from tests.block_node.persist.block_world import World, world
from tests.support.served import wait_until

SERVICE, ASKER = local("block_get"), local("asker")
MAX = 2**64 - 1


class Asker(Worker):
    """Notes what comes."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def handle(self, message: Message) -> None:
        self.seen.append(message.payload)


class Access:
    def __init__(self, made: World) -> None:
        self.node = made.node
        self.service = AccessService(made.store)
        self.asker = Asker()
        made.node.register([SERVICE], lambda: self.service)
        made.node.register([ASKER], lambda: self.asker)

    def send(self, payload: bytes, origin: Origin | None = None) -> None:
        message = Message((SERVICE,), (ASKER,), payload)
        self.node.send(message if origin is None else Message((SERVICE,), (ASKER,), payload, origin))

    async def ask(
        self, number: int | None, *, latest: bool = False, offset: int = 0, origin: Origin | None = None
    ) -> BlockPart:
        self.send(GET.encode_request(GetBlock(7, number, latest, offset)), origin)
        await wait_until(lambda: self.asker.seen)
        part = GET.decode_response(self.asker.seen.pop())
        assert part.request_id == 7
        return part

    async def get(self, number: int, origin: Origin | None = None) -> tuple[bytes, int]:
        """The whole block, and in how many parts it came."""
        data, parts = b"", 0
        while True:
            part = await self.ask(number, offset=len(data), origin=origin)
            assert (part.status, part.block_number, part.offset) == (GetStatus.SUCCESS, number, len(data))
            data, parts = data + part.data, parts + 1
            if len(data) == part.size_bytes:
                return data, parts


async def test_a1_a_block_that_exists(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        service = Access(made)
        for number in range(3):
            made.persist(number)
        await made.persisted(3)
        for number in range(3):
            part = await service.ask(number)
            assert (part.status, part.data) == (GetStatus.SUCCESS, serialized(items_of(number)))
            assert (part.size_bytes, part.root) == (len(part.data), root_of(items_of(number)))


@pytest.mark.parametrize(
    ("number", "latest", "status", "found"),
    [
        (None, True, GetStatus.SUCCESS, 5),
        (MAX, False, GetStatus.SUCCESS, 5),
        (3, False, GetStatus.NOT_AVAILABLE, 0),
        (4, False, GetStatus.SUCCESS, 4),
        (6, False, GetStatus.NOT_AVAILABLE, 0),
        (2**63, False, GetStatus.NOT_AVAILABLE, 0),
        (None, False, GetStatus.INVALID_REQUEST, 0),
        (4, True, GetStatus.INVALID_REQUEST, 0),
    ],
)
async def test_a1_each_way_of_asking(
    tmp_path: Path, number: int | None, latest: bool, status: GetStatus, found: int
) -> None:
    async with world(tmp_path) as made:
        service = Access(made)
        made.persist(4)
        made.persist(5)
        await made.persisted(2)
        part = await service.ask(number, latest=latest)
        assert (part.status, part.block_number) == (status, found)


@pytest.mark.parametrize(("number", "latest"), [(0, False), (MAX, False), (None, True)])
async def test_a1_an_empty_node_has_no_block(tmp_path: Path, number: int | None, latest: bool) -> None:
    async with world(tmp_path) as made:
        assert (await Access(made).ask(number, latest=latest)).status is GetStatus.NOT_AVAILABLE


async def test_a_large_block_comes_in_parts_that_the_way_back_bears(tmp_path: Path) -> None:
    items = [bytes((number,)) * 700_000 for number in range(13)]
    async with world(tmp_path) as made:
        service = Access(made)
        made.persist(0, items)
        await made.persisted(1)
        data, parts = await service.get(0)
        assert (data, parts) == (serialized(items), 3)
        data, parts = await service.get(0, Origin("tcp", frame_bytes_max=65_000))
        assert data == serialized(items)
        assert parts > 130
        whole = len(data)
        assert (await service.ask(0, offset=whole)).data == b""
        assert (await service.ask(0, offset=whole + 1)).status is GetStatus.INVALID_REQUEST
        assert (await service.ask(0, offset=2**62)).status is GetStatus.INVALID_REQUEST


async def test_what_retention_has_evicted_is_not_available(tmp_path: Path) -> None:
    async with world(tmp_path, BlockRetention(blocks=1)) as made:
        service = Access(made)
        for number in range(5):
            made.persist(number)
        await made.persisted(5)
        await wait_until(lambda: made.store.available.first == 4)
        assert (await service.ask(2)).status is GetStatus.NOT_AVAILABLE
        assert (await service.ask(4)).status is GetStatus.SUCCESS


async def test_a_block_that_is_damaged_is_not_found(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        service = Access(made)
        made.persist(0)
        made.persist(1)
        await made.persisted(2)
        await made.change("UPDATE messages SET data = zeroblob(length(data)) WHERE idx = 0")
        assert (await service.ask(0)).status is GetStatus.NOT_FOUND
        assert (await service.ask(1)).status is GetStatus.SUCCESS
        assert service.service.statistics().answers == {"NOT_FOUND": 1, "SUCCESS": 1}


async def test_who_does_not_take_its_answers_gets_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests wait, those of others do not, and the memory that answers take is bounded."""
    monkeypatch.setattr(services, "WAITING_MAX", 10)
    backlog_bytes = services.BACKLOG_BYTES_MAX + 1
    slow = Origin("tcp", backlog_bytes=lambda: backlog_bytes)
    async with world(tmp_path) as made:
        service = Access(made)
        made.persist(0)
        await made.persisted(1)
        for _ in range(30):
            service.send(GET.encode_request(GetBlock(1, 0, False, 0)), slow)
        mailbox = made.node.find_mailbox(SERVICE)
        assert mailbox is not None
        assert len(mailbox) > 0, "its connection is not read on when this is full"
        assert service.asker.seen == []
        backlog_bytes = 0
        await wait_until(lambda: len(service.asker.seen) == 30)
        service.asker.seen.clear()
        backlog_bytes = services.BACKLOG_BYTES_MAX + 1
        service.send(GET.encode_request(GetBlock(1, 0, False, 0)), slow)
        assert (await service.ask(0)).status is GetStatus.SUCCESS


@pytest.mark.parametrize("payload", [b"", b"junk", b"\x09block_get\x01\x00"])
async def test_what_is_no_request_gets_an_error(tmp_path: Path, payload: bytes) -> None:
    async with world(tmp_path) as made:
        service = Access(made)
        service.send(payload)
        await wait_until(lambda: service.asker.seen)
        assert ERROR.decode_response(service.asker.seen.pop()).reason.startswith("Invalid request: ")
        assert (await service.ask(0)).status is GetStatus.NOT_AVAILABLE
