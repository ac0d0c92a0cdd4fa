"""Goal: saved positions have the time of the streams, also while the wall clock of the node is wrong.

Method: the services of a whole node in virtual time, whose wall clock the test sets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from trio.testing import MockClock

from block_node.persist.chain_log import stream_name
from index_service.extensions import (
    FENCED_SAVE,
    LOAD_POSITIONS,
    MARKED_SAVE,
    FencedSave,
    LoadedPosition,
    LoadRequest,
    MarkedSave,
    SaveStatus,
)
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from stream_client.positions import KnownPosition
from stream_node.node.config import Config
from stream_node.node.services import Services
from stream_service.extensions import INFO, InfoRequest
from stream_service.mirror_rows import MirrorRow
from stream_service.names import stream_address
from stream_service.protocol import CREATE, CreateStream
from stream_service.role_machine import StreamRole
from stream_storage.errors import StorageError
from tests.block_node.persist.block_samples import block_of
from tests.index_service.index_node import ME, IndexNode
from tests.support.databases import open_database
from tests.support.storage.inline_runner import InlineRunner

RIGHT_US = 1_800_000_000_000_000
HOUR_S, YEAR_S = 3_600, 365 * 86_400
NOBODY = "127.0.0.1:9"


class Wall:
    """A wall clock. ahead_s: by how much it is ahead of the right time."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def now_us(self) -> int:
        return RIGHT_US + int((trio.current_time() + self.ahead_s) * 1_000_000)


class WholeNode(IndexNode):
    """A node with all its services."""

    def __init__(self, node: Node, services: Services, runner: InlineRunner) -> None:
        super().__init__(node, services.index, runner)
        self.services = services

    async def create(self, name: str) -> None:
        create = CREATE.encode_request(CreateStream(name))
        self.node.send_run([Message((local("stream_service"),), (ME,), create)])
        await self.idle()

    async def created_us(self, name: str) -> int:
        info = INFO.encode_request(InfoRequest(1))
        self.node.send_run([Message((stream_address(name, 0),), (ME,), info)])
        (payload,) = await self.idle()
        return INFO.decode_response(payload).info.created_us

    async def save(self, index: int) -> LoadedPosition:
        """Saves a position in the stream "s", and returns it as it is stored."""
        await self.ask(FENCED_SAVE, FencedSave(1, "c", "s", 0, index, None))
        (position,) = (await self.ask(LOAD_POSITIONS, LoadRequest(1, "c", "s", [0], False))).positions
        assert position is not None
        return position


@asynccontextmanager
async def whole_node(directory: Path, wall: Wall) -> AsyncIterator[WholeNode]:
    database = open_database(directory)
    try:
        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            runner = InlineRunner(database, nursery, batches=node)
            services = Services(node, runner, Config(), now_us=wall.now_us)
            services.start([])
            running = WholeNode(node, services, runner)
            await running.idle()
            try:
                yield running
            finally:
                runner.crash()
                nursery.cancel_scope.cancel()
    finally:
        database.close()


async def test_a_later_save_has_a_later_time_also_when_the_clock_was_ahead(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A mirror takes the position of its source that was saved last, by this time."""
    wall = Wall()
    async with whole_node(tmp_path, wall) as running:
        wall.ahead_s = YEAR_S
        wrong = await running.save(5)
        await trio.sleep(60)
        wall.ahead_s = 0
        right = await running.save(9)
    assert (wrong.index, right.index) == (5, 9)
    assert wrong.saved_us < right.saved_us


async def test_a_position_is_not_older_than_the_stream_that_was_there_before_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Otherwise the position of a new consumer would count as one of a former stream of the same name."""
    wall = Wall()
    async with whole_node(tmp_path, wall) as running:
        wall.ahead_s = -HOUR_S
        await running.create("s")
        created_us = await running.created_us("s")
        position = await running.save(5)
        assert KnownPosition(position.index, position).is_of(created_us)
        save = MarkedSave(1, "c", "s", 0, 6, None, created_us, position.generation)
        saved = await running.ask(MARKED_SAVE, save)
        assert (saved.status, saved.index, saved.generation) == (SaveStatus.OK, 6, position.generation)


async def test_every_stream_is_made_at_the_time_of_the_positions(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Also one that is made for a mirror, and that of a chain of blocks."""
    wall = Wall()
    async with whole_node(tmp_path, wall) as running:
        wall.ahead_s = YEAR_S
        await running.create("s")
        row = MirrorRow(0, StreamRole.FOLLOWING, NOBODY, "s")
        await running.services.mirrors.tasks.make("mirror", [0], row)
        assert running.services._blocks is not None
        store = running.services._blocks._blocks.store
        stored: list[StorageError | None] = []
        store.store(block_of(0), stored.append)
        await running.idle()
        assert stored == [None]
        position = await running.save(1)
        for name in ("s", "mirror", stream_name(store.chain)):
            assert await running.created_us(name) <= position.saved_us < RIGHT_US + YEAR_S * 1_000_000
