"""Goal: pushes are refused while the disk is nearly full, so that everything else still has room.

Method: a whole server in this process, which is told how much is free.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from stream_node.care import disk_watch
from stream_node.node.config import Config
from stream_node.node.server import Server
from stream_service.protocol import PushConfirm, Status
from tests.support.data_dir import stored_messages
from tests.support.served import served, wait_until


async def test_pushes_are_refused_before_the_disk_is_full_and_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that there is room left to delete and to stop."""
    free_bytes = 10_000_000
    monkeypatch.setattr(disk_watch, "DISK_INTERVAL_S", 0.01)
    monkeypatch.setattr(disk_watch, "BALLAST_AFTER_S", 0.0)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free_bytes))
    # A node that can have no ballast keeps its floor.
    (tmp_path / "ballast").mkdir()
    free_bytes = 50_000_000
    with capture_logs() as logs:
        async with served(tmp_path, error_delay_s=0.05, free_disk_bytes_min=5_000_000) as server:
            peer = await server.peer()
            route = await peer.create("s")
            await peer.push(route, b"stored")
            free_bytes = 4_999_999
            await wait_until(lambda: server.server.refusing_pushes)
            assert await peer.push(route, b"refused") == PushConfirm(1, Status.ERROR, 0)
            assert "free_disk_bytes_min" in (server.statistics().services.write_failure or "")
            assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == [b"stored"]
            assert await peer.create("t")
            await peer.save_index("c", "s", 1)
            assert await peer.get_index("c", "s") == 1
            free_bytes = 6_000_000
            await wait_until(lambda: not server.server.refusing_pushes)
            assert (await peer.push(route, b"again")).index == 1
            assert server.statistics().services.write_failure is None
            assert server.statistics().services.pushes_failed == 1
    assert [line["refusing_pushes"] for line in logs if line["event"] == "disk_floor"] == [True, False]


async def test_a_look_at_the_disk_for_which_there_is_no_thread_ends_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a system without room for one more thread ends no node. Method: the look raises what trio raises then."""
    monkeypatch.setattr(disk_watch, "DISK_INTERVAL_S", 0.01)

    def fail(path: Path) -> Any:
        raise RuntimeError("can't start new thread")

    async with served(tmp_path) as server:
        with capture_logs() as logs, monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", fail)
            await wait_until(lambda: any(line["event"] == "disk_not_seen" for line in logs))
        await wait_until(lambda: server.server.condition.disk_failure is None)


async def test_the_disk_is_looked_at_before_anybody_can_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(Config(data_dir=str(tmp_path), listen="127.0.0.1:0", free_disk_bytes_min=2**60, error_delay_s=0.05))
    was_listening: list[bool] = []
    usage = shutil.disk_usage(tmp_path)

    def look(path: Path) -> Any:
        was_listening.append(bool(server.addresses))
        return usage

    monkeypatch.setattr(shutil, "disk_usage", look)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        assert not was_listening[0]
        assert server.refusing_pushes
        server.stop()


async def test_what_is_pushed_between_two_looks_at_the_disk_leaves_it_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a burst cannot fill the disk. Method: nobody looks again, and the room that was seen is used up, counted
    twice since each message is written to the log and to the database."""
    usage = shutil.disk_usage(tmp_path)
    looks: list[Path] = []

    def look(path: Path) -> Any:
        looks.append(path)
        return usage._replace(free=11_000_000)

    monkeypatch.setattr(disk_watch, "DISK_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(shutil, "disk_usage", look)
    async with served(tmp_path, error_delay_s=0.05, free_disk_bytes_min=5_000_000) as server:
        peer = await server.peer()
        route = await peer.create("s")
        confirms = [await peer.push(route, bytes(1_000_000)) for _ in range(4)]
        assert [confirm.status for confirm in confirms] == [Status.OK, Status.OK, Status.ERROR, Status.ERROR]
        assert (await peer.push(route, b"small")).index == 2
        assert len(looks) == 1
    assert [len(data) for data in stored_messages(tmp_path, "s")] == [1_000_000, 1_000_000, 5]
