"""Goal: a mistake in one worker is told to whoever ran into it, and its neighbours and what is stored notice nothing.

Method: faults planted in the workers of a whole server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from index_service.requests import read_plain
from ockam.protocol import ERROR
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_service.extensions import (
    PUSH_BATCH,
    RICH_PUSH,
    Outcome,
    PushBatch,
    RichConfirm,
    RichPush,
    RichStatus,
    Sequence,
)
from stream_service.protocol import CREATE, PULL, PUSH, CreateStream, PullRequest, PushConfirm, PushRequest, Status
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.pulls import PullQueue
from stream_service.workers.push_run import PushRun
from stream_service.workers.stream import StreamWorker
from tests.support.data_dir import stored_messages
from tests.support.served import neighbour, served, wait_until
from tests.support.stream_peer import SERVICE

pytestmark = pytest.mark.usefixtures("each_database")


class Planted(Exception):
    """A mistake of ours, as far as the node knows."""


def crashes(logs: list[Any]) -> list[str]:
    return [line["address"] for line in logs if line["event"] == "worker_crashed"]


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
async def test_a_stream_that_crashes_on_a_push_tells_it_and_goes_on_where_it_was(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a confirm of status ERROR, since a real publisher would publish an `error`."""
    add = PushRun.add

    def add_or_crash(self: PushRun, message: Any, request: PushRequest) -> None:
        if request.data == b"crash":
            raise Planted
        add(self, message, request)

    monkeypatch.setattr(PushRun, "add", add_or_crash)
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            peer = await server.peer(wire)
            route = await peer.create("s")
            assert [(await peer.push(route, data)).index for data in (b"a", b"b")] == [0, 1]
            assert await peer.push(route, b"crash", request_id=9) == PushConfirm(9, Status.ERROR, 0)
            confirms = await peer.push_all(route, [b"c", b"d"])
            assert [(confirm.status, confirm.index) for confirm in confirms] == [(Status.OK, 2), (Status.OK, 3)]
            assert await peer.create("s") == route
            assert server.statistics().node.crashes == 1
    assert stored_messages(tmp_path, "s") == [b"a", b"b", b"c", b"d"]
    assert crashes(logs) == [str(route[0])]


async def test_what_waited_for_its_numbers_when_a_stream_crashed_is_refused_and_never_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a life that has ended appends nothing, since the next one assigns the indexes.

    Method: a stream crashes while it loads the numbers of its publishers; the load ends when the next life is at work.
    """
    loaded, loaded_again = StreamWorker._sequences_loaded, StreamWorker._opened_again
    late: list[Callable[[], None]] = []

    def crash(self: StreamWorker, operation: Any) -> None:
        monkeypatch.setattr(StreamWorker, "_sequences_loaded", loaded)
        late.append(lambda: loaded(self, operation))
        raise Planted

    def load_and_let_the_other_end(self: StreamWorker, operation: Any) -> None:
        loaded_again(self, operation)
        late.pop()()

    monkeypatch.setattr(StreamWorker, "_sequences_loaded", crash)
    monkeypatch.setattr(StreamWorker, "_opened_again", load_and_let_the_other_end)
    push = RichPush(7, b"numbered", None, [], Sequence(b"publisher", 0))
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        answers = []
        for _ in range(2):
            answer = await peer.ask(route, RICH_PUSH.encode_request(push))
            answers.append(RICH_PUSH.decode_response(answer.payload))
        assert (await peer.push(route, b"plain")).index == 1
    assert answers == [RichConfirm(7, RichStatus.ERROR, 0, 0), RichConfirm(7, RichStatus.OK, 0, 0)]
    assert (late, stored_messages(tmp_path, "s")) == ([], [b"numbered", b"plain"])


async def test_what_waited_and_cannot_be_read_is_answered_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one malformed message among those that waited does not keep the others without an answer."""
    loaded = StreamWorker._sequences_loaded

    def crash(self: StreamWorker, operation: Any) -> None:
        monkeypatch.setattr(StreamWorker, "_sequences_loaded", loaded)
        raise Planted

    monkeypatch.setattr(StreamWorker, "_sequences_loaded", crash)
    payloads = [
        RICH_PUSH.encode_request(RichPush(7, b"numbered", None, [], Sequence(b"publisher", 0))),
        PUSH.tag + b"\x01\xff",
        PUSH_BATCH.encode_request(PushBatch(1, [])),
        PUSH_BATCH.encode_request(PushBatch(2, [b"a", b"b"])),
        PUSH.encode_request(PushRequest(4, b"c")),
    ]
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.stream.send_all(b"".join(peer.frame(route, payload) for payload in payloads))
        answers = [(await peer.receive()).payload for _ in payloads]
    assert RICH_PUSH.decode_response(answers[0]).status is RichStatus.ERROR
    assert ERROR.is_in(answers[1])
    assert "a batch of 0 messages" in ERROR.decode_response(answers[2]).reason
    batch = PUSH_BATCH.decode_response(answers[3])
    assert (batch.request_id, batch.count) == (2, 2)
    assert batch.failure is not None
    assert batch.failure.outcome is Outcome.NOT_STORED
    assert PUSH.decode_response(answers[4]).status is Status.ERROR
    assert stored_messages(tmp_path, "s") == []


async def test_what_was_on_its_way_to_the_disk_when_a_stream_crashed_stays_and_is_not_numbered_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash comes with the commit of a push that nobody is told of any more; it is as if its confirm was lost."""
    stored = PushRun.stored

    def stored_or_crash(self: PushRun, first_index: int, route: Any, operation: Any = None) -> Any:
        if b"crash" in self.data:
            raise Planted
        return stored(self, first_index, route, operation)

    monkeypatch.setattr(PushRun, "stored", stored_or_crash)
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push(route, b"a")
        await peer.send(route, PUSH.encode_request(PushRequest(1, b"crash")))
        await wait_until(lambda: server.statistics().node.crashes == 1)
        assert (await peer.push(route, b"b")).index == 2
    assert stored_messages(tmp_path, "s") == [b"a", b"crash", b"b"]


async def test_a_stream_that_crashes_on_a_pull_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = PullQueue.add

    def add_or_crash(self: PullQueue, message: Any, request: PullRequest) -> None:
        if request.limit == 13:
            raise Planted
        add(self, message, request)

    monkeypatch.setattr(PullQueue, "add", add_or_crash)
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push(route, b"a")
        answer = await peer.ask(route, PULL.encode_request(PullRequest(1, 0, 13)))
        assert "the worker failed; it is restarted" in ERROR.decode_response(answer.payload).reason
        assert [message.data for message in (await peer.pull(route, 0, 12)).messages] == [b"a"]


async def test_the_stream_service_that_crashes_tells_it_and_knows_all_streams_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: StreamDirectory) -> str:
        raise Planted

    monkeypatch.setattr(StreamDirectory, "new_name", crash)
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            peer = await server.peer()
            route = await peer.create("s")
            answer = await peer.ask(SERVICE, CREATE.encode_request(CreateStream(None)))
            assert "the worker failed; it is restarted" in ERROR.decode_response(answer.payload).reason
            assert await peer.create("s") == route
            assert server.statistics().services.streams == 2
    assert crashes(logs) == ["stream_service"]


async def test_the_index_service_that_crashes_keeps_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def read_or_crash(payload: bytes) -> Any:
        if b"crash" in payload:
            raise Planted
        return read_plain(payload)

    monkeypatch.setattr("index_service.requests.read_plain", read_or_crash)
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer()
        await peer.save_index("c", "s", 3)
        assert await peer.get_index("c", "s") == 3
        await peer.save_index("crash", "s", 4)
        await wait_until(lambda: server.statistics().node.crashes == 1)
        assert await peer.get_index("c", "s") == 3
