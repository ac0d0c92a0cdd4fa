"""Goal: a node in a small memory limit bounds itself. It is not killed by one client that pushes large messages, or
that asks for large messages and reads no answer.

Method: the texts of both versions of cgroups; and a real cgroup of 256 MiB, the request of the manifest, where this
machine lets one be made.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from ockam.actors.address import split_host_port
from ockam.transport.wire_head import HEAD
from stream_client.blocking import connect
from stream_node.node import memory_limit
from stream_node.node.config import Config
from stream_node.node.memory_limit import bounded, find_memory_limit
from stream_node.node.process import NodeProcess
from stream_service.protocol import PULL, PullRequest
from tests.support.stream_peer import StreamPeer, stream_peer

LIMIT_BYTES = 256 * 1024 * 1024


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/", {"memory.max": "268435456\n"}, LIMIT_BYTES),
        ("0::/a/b", {"a/b/memory.max": "max\n", "a/memory.max": "268435456\n"}, LIMIT_BYTES),
        ("4:memory:/docker/1\n0::/", {"memory/memory.limit_in_bytes": "268435456\n"}, LIMIT_BYTES),
        ("0::/", {"memory.max": "max\n"}, None),
        ("0::/", {}, None),
    ],
)
def test_the_limit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], limit: int | None
) -> None:
    monkeypatch.setattr(memory_limit, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory_limit, "OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(own + "\n")
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert find_memory_limit() == limit
    assert (bounded(Config(), limit) == Config()) == (limit is None)


def test_settings_below_the_bounds_stay() -> None:
    small = Config(peer_memory_bytes_max=2**20, identity_in_flight_bytes_max=2**20)
    found = bounded(small, LIMIT_BYTES)
    assert (found.peer_memory_bytes_max, found.identity_in_flight_bytes_max) == (2**20, 2**20)
    assert bounded(small, 2**40) is small


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with the limit, of version 1 or 2; skips where none can be made."""
    own = {
        line.split(":")[1]: line.split(":", 2)[2].strip("/") for line in memory_limit.OWN_CGROUPS.read_text().split()
    }
    is_old = "memory" in own
    root = memory_limit.CGROUPS / "memory" if is_old else memory_limit.CGROUPS
    made = root / own.get("memory", own.get("", "")) / f"stream-node-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(LIMIT_BYTES))
    except OSError as error:
        if made.is_dir():
            made.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    yield made
    made.rmdir()


@pytest.fixture
def limited(tmp_path: Path, cgroup: Path) -> Iterator[NodeProcess]:
    """A node in this cgroup, which stops without an error."""

    class Limited(NodeProcess):
        def command(self) -> list[str]:
            return ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh", *super().command()]

    with Limited(tmp_path / "data") as node:
        yield node
        assert node.stop() == 0
    assert "memory_bounded" in (tmp_path / "data.log").read_text()


@pytest.mark.slow  # stores 120 MB within the limit
def test_large_messages_of_one_client_do_not_kill_a_node_with_little_memory(limited: NodeProcess) -> None:
    with connect(limited.address) as client:
        for number in range(2):
            with client.create("s").publisher() as publisher:
                pushes = [publisher.push(bytes([number, each]) * 7_500_000) for each in range(4)]
            assert [push.index for push in pushes] == [4 * number + each for each in range(4)]


@pytest.mark.slow  # stores 60 MB, and sends 75 MB, within the limit
async def test_a_client_that_reads_no_answers_does_not_kill_a_node_with_little_memory(limited: NodeProcess) -> None:
    """Four connections of one client ask for four messages each, 240 MB in all, and read nothing.

    Meanwhile a client at another address reads one of these streams. When the first one is gone, a connection that
    reads gets each of its messages whole."""
    async with stream_peer(limited.address) as owner:
        routes = [await owner.create(f"s{number}") for number in range(4)]
        for number, route in enumerate(routes):
            await owner.push(route, bytes([number]) * 15_000_000)
        await owner.push(routes[1], b"small")
        async with AsyncExitStack() as stack:
            silent = []
            for _ in range(4):
                stream = await trio.open_tcp_stream(*split_host_port(limited.address), local_address="127.0.0.2")
                silent.append(StreamPeer(await stack.enter_async_context(stream), HEAD))
                await stream.send_all(HEAD.hello)
            for peer in silent:
                for number, route in enumerate(routes):
                    await peer.send(route, PULL.encode_request(PullRequest(number, 0, 1)))
            with trio.fail_after(30):
                while not any(_waiting_bytes(peer.stream) > 100_000 for peer in silent):
                    await trio.sleep(0.02)
            for _ in range(100):
                assert (await owner.pull(routes[1], 1, 1)).messages[0].data == b"small"
        async with stream_peer(limited.address) as reader:
            for number, route in enumerate(routes):
                await reader.send(route, PULL.encode_request(PullRequest(number, 0, 1)))
            found = [PULL.decode_response((await reader.receive()).payload) for _ in routes]
        assert {each.request_id: each.messages[0].data for each in found} == {
            number: bytes([number]) * 15_000_000 for number in range(4)
        }


def _waiting_bytes(stream: trio.SocketStream) -> int:
    """The bytes that the kernel has received and nobody has read."""
    return int.from_bytes(fcntl.ioctl(stream.socket.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
