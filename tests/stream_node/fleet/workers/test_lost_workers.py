"""Goal: when a worker dies, only those clients of the others notice it that wait for an answer of it, and a publisher
of the real services hears ERROR for what is unknown and goes on over its connection.

Method: the real command with two workers, one of which is frozen and killed; raw connections to the other one, with the
frames of real publishers, whose request id is always 1.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import trio

from ockam.actors.address import Route
from stream_client import connect
from stream_node.node.process import NodeProcess
from stream_service.protocol import PUSH, PushRequest, Status
from stream_storage.directory_lock import owner_of
from tests.support.stream_peer import StreamPeer, stream_peer

PATIENCE_S = 60.0


async def find_streams(address: str) -> tuple[str, str]:
    """A stream that another worker serves than the one at this address, and one that it serves itself."""
    found: dict[bool, str] = {}
    async with connect(address) as client:
        for number in range(100):
            await client.create(f"s{number}")
            found[await client.find_owner(f"s{number}") is None] = f"s{number}"
            if len(found) == 2:
                return found[False], found[True]
    raise AssertionError("all streams are at one worker")


async def address_of_a_worker(node: NodeProcess) -> tuple[str, int]:
    """The own address of one worker, and the process id of the other one."""
    async with connect(node.address) as client:
        for number in range(100):
            await client.create(f"a{number}")
            address = await client.find_owner(f"a{number}")
            if address is not None:
                break
        assert address is not None
    pids = {owner_of(node.data_dir / name) for name in ("w00", "w01")}
    async with connect(address) as client:
        mine = node_pid_at(address, pids)
    (other,) = pids - {mine}
    assert other is not None
    return address, other


def node_pid_at(address: str, pids: set[int | None]) -> int:
    """The process that listens at an address, by the inode of its socket."""
    port = int(address.rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [each[9] for each in lines if each[1].endswith(f":{port:04X}") and each[3] == "01" and int(each[9])][:1]
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if f"socket:[{inode}]" == os.readlink(link):
                assert pid is not None
                return pid
    raise AssertionError("no worker has the connection")


async def push_waiting(peer: StreamPeer, route: Route, data: bytes) -> Status:
    with trio.fail_after(PATIENCE_S):
        await peer.send(route, PUSH.encode_request(PushRequest(1, data)))
        return PUSH.decode_response((await peer.receive(PATIENCE_S)).payload).status


async def test_clients_with_all_answers_keep_their_connections_and_real_publishers_hear_error(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", arguments=("--workers", "2")) as node:
        address, victim = await address_of_a_worker(node)
        there, here = await find_streams(address)
        async with stream_peer(address) as publisher, stream_peer(address) as idle, connect(address) as client:
            routes = [await peer.create(there) for peer in (publisher, idle)]
            assert await push_waiting(idle, routes[1], b"idle") is Status.OK
            stream = await client.create(there)
            await stream.push(b"of ours")
            own = await client.create(here)
            # Two pushes are unknown: the worker gets them, or not, and dies.
            os.kill(victim, signal.SIGSTOP)
            for data in (b"unknown 1", b"unknown 2"):
                await publisher.send(routes[0], PUSH.encode_request(PushRequest(1, data)))
            await own.push(b"the frames before are on their way")
            os.kill(victim, signal.SIGKILL)
            answers = [PUSH.decode_response((await publisher.receive(PATIENCE_S)).payload) for _ in range(2)]
            assert [(each.request_id, each.status) for each in answers] == [(1, Status.ERROR)] * 2
            # It sends them again at once; they wait until the worker is back.
            for data in (b"unknown 1", b"unknown 2", b"later"):
                assert await push_waiting(publisher, routes[0], data) is Status.OK
            assert await push_waiting(idle, routes[1], b"idle still") is Status.OK
            await stream.push(b"of ours still")
            found = [message.data for message in await stream.pull()]
        expected = [b"idle", b"of ours", b"unknown 1", b"unknown 2", b"later", b"idle still", b"of ours still"]
        assert [data for at, data in enumerate(found) if data not in found[at + 1 :]] == expected
        log = node.log_file.read_text()
        assert '"cluster_link_lost"' in log
        assert node.stop() == 0
