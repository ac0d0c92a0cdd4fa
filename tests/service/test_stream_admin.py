"""Goal: streams can be looked after while they are in use. Method: raw requests to a whole server in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

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
from stream_storage.contract import Session, StreamRecord
from tests.support.rich import ask, info
from tests.support.served import served

pytestmark = pytest.mark.usefixtures("each_database")


async def test_a_retention_by_bytes_goes_on_until_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: however much is pushed, one round deletes all that is too much. Method: a hundred times what it measures
    at once, and rounds so far apart that a hundred of them would take too long."""
    monkeypatch.setattr(stored, "SIZES_MAX", 10)
    async with served(tmp_path, retention_interval_s=1.0, retention_bytes=100) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push_all(route, [bytes(10)] * 1_000)
        with trio.fail_after(30):
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
