"""Goal: a stream that nobody needs takes no worker, and nobody can tell: its indexes, bounds, list, retention and
deletion are the same.

Method: a real server whose workers end as soon as nothing is under way. Each test looks at `Node.is_asleep` before
and after, so that it cannot pass with a worker that never ended.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.address import Address
from ockam.actors.node import Node
from ockam.identity.rules.rights import Right
from stream_service.extensions import (
    DELETE,
    LIST,
    RETENTION,
    DeleteRequest,
    FromIndex,
    ListRequest,
    Retention,
    RetentionRequest,
)
from stream_service.names import stream_address
from stream_service.protocol import PULL, PUSH, PullRequest, PushRequest
from stream_service.workers import stream
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.support.rich import ask, data_of, info, pull, push
from tests.support.served import Served, served, wait_until
from tests.support.stream_peer import SERVICE

pytestmark = pytest.mark.usefixtures("each_database")

OFTEN = {"retention_interval_s": 0.01}
S = stream_address("s", 0)


@pytest.fixture(autouse=True)
def rests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "REST_AFTER_S", 0.0)


def node_of(running: Served) -> Node:
    parts = running.server._parts
    assert parts is not None
    return parts.node


async def wait_asleep(running: Served, address: Address = S) -> None:
    await wait_until(lambda: node_of(running).is_asleep(address))


async def test_a_stored_stream_has_no_worker_until_its_first_message(tmp_path: Path) -> None:
    async with served(tmp_path) as running:
        peer = await running.peer()
        await peer.push_all(await peer.create("s"), [b"0", b"1"])
    async with served(tmp_path) as running:
        assert node_of(running).is_asleep(S)
        assert running.statistics().services.streams == 1
        peer = await running.peer()
        listed = await ask(peer, SERVICE, LIST, ListRequest(1, "", None, 10))
        assert [(each.stream_name, each.next_index) for each in listed.streams] == [("s", 2)]
        assert node_of(running).is_asleep(S)
        assert (await peer.push((S,), b"2")).index == 2
        assert not node_of(running).is_asleep(S)


async def test_a_stream_that_rests_goes_on_where_it_was(tmp_path: Path) -> None:
    """Each push comes to a new worker, and all of them to one stream."""
    async with served(tmp_path, **OFTEN) as running:
        peer = await running.peer()
        route = await peer.create("s")
        for number in range(5):
            await wait_asleep(running)
            confirm = await push(peer, route, b"%d" % number, key=b"k")
            assert confirm.index == number
        await wait_asleep(running)
        page = await pull(peer, route, FromIndex(0))
        assert data_of(page) == [b"0", b"1", b"2", b"3", b"4"]
        assert [message.time_us for message in page.messages] == sorted(message.time_us for message in page.messages)
        assert (page.first_index, page.next_index) == (0, 5)
        assert running.statistics().node.crashes == 0


async def test_a_long_poll_keeps_its_worker(tmp_path: Path) -> None:
    async with served(tmp_path, **OFTEN) as running:
        peer, publisher = await running.peer(), await running.peer()
        route = await peer.create("s")
        await wait_asleep(running)
        parked: list[list[bytes]] = []

        async def follow() -> None:
            parked.append(data_of(await pull(peer, route, FromIndex(0), wait_ms=20_000)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await wait_until(lambda: not node_of(running).is_asleep(S))
            await trio.sleep(0.1)
            assert not node_of(running).is_asleep(S)
            await push(publisher, route, b"new")
        assert parked == [[b"new"]]


async def test_retention_deletes_in_a_stream_that_rests(tmp_path: Path) -> None:
    """A limit that was set, and after a restart that of the node: the worker starts only to delete."""
    async with served(tmp_path, **OFTEN) as running:
        peer = await running.peer()
        route = await peer.create("s")
        await ask(peer, route, RETENTION, RetentionRequest(1, Retention(None, 3, None)))
        await wait_asleep(running)
        await peer.push_all(route, [b"x"] * 10)
        await wait_until(lambda: node_of(running).is_asleep(S))
        await wait_until(lambda: running.server._parts is not None)
        found = await info(peer, route)
        assert found.retention == Retention(None, 3, None)
        while (await info(peer, route)).count != 3:
            await wait_asleep(running)
        assert (await push(peer, route, b"y")).index == 10
    async with served(tmp_path, **OFTEN, retention_messages=1) as running:
        peer = await running.peer()
        other = await peer.create("other")
        await peer.push_all(other, [b"x"] * 10)
        await wait_asleep(running, stream_address("other", 0))
        while (await info(peer, other)).count != 1:
            await wait_asleep(running, stream_address("other", 0))


async def test_a_deleted_stream_does_not_come_back(tmp_path: Path) -> None:
    async with served(tmp_path, **OFTEN) as running:
        peer = await running.peer()
        route = await peer.create("s")
        await peer.push_all(route, [b"x"] * 3)
        await wait_asleep(running)
        assert (await ask(peer, route, DELETE, DeleteRequest(1))).deleted == 3
        assert not node_of(running).is_registered(S)
        assert running.statistics().services.streams == 0
        assert (await push(peer, await peer.create("s"), b"new")).index == 0


async def test_the_time_is_read_once_in_a_batch_and_anew_after_it(tmp_path: Path) -> None:
    """Goal: whoever asks outside a batch gets the present time, too."""
    async with served(tmp_path) as running:
        parts = running.server._parts
        assert parts is not None
        directory = parts.services.directory
        before_us = directory.now_us()
        with parts.node.batch():
            first_us = directory.now_us()
            assert directory.now_us() == first_us
        assert 0 < before_us <= first_us <= directory.now_us()
        assert directory._now_us is None


async def test_whoever_may_not_use_a_stream_starts_no_worker_and_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: the answers to a peer without rights, and the counts, are the same whether the stream rests or not.
    Method: the same requests, first to the stream that rests, and then while it has a worker."""
    payloads = [
        PULL.encode_request(PullRequest(1, 0, 1)),
        PUSH.encode_request(PushRequest(2, b"x")),
        DELETE.encode_request(DeleteRequest(3)),
    ]
    async with guarded(tmp_path, may(Right.CREATE, "s"), **OFTEN) as node:
        route = await (await node.running.peer()).create("s")
        await wait_asleep(node.running)
        monkeypatch.setattr(stream, "REST_AFTER_S", 60.0)
        seen = []
        for rests in (True, False):
            assert node_of(node.running).is_asleep(S) is rests
            peer = await node.running.peer()
            answers = [(await peer.ask(route, payload)).payload for payload in payloads]
            seen.append(answers)
            assert node.refused() == dict.fromkeys(("read", "write", "delete"), len(seen))
            assert node_of(node.running).is_asleep(S) is rests
            node_of(node.running).find_worker(S)
        assert seen[0] == seen[1]
