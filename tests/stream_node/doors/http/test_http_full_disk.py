"""Goal: over HTTP, a full disk is a problem 507 that says what to do, nothing is half stored, and reading goes on.

Method: SQLite's own page limit under a real node, the node's own floor of free space, and a small file system that is
really full, under the running command. Real requests over real sockets.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from stream_node.node.process import NodeProcess
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.doors.http.test_data_pull import following
from tests.support.limited_disk import LimitedDisk, limit_disk
from tests.support.served import PATIENCE_S
from tests.support.small_disk import mounted_disk

RAW = {"Content-Type": "application/octet-stream"}
LINES = {"Content-Type": "application/x-ndjson"}
CHUNK = b"x" * 50_000
PREFIX = "urn:stream-node:problem:"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> LimitedDisk:
    return limit_disk(monkeypatch)


def checked(answer: httpx.Response, name: str) -> dict[str, Any]:
    """The problem details of an answer, after the checks of what every 507 has."""
    details: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, details["status"], details["type"]) == (507, 507, PREFIX + name), details
    assert (details["retriable"], details["in_doubt"], answer.headers["retry-after"]) == (True, False, "1")
    return details


async def reason_against(client: httpx.AsyncClient) -> str:
    """Why the node is not ready."""
    answer = await client.get("/readyz")
    (reason,) = answer.json()["reasons"]
    assert answer.status_code == 503
    return str(reason)


async def becomes(client: httpx.AsyncClient, status: int) -> None:
    """Waits until the node tries a write again."""
    with trio.fail_after(PATIENCE_S):
        while (await client.get("/readyz")).status_code != status:
            await trio.sleep(0.05)


async def push_until_full(client: httpx.AsyncClient) -> tuple[int, httpx.Response]:
    """Fills the disk. Returns the number of stored messages, and the answer to the first that is not stored."""
    for number in range(1_000):
        answer = await client.post("/v1/streams/orders", content=CHUNK, headers=RAW)
        if answer.status_code != 200:
            return number, answer
        assert answer.json()["indexes"] == [number]
    raise AssertionError("the disk does not fill up")


async def test_a_push_without_room_is_a_507_and_stores_nothing(tmp_path: Path, disk: LimitedDisk) -> None:
    """Reading and following go on meanwhile. With room again, pushes are stored, and a follower gets them at once."""
    async with http_node(tmp_path) as node, node.client() as client:
        stored, answer = await push_until_full(client)
        assert "free space or raise the quota" in checked(answer, "not-stored")["detail"]
        body = b"\n".join(b'"%s"' % CHUNK for _ in range(3))
        answer = await client.post("/v1/streams/orders", content=body, headers=LINES)
        details = checked(answer, "not-stored")
        assert (details["stored"], [set(each) for each in details["messages"]]) == (0, [{"detail", "in_doubt"}] * 3)
        page = (await client.get(f"/v1/streams/orders?from={stored - 1}")).json()
        assert (page["next_index"], [each["index"] for each in page["messages"]]) == (stored, [stored - 1])
        assert "pushes are not stored" in await reason_against(client)
        assert (await client.get("/readyz?for=read")).json() == {"ready": True, "reasons": []}
        assert (await client.get("/readyz?for=life")).status_code == 400
        async with following(node, f"orders?from={stored - 1}") as follower:
            await follower.events(1)
            disk.free()
            # Nobody has pushed since, or asked for readiness: the node finds out by itself, and says it alike.
            with trio.fail_after(PATIENCE_S):
                while 'troubles{kind="push_failed"} 0.0' not in (await client.get("/metrics")).text:
                    await trio.sleep(0.05)
            assert node.running.server.statistics().services.write_failure is None
            assert (await client.get("/readyz")).status_code == 200
            answer = await client.post("/v1/streams/orders", content=b"room again", headers=RAW)
            assert answer.json()["indexes"] == [stored]
            (event,) = await follower.events(1)
            assert json.loads(event["data"])["data"] == "room again"


async def test_a_numbered_push_without_room_is_answered_and_repeated(tmp_path: Path, disk: LimitedDisk) -> None:
    """A device is told of the full disk, too, and stores the same message once when there is room."""
    async with http_node(tmp_path) as node, node.client() as client:
        await push_until_full(client)
        numbered = "/v1/streams/orders?publisher_id=device-7&sequence=0"
        checked(await client.post(numbered, content=CHUNK * 10, headers=RAW), "not-stored")
        disk.free()
        for duplicates in (0, 1):
            answer = await client.post(numbered, content=CHUNK * 10, headers=RAW)
            assert (answer.status_code, answer.json()["duplicates"]) == (200, duplicates)


async def test_creating_and_saving_without_room_are_507s(
    tmp_path: Path, disk: LimitedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the stream nor the position is there afterwards, and what is there stays readable. The time that a save
    may take is made shorter."""
    monkeypatch.setattr("stream_node.doors.http.data.streams.SAVE_S_MAX", 1.0)
    async with http_node(tmp_path) as node, node.client() as client:
        await push_until_full(client)
        for number in range(10_000):
            answer = await client.put("/v1/streams/" + f"{number}".rjust(1_000, "n"))
            if answer.status_code != 201:
                break
        assert "the stream cannot be made" in checked(answer, "no-room")["detail"]
        last = f"/v1/streams/{str(number).rjust(1_000, 'n')}"
        assert (await client.get(last + "/info")).status_code == 404
        answer = await client.post(last, content=b"1", headers=RAW)
        checked(answer, "no-room")
        for number in range(10_000):
            consumer = "/v1/streams/orders/consumers/" + f"{number}".rjust(1_000, "n")
            answer = await client.put(consumer + "?index=1")
            if answer.status_code != 200:
                break
        checked(answer, "no-room")
        assert (await client.get(consumer)).json()["positions"] == []
        assert (await client.get("/v1/streams/orders?limit=1")).status_code == 200
        disk.free()
        assert (await client.put(consumer + "?index=1")).status_code == 200


async def test_a_push_below_the_floor_is_a_507(tmp_path: Path) -> None:
    """The node keeps some space free; a push that would use it is refused with the name of the setting, and the node
    says that it is not ready."""
    async with http_node(tmp_path, free_disk_bytes_min=2**60) as node, node.client() as client:
        answer = await client.post("/v1/streams/orders", content=b"1", headers=RAW)
        assert "free_disk_bytes_min" in checked(answer, "not-stored")["detail"]
        ready = await client.get("/readyz")
        assert (ready.status_code, "free_disk_bytes_min" in ready.json()["reasons"][0]) == (503, True)


async def test_a_push_that_is_larger_than_the_room_above_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is not ready until a push is stored again."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=11_000_000))
    async with http_node(tmp_path, free_disk_bytes_min=5_000_000) as node, node.client() as client:
        assert (await client.get("/readyz")).status_code == 200
        answer = await client.post("/v1/streams/orders", content=bytes(4_000_000), headers=RAW)
        assert "free_disk_bytes_min" in checked(answer, "not-stored")["detail"]
        assert not node.running.server.refusing_pushes
        assert "free_disk_bytes_min" in await reason_against(client)
        assert (await client.post("/v1/streams/orders", content=b"small", headers=RAW)).json()["indexes"] == [0]
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a process writes")
async def test_an_idle_node_that_is_asked_whether_it_is_ready_hardly_writes(tmp_path: Path) -> None:
    """Method: the system counts the written bytes of this process, in which the node runs."""

    def written_bytes() -> int:
        return int(re.findall(r"^wchar: (.*)$", Path("/proc/self/io").read_text(), re.MULTILINE)[0])

    async with http_node(tmp_path) as node, node.client() as client:
        before = written_bytes()
        for _ in range(20):
            assert (await client.get("/readyz")).status_code == 200
        assert 0 < written_bytes() - before < 100_000


async def test_a_file_system_that_is_full_under_the_running_command(tmp_path: Path) -> None:
    """The disk is full to its last byte. With room again, the node goes on, and everything that was answered with 200
    is there."""
    settings = {"STREAM_NODE_ERROR_DELAY_S": "0.05", "STREAM_NODE_FREE_DISK_BYTES_MIN": "0"}
    arguments = ["--http", "127.0.0.1:0"]
    with mounted_disk(tmp_path / "disk", "4m") as small:
        ballast = small / "ballast"
        ballast.write_bytes(bytes(2_500_000))
        other = small / "other"
        data, log = small / "data", tmp_path / "log"
        with NodeProcess(data, arguments=arguments, environment=settings, log_file=log) as node:
            async with httpx.AsyncClient(base_url=f"http://{node.http[0]}", trust_env=False, timeout=60) as client:
                # Another program fills the disk before anybody has pushed.
                assert (await client.get("/readyz")).status_code == 200
                with suppress(OSError), other.open("wb", buffering=0) as filling:
                    while filling.write(bytes(4096)):
                        pass
                await becomes(client, 503)
                told = await trio.run_process(
                    [sys.executable, "-m", "stream_node", "status", "--node", node.address, "--check", "free-disk=0"],
                    capture_stdout=True,
                    check=False,
                )
                assert (told.returncode, "CRITICAL ready: pushes are not stored" in told.stdout.decode()) == (2, True)
                other.unlink()
                await becomes(client, 200)
                stored, answer = await push_until_full(client)
                assert stored > 0
                checked(answer, "not-stored")
                ballast.unlink()
                answer = await client.post("/v1/streams/orders", content=b"room again", headers=RAW)
                assert answer.json()["indexes"] == [stored]
                for index, data_sent in ((stored - 1, CHUNK), (stored, b"room again")):
                    assert (await client.get(f"/v1/streams/orders/messages/{index}")).content == data_sent
            assert node.stop() == 0
