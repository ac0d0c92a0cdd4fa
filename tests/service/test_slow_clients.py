"""Goal: a client that never reads, or a thousand that say nothing, cost the node little and others nothing.

Method: a whole server with short time limits, raw sockets, a neighbour who pushes and pulls.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from ockam.actors.address import Route, split_host_port
from ockam.actors.message import Origin
from ockam.quotas.memory import PeerMemory
from ockam.transport import connection_machine
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_service.extensions import DELETE, RICH_PULL, DeleteRequest, FromTime, RichPull
from stream_service.limits import StreamLimits
from stream_service.operations import ReadPages
from stream_service.protocol import PULL, PUSH, PullRequest, PullResponse, PushRequest
from stream_service.workers import pull_machine
from stream_service.workers import pulls as pulls_module
from stream_service.workers.pull_pages import Pull
from stream_service.workers.pulls import PullQueue
from stream_storage.errors import StorageError
from stream_storage.history import History
from tests.support.served import PATIENCE_S, Served, neighbour, served, wait_until
from tests.support.stream_peer import StreamPeer

BOTH_WIRES = pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
WIRES = (HEAD, LEGACY)
SILENT = 1_000


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as two ends of a thousand connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * SILENT
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this user may open only {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def send_for_ever(stream: trio.SocketStream, data: bytes) -> None:
    """Send until the other side closes the connection."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await stream.send_all(data)
            except trio.BrokenResourceError:
                return


@BOTH_WIRES
async def test_a_consumer_that_never_reads_is_closed_and_its_answers_do_not_pile_up(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages shrink while answers wait; then its requests are not read any more; then it is closed."""
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 1_000_000)
    most_waiting = 0
    with capture_logs() as logs:
        async with served(tmp_path, send_timeout_s=0.3) as server, neighbour(server):
            bad = await server.peer(wire)
            route = await bad.create("s")
            await bad.push_all(route, [bytes(10_000)] * 100)
            pull = bad.frame(route, PULL.encode_request(PullRequest(1, 0, 1_000)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_for_ever, bad.stream, pull * 20)
                while "slow_consumer" not in server.statistics().tcp.closed:
                    waiting = [connection.backlog_bytes for connection in server.statistics().tcp.connections]
                    most_waiting = max(most_waiting, *waiting)
                    await trio.sleep(0.005)
            good = await server.peer(wire)
            assert len((await good.pull(route, 0, 10)).messages) > 0
    assert most_waiting < connection_machine.BACKLOG_BYTES_HARD + 4 * 1024 * 1024
    (line,) = [line for line in logs if line["event"] == "slow_consumer"]
    assert line["peer"].startswith("127.0.0.1:")


@BOTH_WIRES
async def test_a_publisher_that_never_reads_its_confirms_is_closed_and_its_stream_goes_on(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 10_000)
    async with served(tmp_path, send_timeout_s=0.3) as server, neighbour(server):
        bad = await server.peer(wire)
        route = await bad.create("s")
        bad.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4_096)
        pushes = b"".join(bad.frame(route, PUSH.encode_request(PushRequest(number, b""))) for number in range(500))
        await send_for_ever(bad.stream, pushes)
        await server.wait_closed_because("slow_consumer")
        good = await server.peer()
        await wait_until(lambda: server.statistics().storage.outstanding == 0)
        end = (await good.push(route, b"the end")).index
        (message,) = (await good.pull(route, end, 10)).messages
        assert (message.index, message.data) == (end, b"the end")


@pytest.mark.parametrize("tails_bytes_max", [0, 1_000_000])
async def test_the_answers_of_many_pulls_are_never_in_memory_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tails_bytes_max: int
) -> None:
    """A run of pulls is a few bytes each, and each may ask for a full page, whether that is read or kept in memory."""
    sizes: list[int] = []
    finish = PullQueue._finish

    def measure_and_finish(self: PullQueue, finished: tuple[Sequence[Pull], Sequence[Pull]]) -> None:
        found = [pull.page.found for pull in finished[0] if not isinstance(pull.page.found, StorageError)]
        sizes.append(sum(len(record[1]) for records in found for record in records))
        finish(self, finished)

    def limits(**given: Any) -> StreamLimits:
        return StreamLimits(**given, tails_bytes_max=tails_bytes_max)

    monkeypatch.setattr(PullQueue, "_finish", measure_and_finish)
    monkeypatch.setattr("stream_node.node.services.StreamLimits", limits)
    async with served(tmp_path, pull_bytes_max=50_000) as server, neighbour(server):
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push_all(route, [bytes(10_000)] * 5)
        pages = await pull_all(peer, route, [(0, 100)] * 500)
    assert all(page.messages and page.messages[0].index == 0 for page in pages)
    assert 50_000 <= max(sizes) < 100_000


async def test_more_pulls_than_a_stream_lets_wait_are_all_answered_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream stops taking messages for a while, and so do its peers' pushes; nothing is lost or overtaken."""
    monkeypatch.setattr(pull_machine, "PULLS_WAITING_MAX", 20)
    monkeypatch.setattr(pull_machine, "PULLS_PER_BATCH_MAX", 7)

    async def pull_many(server: Served, route: Route) -> None:
        peer = await server.peer()
        pages = await pull_all(peer, route, [(0, number % 3) for number in range(300)])
        assert [len(page.messages) for page in pages] == [number % 3 for number in range(300)]

    async def push_many(server: Served, route: Route) -> None:
        peer = await server.peer(LEGACY)
        confirms = await peer.push_all(route, [b"more"] * 300)
        assert [confirm.request_id for confirm in confirms] == list(range(300))

    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push_all(route, [b"data"] * 2)
        async with trio.open_nursery() as nursery:
            for task in (pull_many, push_many, pull_many, push_many):
                nursery.start_soon(task, server, route)


async def test_who_does_not_read_pages_holds_up_nobody_else_on_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More pulls than a stream lets wait, of a peer that takes no answers; others push to the stream and pull from it.

    While nothing is taken nothing looks for it, and when the peer has gone nothing of its pulls is left.
    """
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 500_000)
    monkeypatch.setattr(pull_machine, "PULLS_WAITING_MAX", 50)
    looked: Counter[str] = Counter()
    is_behind = Origin.is_behind

    def look(origin: Origin, bytes_max: int) -> bool:
        looked[origin.peer] += 1
        return is_behind(origin, bytes_max)

    async with served(tmp_path, pull_bytes_max=200_000) as server, neighbour(server):
        good, bad = await server.peer(), await server.peer()
        route = await good.create("s")
        await good.push_all(route, [bytes(20_000)] * 10)
        small = server.statistics().tcp.memory
        await bad.stream.send_all(bad.frame(route, PULL.encode_request(PullRequest(1, 0, 10))) * 1_000)
        # The node may stop reading from this peer before it has read all pulls.
        held_bytes = 100 * pulls_module.PULL_MEMORY_BYTES
        await wait_until(lambda: server.statistics().tcp.memory.parked_bytes > held_bytes)
        host, port = bad.stream.socket.getsockname()
        name = f"{host}:{port}"
        with monkeypatch.context() as patch:
            patch.setattr(Origin, "is_behind", look)
            for number in range(10, 60):
                assert (await good.push(route, bytes(20_000))).index == number
                assert [message.index for message in (await good.pull(route, number, 10)).messages] == [number]
        assert name not in looked
        bad.stream.socket.close()
        await wait_until(lambda: not server.statistics().tcp.memory.parked_bytes)
        assert server.statistics().tcp.memory.size_bytes <= small.size_bytes + 10_000
        assert server.statistics().node.crashes == 0


async def test_slow_readers_get_all_pages_in_the_order_of_their_pulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks for pages that are hundreds of times as much as may wait for it; one has a read of its own for each."""
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 100_000)
    monkeypatch.setattr(pull_machine, "PULLS_PER_BATCH_MAX", 7)

    async def pull_slowly(server: Served, route: Route) -> None:
        peer = await server.peer()
        pages = await pull_all(peer, route, [(number % 10, 3) for number in range(200)])
        for number, page in enumerate(pages):
            expected = [(at, b"%d" % at * 20_000) for at in range(number % 10, min(10, number % 10 + 3))]
            assert [(each.index, each.data) for each in page.messages] == expected[: len(page.messages)] != []

    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push_all(route, [b"%d" % number * 20_000 for number in range(10)])
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(pull_slowly, server, route)
        await wait_until(lambda: not server.statistics().tcp.memory.parked_bytes)


async def test_pulls_that_are_held_back_share_the_bound_of_all_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that takes no answers and goes on asking is closed for its pulls alone; here each weighs 100 kB."""
    monkeypatch.setattr(pulls_module, "PULL_MEMORY_BYTES", 100_000)
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 500_000)
    bound = 8 * 1024 * 1024
    async with served(tmp_path, peer_memory_bytes_max=bound, pull_bytes_max=200_000) as server, neighbour(server):
        good, bad = await server.peer(), await server.peer()
        route = await good.create("s")
        await good.push_all(route, [bytes(20_000)] * 10)
        pulls = bad.frame(route, PULL.encode_request(PullRequest(1, 0, 10)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_for_ever, bad.stream, pulls * 1_000)
            await server.wait_closed_because("slow_consumer")
        assert (await good.push(route, b"on")).index == 10
        await wait_until(lambda: not server.statistics().tcp.memory.parked_bytes)
        assert server.statistics().tcp.memory.closed == 1


async def test_a_read_that_ends_after_its_stream_is_gone_leaves_nothing_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long poll that found nothing: it is answered, since a stream that is gone would keep it for ever."""
    late: list[tuple[PullQueue, Sequence[Pull], History, ReadPages]] = []
    answered = PullQueue._answered
    monkeypatch.setattr(PullQueue, "_answered", lambda *given: late.append(given))
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push(route, b"x")
        await peer.send(route, RICH_PULL.encode_request(RichPull(1, FromTime(2**62), 10, 5_000)))
        await wait_until(lambda: late)
        await peer.send(route, DELETE.encode_request(DeleteRequest(2)))
        assert DELETE.is_in((await peer.receive()).payload)
        answered(*late[0])
        assert RICH_PULL.decode_response((await peer.receive()).payload).messages == []
        assert server.statistics().tcp.memory.parked_bytes == 0


async def test_a_pull_that_finds_nothing_after_its_connection_has_ended_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: it is dropped, and becomes no long poll that nobody would take. Method: the connection ends during the
    read."""
    late: list[tuple[PullQueue, Sequence[Pull], History, ReadPages]] = []
    answered = PullQueue._answered
    monkeypatch.setattr(PullQueue, "_answered", lambda *given: late.append(given))
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push(route, b"x")
        await peer.send(route, RICH_PULL.encode_request(RichPull(1, FromTime(2**62), 10, 5_000)))
        await wait_until(lambda: late)
        await peer.stream.aclose()
        await wait_until(lambda: not server.statistics().tcp.connections)
        answered(*late[0])
        assert late[0][0].is_idle


async def test_a_large_answer_that_waits_for_room_delays_its_own_consumer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a stream goes on while a pull from it waits for room. Method: one peer asks two streams for 15 MB each and
    reads nothing. No room is left when it has gone, and none when the streams are deleted."""
    memories: list[PeerMemory] = []
    grant = PeerMemory.grant_rooms

    def granting(memory: PeerMemory) -> None:
        memories[:] = [memory]
        grant(memory)

    monkeypatch.setattr(PeerMemory, "grant_rooms", granting)
    async with served(tmp_path) as server:
        owner = await server.peer()
        routes = [await owner.create("a"), await owner.create("b")]
        for route in routes:
            await owner.push(route, b"x" * 15_000_000)
        await owner.push(routes[1], b"small")
        for is_deleted in (False, True):
            slow = await server.peer()
            for number, route in enumerate(routes):
                await slow.send(route, PULL.encode_request(PullRequest(number, 0, 1)))
            # One of the pulls waits for room, since the answer to the other one is not taken.
            await wait_until(lambda: memories and [room.has_come for room in memories[0].rooms] == [False])
            with trio.fail_after(PATIENCE_S):
                assert (await owner.pull(routes[1], 1, 1)).messages[0].data == b"small"
            if is_deleted:
                for route in routes:
                    await owner.send(route, DELETE.encode_request(DeleteRequest(2)))
                    assert DELETE.is_in((await owner.receive()).payload)
                await wait_until(lambda: not memories[0].rooms)
            await slow.stream.aclose()
            await wait_until(lambda: not memories[0].rooms)


async def test_too_many_answers_at_once_close_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hard limit, for answers that were on their way before reading stopped."""
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_HARD", 3_000_000)
    with capture_logs() as logs:
        async with served(tmp_path, pull_bytes_max=1_000_000) as server, neighbour(server):
            bad = await server.peer()
            route = await bad.create("s")
            await bad.push(route, bytes(900_000))
            pulls = b"".join(bad.frame(route, PULL.encode_request(PullRequest(n, 0, 1))) for n in range(20))
            await bad.stream.send_all(pulls)
            await server.wait_closed_because("slow_consumer")
    assert "slow_consumer" in {line["event"] for line in logs}


async def test_a_thousand_connections_that_send_nothing(tmp_path: Path, many_files: None) -> None:
    """They stay, others are served meanwhile, and every one of them is served when it speaks at last."""
    async with served(tmp_path) as server, neighbour(server):
        silent = await connect_many(server, SILENT)
        await wait_until(lambda: server.statistics().tcp.accepted == SILENT + 1)
        peer = await server.peer(LEGACY)
        route = await peer.create("s")
        for number in range(20):
            assert (await peer.push(route, b"data")).index == number
        assert server.statistics().tcp.silent == SILENT
        for number, stream in enumerate(silent):
            late = StreamPeer(stream, WIRES[number % 2])
            await stream.send_all(late.wire.hello)
            assert await late.create("s") == route
            await stream.aclose()
        await wait_until(lambda: len(server.statistics().tcp.connections) == 2)


async def test_silent_connections_above_the_limit_give_way_to_who_speaks(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with served(tmp_path, connections_max=20) as server, neighbour(server):
            silent = await connect_many(server, 30)
            await server.wait_closed_because("gave_way", 11)
            assert len(server.statistics().tcp.connections) == 20
            peers = [await server.peer(WIRES[number % 2]) for number in range(19)]
            for peer in peers:
                assert await peer.create("s")
            # Now all have spoken, and nobody gives way.
            (refused,) = await connect_many(server, 1)
            await server.wait_closed_because("too_many_connections", 1)
            for stream in (*silent, refused):
                await stream.aclose()
            assert server.statistics().tcp.closed == {"gave_way": 30, "too_many_connections": 1}
    told = [line["event"] for line in logs if line["event"].startswith("connections_")]
    assert told == ["connections_give_way"]


async def pull_all(peer: StreamPeer, route: Route, asked: list[tuple[int, int]]) -> list[PullResponse]:
    """The answers to pulls (index, limit) that are sent without waiting; they must come in order."""
    pulls = [PULL.encode_request(PullRequest(number, *each)) for number, each in enumerate(asked)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.send_all, b"".join(peer.frame(route, pull) for pull in pulls))
        pages = [PULL.decode_response((await peer.receive()).payload) for _ in asked]
    assert [page.request_id for page in pages] == list(range(len(asked)))
    return pages


async def connect_many(server: Served, count: int) -> list[trio.SocketStream]:
    host, port = split_host_port(server.address)
    return [await trio.open_tcp_stream(host, port) for _ in range(count)]
