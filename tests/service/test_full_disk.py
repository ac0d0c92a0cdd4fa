"""Goal: a full disk fails pushes, late and with a reason, loses nothing confirmed, and is forgotten when there is room.

Method: SQLite's own page limit under a whole server in this process; a limit on file sizes, and a small file system
that is really full, under the running command.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from bench.processes import memory_bytes
from index_service.extensions import LEASE, LeaseRequest
from ockam.actors.address import Route, local
from ockam.protocol import ERROR
from stream_client import LeaseMember, NodeFailed, PushFailed, SavedIndexes, Stream, connect
from stream_node.node.process import NodeNotStarted, NodeProcess
from stream_service.protocol import CREATE, PUSH, CreateStream, PushConfirm, PushRequest, Status
from stream_service.workers import readable_stream
from tests.support.data_dir import stored_messages
from tests.support.limited_disk import LimitedDisk, limit_disk
from tests.support.served import PATIENCE_S, Served, served, wait_until
from tests.support.small_disk import mounted_disk
from tests.support.stream_peer import SERVICE, StreamPeer, stream_peer

CHUNK = b"x" * 50_000


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> LimitedDisk:
    """A disk with room for some hundred KB."""
    return limit_disk(monkeypatch)


async def push_until_full(peer: StreamPeer, route: Route) -> int:
    """Fill the disk; how many messages were confirmed. The first that was not is answered with ERROR and index 0."""
    stored = 0
    while (confirm := await peer.push(route, CHUNK, request_id=stored)).status is Status.OK:
        assert confirm.index == stored
        stored += 1
        assert stored < 10_000, "the disk does not fill up"
    assert confirm == PushConfirm(stored, Status.ERROR, 0)
    return stored


async def test_pushes_fail_until_there_is_room_again_and_nothing_confirmed_is_lost(
    tmp_path: Path, disk: LimitedDisk
) -> None:
    with capture_logs() as logs:
        async with served(tmp_path, error_delay_s=0.05) as server:
            peer, other = await server.peer(), await server.peer()
            route = await peer.create("s")
            stored = await push_until_full(peer, route)
            statistics = server.statistics()
            assert statistics.services.pushes_failed == statistics.storage.failed == 1
            assert "free space" in (statistics.services.write_failure or "")
            assert statistics.storage.failure is None
            assert len((await other.pull(route, 0, 1)).messages) == 1
            assert (await other.push(route, CHUNK)).status is Status.ERROR
            disk.free()
            assert (await other.push(route, b"room again")).index == stored
            assert server.statistics().services.write_failure is None
            assert server.statistics().services.pushes_failed == 2
    failures = [line for line in logs if line["event"] == "push_failed"]
    assert [(line["log_level"], line["stream"], line["pushes"]) for line in failures] == [("error", "s", 1)] * 2
    assert "free space" in failures[0]["reason"]
    assert stored_messages(tmp_path, "s") == [CHUNK] * stored + [b"room again"]


async def test_a_failed_push_is_answered_late_so_that_a_peer_cannot_spin(tmp_path: Path, disk: LimitedDisk) -> None:
    """The real publisher sends again at once what got ERROR."""
    async with served(tmp_path, error_delay_s=10_000) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push(route, b"stored")
        await peer.send(route, PUSH.encode_request(PushRequest(7, bytes(1_000_000))))
        await wait_until(lambda: server.statistics().services.pushes_failed == 1)
        assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == [b"stored"]
        assert (await peer.push(route, b"small")).index == 1


async def test_late_answers_that_wait_are_bounded(
    tmp_path: Path, disk: LimitedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: refused pushes cannot fill the memory with answers that wait. Method: with room for three, the fourth is
    answered at once, though answers wait for hours."""
    monkeypatch.setattr(readable_stream, "LATE_ANSWERS_MAX", 3)
    async with served(tmp_path, error_delay_s=10_000) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for number in range(4):
            await peer.send(route, PUSH.encode_request(PushRequest(number, bytes(1_000_000))))
            while server.statistics().services.pushes_failed == number:
                await trio.sleep(0.005)
        answer = await peer.receive(PATIENCE_S)
        assert PUSH.decode_response(answer.payload) == PushConfirm(3, Status.ERROR, 0)


async def test_what_is_confirmed_beside_pushes_that_do_not_fit_is_stored_and_nothing_else(
    tmp_path: Path, disk: LimitedDisk
) -> None:
    """A commit that runs out of room can fail those who share it; they are told so, and nothing of theirs is stored."""
    confirmed: list[tuple[int, bytes]] = []
    async with served(tmp_path, error_delay_s=0.05) as server:
        peer = await server.peer()
        small, large = await peer.create("small"), await peer.create("large")
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(push_beside, server, small, large, b"%d" % number, confirmed)
    assert len(confirmed) > 0
    assert [data for _, data in sorted(confirmed)] == stored_messages(tmp_path, "small")
    assert stored_messages(tmp_path, "large") == []


async def push_beside(
    server: Served, small: Route, large: Route, name: bytes, confirmed: list[tuple[int, bytes]]
) -> None:
    """Push small messages while others push what cannot fit."""
    peer, bulky = await server.peer(), await server.peer()
    for number in range(10):
        await bulky.send(large, PUSH.encode_request(PushRequest(1, bytes(2_000_000))))
        data = b"%s %d" % (name, number)
        confirm = await peer.push(small, data)
        if confirm.status is Status.OK:
            confirmed.append((confirm.index, data))
        assert PUSH.decode_response((await bulky.receive()).payload).status is Status.ERROR


async def test_creates_and_saves_fail_and_what_is_there_is_still_served(tmp_path: Path, disk: LimitedDisk) -> None:
    with capture_logs() as logs:
        async with served(tmp_path, error_delay_s=0.05) as server:
            peer = await server.peer()
            route = await peer.create("s")
            await peer.save_index("c", "s", 3)
            stored = await push_until_full(peer, route)
            answer = await create_until_full(peer)
            assert "the stream cannot be made" in ERROR.decode_response(answer).reason
            assert server.statistics().services.creates_failed == 1
            assert await peer.create("s") == route
            assert await peer.get_index("c", "s") == 3
            disk.free()
            await peer.save_index("c", "s", stored)
            assert await peer.get_index("c", "s") == stored
    assert "create_failed" in {line["event"] for line in logs}


async def test_clients_are_told_that_it_is_the_node_and_members_go_on_trying(tmp_path: Path, disk: LimitedDisk) -> None:
    """A consumer that shares a stream waits for its lease until there is room for it."""
    async with served(tmp_path, error_delay_s=0.05) as server:
        peer = await server.peer()
        await push_until_full(peer, await peer.create("s"))
        await create_until_full(peer)
        await join_until_full(peer)
        async with connect(server.address) as client, trio.open_nursery() as nursery:
            with pytest.raises(NodeFailed, match="cannot be made") as caught:
                await client.create("n" * 1_000)
            assert (caught.value.fault, caught.value.retriable) == ("node", True)
            stream = await client.get_stream("s")
            found: list[int] = []

            async def consume() -> None:
                async with stream.shared_consumer(LeaseMember(client, "c" * 1_000)) as consumer:
                    async for _, message in consumer:
                        found.append(message.index)
                        if len(found) == 3:
                            return

            nursery.start_soon(consume)
            await wait_until(lambda: server.statistics().services.index.failed > 0)
            assert not found
            disk.free()
    assert found == [0, 1, 2]


async def join_until_full(peer: StreamPeer) -> None:
    for number in range(1_000):
        client_id = f"{number}".rjust(1_000, "n")
        request = LeaseRequest(1, client_id, "s", "m", 1, [], False)
        answer = (await peer.ask((local("stream_index_service"),), LEASE.encode_request(request))).payload
        if not LEASE.is_in(answer):
            assert "the node failed: no room" in ERROR.decode_response(answer).reason
            return
    raise AssertionError("the disk does not fill up")


async def create_until_full(peer: StreamPeer) -> bytes:
    """Rows of streams are small, so many fit where no message does."""
    for number in range(10_000):
        name = f"{number}".rjust(1_000, "n")
        answer = await peer.ask(SERVICE, CREATE.encode_request(CreateStream(name)))
        if not CREATE.is_in(answer.payload):
            return answer.payload
    raise AssertionError("the disk does not fill up")


@asynccontextmanager
async def full_node(node: NodeProcess, free: Callable[[], object]) -> AsyncIterator[None]:
    """Fill the disk of a running node, make room with `free`, and prove that it goes on and kept what it confirmed."""
    async with stream_peer(node.address) as peer:
        route = await peer.create("s")
        stored = await push_until_full(peer, route)
        assert stored > 0
        assert len((await peer.pull(route, stored - 1, 10)).messages) == 1
        yield
        free()
        assert (await peer.push(route, b"room again")).index == stored
    assert node.stop() == 0
    assert stored_messages(node.data_dir, "s") == [CHUNK] * stored + [b"room again"]
    lines = [json.loads(line) for line in node.log_file.read_text().splitlines() if line.startswith("{")]
    (stopped,) = [line for line in lines if line["event"] == "stopped"]
    assert stopped["pushes_failed"] == 1
    (failure,) = [line for line in lines if line["event"] == "push_failed"]
    assert "free space" in failure["reason"]


TO_THE_LAST_BYTE = {"STREAM_NODE_ERROR_DELAY_S": "0.05", "STREAM_NODE_FREE_DISK_BYTES_MIN": "0"}


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="another process's limits can be set on Linux only")
async def test_a_limit_on_file_sizes_under_the_running_command(tmp_path: Path) -> None:
    """What a quota does: writes fail with another error than on a full disk."""
    with NodeProcess(tmp_path / "data", environment=TO_THE_LAST_BYTE) as node:
        unlimited = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (500_000, unlimited[1]))
        async with full_node(node, lambda: resource.prlimit(node.pid, resource.RLIMIT_FSIZE, unlimited)):
            assert memory_bytes(node.pid) > 0


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="another process's limits can be set on Linux only")
async def test_a_position_that_cannot_be_saved_is_told_at_once(tmp_path: Path) -> None:
    """Goal: consumers that exist and new ones hear of it, and reading goes on. Method: no file can be written to."""
    data = tmp_path / "data"
    with NodeProcess(data, environment=TO_THE_LAST_BYTE, log_file=Path("/dev/null")) as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            async with stream.publisher() as publisher:
                await publisher.push_many([b"%d" % number for number in range(5)])
            positions = SavedIndexes(client, "old")
            await positions.save("s", {0: 2})
            unlimited = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
            with trio.fail_after(PATIENCE_S):
                assert [message.data for message in await stream.pull(3)] == [b"3", b"4"]
                with pytest.raises(NodeFailed, match=r"no room|does not store"):
                    await positions.save("s", {0: 4})
                with pytest.raises(NodeFailed, match="no room"):
                    await SavedIndexes(client, "new").get("s")
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, unlimited)
            assert await positions.get("s") == 2
            await positions.save("s", {0: 4})
        assert node.stop() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "4m") as disk:
        yield disk


@pytest.fixture
def ballast(small_disk: Path) -> Path:
    """A file on the small disk that can be deleted to make room."""
    file = small_disk / "ballast"
    file.write_bytes(bytes(2_500_000))
    return file


async def test_a_file_system_that_is_full_under_the_running_command(ballast: Path, tmp_path: Path) -> None:
    with NodeProcess(ballast.parent / "data", environment=TO_THE_LAST_BYTE, log_file=tmp_path / "log") as node:
        async with full_node(node, ballast.unlink):
            pass


async def test_a_node_killed_on_a_full_disk_comes_back_with_everything_once_there_is_room(
    ballast: Path, tmp_path: Path
) -> None:
    with NodeProcess(ballast.parent / "data", environment=TO_THE_LAST_BYTE, log_file=tmp_path / "log") as node:
        async with stream_peer(node.address) as peer:
            stored = await push_until_full(peer, await peer.create("s"))
        node.kill()
        with pytest.raises(NodeNotStarted, match=r"no room to write.*free space"):
            node.start()
        await trio.Path(ballast).unlink()
        node.start()
        assert node.stop() == 0
    assert stored_messages(node.data_dir, "s") == [CHUNK] * stored


async def test_a_burst_leaves_so_much_free_that_all_can_be_deleted_and_the_node_starts_again(tmp_path: Path) -> None:
    """Goal: the floor holds under a burst, and what is above it is enough to delete everything that is stored.

    Method: a disk of 24 MB with a floor of 6 MB, and more messages at once than fit; half of them above the floor.
    """
    settings = {"STREAM_NODE_ERROR_DELAY_S": "0.05", "STREAM_NODE_FREE_DISK_BYTES_MIN": "6000000"}
    disk = tmp_path / "disk"
    with (
        mounted_disk(disk, "24m"),
        NodeProcess(disk / "data", environment=settings, log_file=tmp_path / "log") as node,
    ):
        async with connect(node.address) as client:
            stream = await client.create("s")
            async with stream.publisher(keep_failed=True) as publisher:
                pushes = [await publisher.push(bytes(600)) for _ in range(40_000)]
            stored = sum(push.error is None for push in pushes)
            assert 10_000 < stored < 40_000
            assert shutil.disk_usage(disk).free > 5_000_000
            assert (await stream.truncate(stored)).deleted == stored
            with trio.fail_after(PATIENCE_S):
                while (push := await push_or_none(stream, b"again")) is None:
                    await trio.sleep(0.05)
            assert push == stored
        node.kill()
        node.start()
        async with connect(node.address) as client:
            (message,) = await (await client.create("s")).pull()
        assert (message.index, message.data) == (stored, b"again")
        assert node.stop() == 0


async def push_or_none(stream: Stream, data: bytes) -> int | None:
    """Where it was stored; None where there was no room."""
    try:
        return await stream.push(data)
    except PushFailed:
        return None
