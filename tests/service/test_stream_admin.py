"""Goal: streams can be looked after while they are in use. Method: raw requests to a whole server in this process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors.address import Route
from ockam.protocol import ERROR
from stream_service import stored
from stream_service.extensions import (
    DELETE,
    RICH_PULL,
    TRUNCATE,
    BeforeIndex,
    DeleteRequest,
    FromIndex,
    RichPull,
    TruncateRequest,
)
from stream_service.operations import truncate_step
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest
from stream_service.workers import admin
from stream_service.workers.readable_stream import ReadableStream
from stream_storage.contract import Session, StreamRecord
from tests.support.rich import ask, info
from tests.support.served import Served, served, wait_until
from tests.support.stream_peer import StreamPeer

pytestmark = pytest.mark.usefixtures("each_database")


async def test_a_retention_by_bytes_goes_on_until_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: however much is pushed, one round deletes all that is too much. Method: thirty times what it measures
    at once, and rounds so far apart that thirty of them would take too long."""
    monkeypatch.setattr(stored, "SIZES_MAX", 10)
    async with served(tmp_path, retention_interval_s=2.0, retention_bytes=100) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push_all(route, [bytes(10)] * 300)
        with trio.fail_after(50):
            while (await info(peer, route)).count > 10:
                await trio.sleep(0.05)
        assert (await info(peer, route)).size_bytes == 100


async def test_large_messages_are_truncated_in_steps_of_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no transaction deletes much, so that pushes never wait for long. Method: what each step deleted."""
    steps: list[int] = []

    def noted(session: Session, **limits: Any) -> tuple[int, StreamRecord]:
        deleted, record = truncate_step(session, **limits)
        steps.append(deleted)
        return deleted, record

    monkeypatch.setattr(admin, "truncate_step", noted)
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for _ in range(10):
            await peer.push(route, bytes(1_500_000))
        assert (await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(8)))).deleted == 8
    assert steps == [3, 3, 2]


async def test_a_deletion_ends_the_pulls_that_wait(tmp_path: Path) -> None:
    """Goal: a follower hears at once that there is nothing to wait for. Method: a parked pull and a deletion."""
    async with served(tmp_path) as server:
        peer, other = await server.peer(), await server.peer()
        route = await peer.create("s")
        await peer.send(route, RICH_PULL.encode_request(RichPull(1, FromIndex(0), 10, 5_000)))
        await info(peer, route)
        assert (await ask(other, route, DELETE, DeleteRequest(1))).deleted == 0
        assert "has been deleted" in ERROR.decode_response((await peer.receive()).payload).reason


async def test_a_create_is_answered_behind_the_pushes_before_it(tmp_path: Path) -> None:
    """Goal: who hears of a create knows what became of its pushes before. Method: both in one run, many times."""
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for number in range(20):
            payloads = [PUSH.encode_request(PushRequest(number, b"x")), CREATE.encode_request(CreateStream("s"))]
            await peer.stream.send_all(b"".join(peer.frame(route, payload) for payload in payloads))
            answers = [(await peer.receive()).payload for _ in payloads]
            assert [PUSH.is_in(answer) for answer in answers] == [True, False]


class Retaining:
    """A node whose retention of the stream at `route` stands within its first step, until `goes_on` is set."""

    def __init__(self, server: Served, peer: StreamPeer, route: Route, goes_on: threading.Event) -> None:
        assert server.server._parts is not None
        self.peer, self.route, self.goes_on = peer, route, goes_on
        self.directory = server.server._parts.services.directory
        self.retaining = self.directory.counters.retaining
        worker = self.directory.node.find_worker(route[0])
        assert isinstance(worker, ReadableStream)
        self.admin = worker.admin

    async def ask_within(self, payload: bytes) -> None:
        """Sends a request, and has the retention go on when the stream has begun with it."""
        await self.peer.send(self.route, payload)
        await wait_until(lambda: len(self.admin._cuts) == 2)
        self.goes_on.set()
        await self.peer.receive()


@asynccontextmanager
async def retaining_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Retaining]:
    goes_on = threading.Event()

    def held(session: Session, **limits: Any) -> tuple[int, StreamRecord]:
        assert goes_on.wait(30)
        return truncate_step(session, **limits)

    monkeypatch.setattr(stored, "SIZES_MAX", 10)
    async with served(folder, retention_interval_s=0.05, retention_bytes=100) as server:
        peer = await server.peer()
        route = await peer.create("s")
        monkeypatch.setattr(admin, "truncate_step", held)
        await peer.push_all(route, [bytes(10)] * 50)
        found = Retaining(server, peer, route, goes_on)
        try:
            await wait_until(lambda: found.retaining)
            yield found
        finally:
            goes_on.set()


@pytest.mark.parametrize(
    "payload",
    [DELETE.encode_request(DeleteRequest(1)), TRUNCATE.encode_request(TruncateRequest(1, BeforeIndex(50)))],
    ids=["delete", "truncate"],
)
async def test_a_stream_that_is_deleted_or_emptied_within_its_retention_has_no_lag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """Claim: `retention_lag_s` does not go on growing when a request takes what the retention was about to delete."""
    async with retaining_node(tmp_path, monkeypatch) as node:
        await node.ask_within(payload)
        await wait_until(lambda: not node.retaining)


async def test_a_stream_that_is_handed_over_within_its_retention_has_no_lag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: the lag of a stream that another node serves is not that of this node."""
    async with retaining_node(tmp_path, monkeypatch) as node:
        node.directory.hand_over(node.route[0])
        assert not node.retaining


async def test_a_node_without_pages_gathers_no_growth(tmp_path: Path) -> None:
    """Claim: streams that are pushed to and deleted leave no names where only the dashboard would take them."""
    async with served(tmp_path) as server:
        assert server.server._parts is not None
        counters = server.server._parts.services.directory.counters
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push(route, b"x")
        await ask(peer, route, DELETE, DeleteRequest(1))
        await wait_until(lambda: not server.statistics().services.streams)
        assert (dict(counters.growth), counters.closed) == ({}, set())
