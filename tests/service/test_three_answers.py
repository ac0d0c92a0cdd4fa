"""Goal: whoever pushes learns what became of the push, and it is true: stored, not stored, or unknown; and why.

Method: the running command on a disk whose calls fail when the test says so, real clients and raw peers; what is stored
is read from the file after the node has ended, by a reader of its own.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from ockam.actors.address import Route, local
from stream_client import PushesFailed, PushNotStored, PushUnknown, Reconnect, connect
from stream_client import blocking as blocking_client
from stream_node.node.process import NodeProcess
from stream_service.extensions import PUSH_FAILED, RICH_PUSH, Outcome, RichConfirm, RichPush, RichStatus
from stream_service.limits import StreamLimits
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status
from tests.support.broken_disk import LOG, BrokenDisk, broken_disk, node_on
from tests.support.data_dir import stored_messages
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import StreamPeer

__all__ = ["broken_disk"]


async def test_a_push_whose_sync_failed_is_unknown_and_those_after_it_are_not_stored(
    broken_disk: BrokenDisk, tmp_path: Path
) -> None:
    """The sync fails, and the log has the message: the next start finds it. So nobody may say that it is not stored."""
    with node_on(broken_disk, tmp_path) as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            assert await stream.push(b"stored") == 0
            broken_disk.fail("sync", LOG)
            with pytest.raises(PushUnknown, match=r"may have been stored, or not: .*disk") as unknown:
                await stream.push(b"in doubt")
            with pytest.raises(PushNotStored, match="has not been stored: nothing is written any more") as not_stored:
                await stream.push(b"too late")
            with pytest.raises(PushNotStored):
                await stream.push(b"too late with a key", key=b"k")
            assert [message.data for message in await stream.pull(0)] == [b"stored"], "this life does not show it"
            assert "since the disk failed" in not_stored.value.reason
            assert "may or may not" not in not_stored.value.reason
            assert [(error.value.in_doubt, error.value.fault) for error in (unknown, not_stored)] == [
                (True, "node"),
                (False, "node"),
            ]
        node.kill()
        broken_disk.mend()
        node.start()
        assert node.stop() == 0
    assert stored_messages(node.data_dir, "s") == [b"stored", b"in doubt"], "so it was right not to deny it"


def test_the_blocking_client_says_the_same(broken_disk: BrokenDisk, tmp_path: Path) -> None:
    with node_on(broken_disk, tmp_path) as node, blocking_client.connect(node.address) as client:
        stream = client.create("s")
        stream.push(b"stored")
        broken_disk.fail("sync", LOG)
        with pytest.raises(PushUnknown, match="disk"):
            stream.push(b"in doubt")
        with stream.publisher() as publisher, pytest.raises(PushesFailed, match=r"2 messages .* has not been stored"):
            publisher.push_many([b"too late", b"too late"])


async def test_an_idempotent_publisher_ends_as_stored_once_whatever_the_disk_had_kept(
    broken_disk: BrokenDisk, tmp_path: Path
) -> None:
    """It waits while the node cannot tell, sends again when the node is back, and nobody has to do anything."""
    messages = [b"%d" % number for number in range(20)]
    with node_on(broken_disk, tmp_path) as node:
        async with connect(node.address, reconnect=Reconnect(delay_s_max=0.1)) as client:
            stream = await client.create("s")
            async with stream.publisher(idempotent=True) as publisher:
                pushes = [await publisher.push(data) for data in messages[:10]]
                await publisher.flush()
                broken_disk.fail("sync", LOG)
                pushes += [await publisher.push(data) for data in messages[10:]]
                while "writing_stopped" not in node.log_file.read_text():
                    await trio.sleep(0.01)
                await trio.lowlevel.checkpoint()
                node.kill()
                broken_disk.mend()
                node.start()
                with trio.fail_after(PATIENCE_S):
                    await publisher.flush()
                assert [push.result() for push in pushes] == list(range(20))
        assert node.stop() == 0
    assert stored_messages(node.data_dir, "s") == messages


async def test_a_full_disk_says_why_to_our_clients_and_to_real_peers_the_bytes_they_know(tmp_path: Path) -> None:
    """The floor of free disk stands for any full disk: the node refuses before it writes."""
    async with served(tmp_path, error_delay_s=0.05, free_disk_bytes_min=2**60) as server:
        async with connect(server.address) as client:
            stream = await client.create("s")
            for key in (None, b"k"):
                with pytest.raises(PushNotStored, match=r"the disk is nearly full: free_disk"):
                    await stream.push(b"x", key=key)
            async with stream.publisher(idempotent=True, keep_failed=True) as publisher:
                pushes = [await publisher.push(b"x") for _ in range(3)]
            assert all(isinstance(push.error, PushNotStored) for push in pushes)
        peer = await server.peer()
        route = await peer.create("s")
        answer = await peer.ask(route, PUSH.encode_request(PushRequest(7, b"x")))
        assert answer.payload == b"\x0bstream_push\x03\x07\x01\x00"
        assert PUSH.decode_response(answer.payload) == PushConfirm(7, Status.ERROR, 0)
        rich = await peer.ask(route, RICH_PUSH.encode_request(RichPush(8, b"x", None, [], None)))
        assert RICH_PUSH.decode_response(rich.payload) == RichConfirm(8, RichStatus.ERROR, 0, 0)
    assert stored_messages(tmp_path, "s") == []


async def test_the_answer_goes_only_to_an_address_that_says_it_is_understood(tmp_path: Path) -> None:
    async with served(tmp_path, error_delay_s=0.05, free_disk_bytes_min=2**60) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for address, told in (("node/1/me", True), ("node/1", False), ("me", False), ("node/2/me", False)):
            answer = await push_from(peer, address, route)
            assert PUSH_FAILED.is_in(answer) is told
            assert PUSH.is_in(answer) is not told
        failure = PUSH_FAILED.decode_response(await push_from(peer, "node/1/me", route))
        assert (failure.request_id, failure.outcome) == (7, Outcome.NOT_STORED)
        assert "nearly full" in failure.reason


async def push_from(peer: StreamPeer, address: str, route: Route) -> bytes:
    """The payload of the answer to a push whose return address is that one."""
    payload = PUSH.encode_request(PushRequest(7, b"x"))
    await peer.stream.send_all(peer.frame(route, payload, (local(address),)))
    return (await peer.receive()).payload


async def test_a_message_that_no_stream_keeps_is_refused_alone_and_by_name(tmp_path: Path) -> None:
    """A peer that is not told in full gets an `error`, which does not say for which of its pushes."""
    async with served(tmp_path, error_delay_s=0.05) as server:
        peer = await server.peer()
        route = await peer.create("s")
        large = PUSH.encode_request(PushRequest(7, bytes(StreamLimits().message_bytes_max + 1)))
        assert "a stream keeps at most" in await peer.refused(route, large)
        await peer.stream.send_all(peer.frame(route, large, (local("node/1/me"),)))
        failure = PUSH_FAILED.decode_response((await peer.receive()).payload)
        assert (failure.request_id, failure.outcome) == (7, Outcome.REFUSED)
        assert "a stream keeps at most" in failure.reason


async def test_an_errno_of_no_room_is_not_stored_and_the_next_push_is(broken_disk: BrokenDisk, tmp_path: Path) -> None:
    with node_on(broken_disk, tmp_path) as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            broken_disk.fail("write", LOG, errno.ENOSPC)
            with pytest.raises(PushNotStored, match="no room to write"):
                await stream.push(b"no room")
            broken_disk.mend()
            assert await stream.push(b"room") == 0
        node.kill()
        node.start()
        assert node.stop() == 0
    assert stored_messages(node.data_dir, "s") == [b"room"]


async def test_the_command_line_says_which_messages_are_stored_which_are_not_and_which_may_be(
    broken_disk: BrokenDisk, tmp_path: Path
) -> None:
    with node_on(broken_disk, tmp_path) as node:
        stored = await command(node, "push", "s", stdin=b"a\nb\n")
        assert (stored.returncode, stored.stdout.split(b" (")[0]) == (0, b"2 messages in s/0 at 0 to 1")
        broken_disk.fail("sync", LOG)
        unknown = await command(node, "push", "s", stdin=b"c\n")
        assert unknown.returncode == 1
        first, second = unknown.stdout.decode().splitlines()
        assert first.startswith("0 messages in s/0 (")
        assert second == "1 message for s/0 unknown, may be stored or not: number 1"
        (line,) = unknown.stderr.decode().splitlines()
        assert "may have been stored, or not: " in line
        assert "disk" in line
        report = json.loads((await command(node, "push", "s", "--json", stdin=b"d\ne\n")).stdout)
        assert (report["pushed"], report["failed"], report["not_stored"], report["unknown"]) == (0, 2, [[1, 2]], [])
        not_stored = await command(node, "push", "s", stdin=b"d\ne\n")
        assert not_stored.stdout.decode().splitlines()[1] == "2 messages for s/0 not stored: number 1 to 2"


async def command(node: NodeProcess, *arguments: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    """`stream-node`, to its end."""
    line = [sys.executable, "-m", "stream_node", *arguments, "--node", node.address]
    return await trio.run_process(line, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False)
