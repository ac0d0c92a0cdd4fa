"""Goal: whatever ends a node, each message that it confirmed is in its data directory, byte for byte, at its index.

Method: the running command under publishers in both framings; SIGTERM, SIGINT, SIGHUP and SIGKILL while they push.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_node.node.process import NodeProcess
from stream_service.protocol import PULL, PUSH, PullRequest, PushRequest, Status
from stream_storage.sqlite.database import FILE_NAME
from tests.support.data_dir import stored_messages
from tests.support.served import PATIENCE_S
from tests.support.stream_peer import StreamPeer, stream_peer

STREAMS = ("one", "two")
WINDOW = 50


class Publisher:
    """Pushes numbered messages to one stream, some of them unconfirmed, until the node ends the connection.

    confirmed: index and data, in the order of the confirms.
    """

    def __init__(self, name: str, stream: str, wire: Wire) -> None:
        self._name = name
        self.stream = stream
        self._wire = wire
        self._sent: list[bytes] = []
        self.confirmed: list[tuple[int, bytes]] = []

    async def run(self, address: str) -> None:
        async with stream_peer(address, self._wire) as peer:
            route = await peer.create(self.stream)
            try:
                while True:
                    while len(self._sent) < len(self.confirmed) + WINDOW:
                        data = f"{self._name} {len(self._sent)} ".encode().ljust(200 + len(self._sent) % 100, b".")
                        push = PUSH.encode_request(PushRequest(len(self._sent), data))
                        self._sent.append(data)
                        await peer.stream.send_all(peer.frame(route, push))
                    await self._take_confirm(peer)
            except (trio.BrokenResourceError, AssertionError):
                await self._take_the_rest(peer)

    async def _take_confirm(self, peer: StreamPeer) -> None:
        confirm = PUSH.decode_response((await peer.receive()).payload)
        if (confirm.status, confirm.request_id) != (Status.OK, len(self.confirmed)):
            pytest.fail(f"{confirm}, after {len(self.confirmed)} confirms")
        self.confirmed.append((confirm.index, self._sent[confirm.request_id]))

    async def _take_the_rest(self, peer: StreamPeer) -> None:
        """Sending has failed, but confirms may still be there to be read."""
        try:
            while True:
                await self._take_confirm(peer)
        except (trio.BrokenResourceError, AssertionError):
            return


def make_publishers() -> list[Publisher]:
    """Two of each stream, in both framings."""
    return [Publisher(f"{stream} {wire.name}", stream, wire) for stream in STREAMS for wire in (HEAD, LEGACY)]


async def push_until(node: NodeProcess, end: signal.Signals, confirmed_min: int) -> list[Publisher]:
    """Publish from several connections, end the node in the middle of that, and wait until all have noticed."""
    publishers = make_publishers()
    with trio.fail_after(2 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for publisher in publishers:
                nursery.start_soon(publisher.run, node.address)
            while min(len(publisher.confirmed) for publisher in publishers) < confirmed_min:
                await trio.sleep(0.001)
            node.signal(end)
    return publishers


def confirmed_by_stream(publishers: list[Publisher]) -> dict[str, list[tuple[int, bytes]]]:
    return {
        stream: sorted(pair for publisher in publishers if publisher.stream == stream for pair in publisher.confirmed)
        for stream in STREAMS
    }


def log_lines(node: NodeProcess) -> list[Any]:
    return [json.loads(line) for line in node.log_file.read_text().splitlines()]


def log_size(node: NodeProcess) -> int:
    """Of SQLite's write-ahead log."""
    log = node.data_dir / (FILE_NAME + "-wal")
    return log.stat().st_size if log.exists() else 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda end: end.name)
async def test_a_drained_node_has_confirmed_exactly_what_it_has_stored(tmp_path: Path, end: signal.Signals) -> None:
    with NodeProcess(tmp_path / "data") as node:
        publishers = await push_until(node, end, 100)
        assert node.wait() == 0
    assert log_size(node) == 0
    for stream, confirmed in confirmed_by_stream(publishers).items():
        assert confirmed == list(enumerate(stored_messages(node.data_dir, stream)))
    assert [line["event"] for line in log_lines(node)][-3:] == ["draining", "busiest_clients", "stopped"]


@pytest.mark.slow
async def test_a_killed_node_has_everything_that_it_confirmed_and_goes_on_behind_it(tmp_path: Path) -> None:
    everything: dict[str, list[tuple[int, bytes]]] = {stream: [] for stream in STREAMS}
    with NodeProcess(tmp_path / "data") as node:
        address = node.address
        for _ in range(3):
            publishers = await push_until(node, signal.SIGKILL, 60)
            node.kill()
            for stream, confirmed in confirmed_by_stream(publishers).items():
                everything[stream] += confirmed
            node.start()
            assert node.address == address
        assert node.stop() == 0
    for stream, confirmed in everything.items():
        stored = stored_messages(node.data_dir, stream)
        indexes = [index for index, _ in confirmed]
        assert indexes == sorted(set(indexes))
        assert [stored[index] for index in indexes] == [data for _, data in confirmed]


@pytest.mark.parametrize("site", ["before_begin", "after_rows_before_commit", "after_commit_before_confirm"])
async def test_a_node_that_dies_around_a_commit_has_everything_that_it_confirmed(tmp_path: Path, site: str) -> None:
    """It ends itself at the place, at its twentieth visit; nothing that comes later may have been confirmed by then."""
    environment = {"STREAM_NODE_FAILPOINT": f"{site}:20"}
    with NodeProcess(tmp_path / "data", environment=environment) as node:
        publishers = await push_to_the_end(node)
        assert node.wait() == -signal.SIGKILL
    for stream, confirmed in confirmed_by_stream(publishers).items():
        stored = stored_messages(node.data_dir, stream)
        assert 0 < len(confirmed) <= len(stored)
        assert [(index, stored[index]) for index, _ in confirmed] == confirmed


async def push_to_the_end(node: NodeProcess) -> list[Publisher]:
    """Publish from several connections until the node has ended by itself."""
    publishers = make_publishers()
    with trio.fail_after(2 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for publisher in publishers:
                nursery.start_soon(publisher.run, node.address)
    return publishers


async def test_a_quiet_node_stops_at_once_whatever_its_peers_do(tmp_path: Path) -> None:
    """Connections that say nothing, and one that has begun a frame, do not hold it up."""
    with NodeProcess(tmp_path / "data", environment={"STREAM_NODE_DRAIN_TIMEOUT_S": "1000"}) as node:
        async with stream_peer(node.address) as peer, stream_peer(node.address, LEGACY) as silent:
            route = await peer.create("s")
            await peer.push(route, b"stored")
            await peer.stream.send_all(peer.frame(route, PUSH.encode_request(PushRequest(2, b"half")))[:-1])
            assert silent.wire is LEGACY
            assert await trio.to_thread.run_sync(node.stop) == 0
            await peer.wait_closed()
    assert stored_messages(node.data_dir, "s") == [b"stored"]


async def test_a_peer_that_reads_nothing_holds_up_stopping_for_the_drain_time_only(tmp_path: Path) -> None:
    """Its answers are given up then."""
    environment = {"STREAM_NODE_DRAIN_TIMEOUT_S": "0.2"}
    with NodeProcess(tmp_path / "data", environment=environment) as node:
        async with stream_peer(node.address) as peer, stream_peer(node.address) as other:
            route = await other.create("s")
            await other.push_all(route, [bytes(1_000_000)] * 10)
            pull = PULL.encode_request(PullRequest(1, 0, 1))
            await peer.stream.send_all(peer.frame(route, pull) * 40)
            await other.pull(route, 0, 1)
            assert await trio.to_thread.run_sync(node.stop) == 0
    assert log_size(node) == 0


def test_a_node_ends_without_freeing_what_it_held(tmp_path: Path) -> None:
    """With 100,000 streams, that takes Python ten seconds. A file that Python would write while it does so is not
    there, and what the node has logged last is."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit, pathlib\natexit.register(pathlib.Path({str(tmp_path / 'freed')!r}).touch)\n"
    )
    log = tmp_path / "log"
    with NodeProcess(tmp_path / "data", environment={"PYTHONPATH": str(tmp_path)}, log_file=log) as node:
        assert node.stop() == 0
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"
    assert not (tmp_path / "freed").exists()
