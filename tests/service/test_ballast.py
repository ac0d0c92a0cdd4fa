"""Goal: on a disk that another program has filled, deletes and saves go on, a start succeeds, and all of it is said.

Method: the running command on a small file system, filled by this process to its last byte, also without a floor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from stream_client import PushFailed, SavedIndexes, Stream, connect
from stream_node.node.process import NodeProcess
from stream_storage.sqlite.ballast import FILE_NAME, SIZE_BYTES, Ballast
from tests.support.served import PATIENCE_S
from tests.support.small_disk import mounted_disk

SETTINGS = {"STREAM_NODE_ERROR_DELAY_S": "0.05", "STREAM_NODE_FREE_DISK_BYTES_MIN": "0"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "32m") as disk:
        yield disk


def fill(file: Path) -> None:
    """Takes the disk to its last byte, as another program does."""
    with file.open("ab", buffering=0) as filling:
        for size in (1 << 20, 4096):
            try:
                while filling.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


@pytest.mark.slow  # a node keeps a ballast when it is some seconds old
async def test_deletes_and_saves_go_on_where_another_program_has_filled_the_disk(disk: Path, tmp_path: Path) -> None:
    data, log, other = disk / "data", tmp_path / "log", disk / "other"
    node = NodeProcess(data, arguments=("--http", "127.0.0.1:0"), environment=SETTINGS, log_file=log)
    with node:
        async with (
            connect(node.address) as client,
            httpx.AsyncClient(base_url=f"http://{node.http[0]}", trust_env=False, timeout=60) as http,
        ):
            stream = await client.create("s")
            # One after the other, so that the write-ahead log stays short.
            for _ in range(500):
                await stream.push(bytes(10_000))
            with trio.fail_after(PATIENCE_S):
                while not (data / FILE_NAME).exists() or (data / FILE_NAME).stat().st_size < SIZE_BYTES:
                    await trio.sleep(0.05)
                assert (data / FILE_NAME).stat().st_blocks * 512 >= SIZE_BYTES
                fill(other)
                saved = 0
                while (data / FILE_NAME).stat().st_size:
                    saved += 1
                    await SavedIndexes(client, f"c{saved}".rjust(1_000, "c")).save("s", {0: saved})
                assert (await stream.truncate(400)).deleted == 400
                while not await push_fails(stream):
                    pass
                while "ballast, which was given up" not in str((await http.get("/readyz")).json()):
                    await trio.sleep(0.05)
                assert (await http.get("/readyz?for=read")).status_code == 200
                # A start on the full disk, after a kill.
                node.kill()
                node.start()
        async with connect(node.address) as client:
            stream = await client.create("s")
            with trio.fail_after(PATIENCE_S):
                assert (await stream.truncate(500)).first_index == 500
                assert await SavedIndexes(client, f"c{saved}".rjust(1_000, "c")).get("s") == saved
                other.unlink()
                while (data / FILE_NAME).stat().st_size < SIZE_BYTES:
                    await trio.sleep(0.05)
                while await push_fails(stream):
                    await trio.sleep(0.05)
        assert node.stop() == 0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines() if line.startswith("{")]
    assert ("ballast_given_up" in events, "ballast_made_again" in events) == (True, True)


def test_a_ballast_that_cannot_be_made_again_keeps_its_room(disk: Path) -> None:
    """Method: a disk that has less room than it says, as under a quota; later it has the room."""
    ballast = Ballast(disk)
    assert ballast.ensure(3 * SIZE_BYTES, begins=True) == 0
    assert ballast.give_up()
    fill(disk / "other")
    assert ballast.ensure(3 * SIZE_BYTES, begins=False) == SIZE_BYTES
    (disk / "other").unlink()
    assert ballast.ensure(3 * SIZE_BYTES, begins=False) == 0
    assert (disk / FILE_NAME).stat().st_size == SIZE_BYTES


async def push_fails(stream: Stream) -> bool:
    try:
        await stream.push(bytes(100_000))
    except PushFailed:
        return True
    return False
