"""Litestream beside a node: a drill of losing the machine, a stop in good order, and many kills.

Goal: what the copy has comes back whole and can be served; what is missing after a kill is the end of what was pushed;
after a stop in good order nothing is missing. Method: the running command, a real Litestream that copies into a folder,
`kill -9` of both under load, the data directory deleted, a restore, and every message compared with the confirms.

The variable SQLITE_FOLDER names a folder with another SQLite for the nodes and commands (`libsqlite3.so.0`), as CI
makes one. Without it, SQLite may be one with the WAL-reset bug, for which `doctor` refuses Litestream. The tests run
all the same: every restored message is compared, and a directory that the bug damages is only theirs.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from stream_node.care.doctor import LITESTREAM_FOLDER, WAL_RESET_FIXED
from stream_node.node.process import NodeProcess
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.directory_lock import KEPT
from stream_storage.sqlite.database import FILE_NAME
from tests.support.command import Command, Done
from tests.support.data_dir import stored_messages
from tests.support.litestream import (
    STREAM,
    Confirmed,
    Litestream,
    Load,
    Loss,
    litestream_beside,
    loss_of,
    need_litestream,
)
from tests.support.pages import ROOT, Reader

pytestmark = pytest.mark.slow
WINDOW = 200
KILLS = 20
LOAD_S_MAX = 2.0
MORE_MAX = 10_000
REST_S = 0.01


def sqlite_for_nodes() -> dict[str, str]:
    folder = os.environ.get("SQLITE_FOLDER")
    return {"LD_LIBRARY_PATH": folder} if folder else {}


class Site:
    """A node with its data directory, and the Litestream that copies it. The copy is in another folder."""

    def __init__(self, folder: Path, copier: Litestream, node: NodeProcess, command: Command) -> None:
        self.node = node
        self.copier = copier
        self._folder = folder
        self._command = command

    def run(self, *arguments: str | Path) -> Done:
        return self._command(*arguments, environment=sqlite_for_nodes())

    def finding(self) -> dict[str, Any]:
        """What `doctor` says of Litestream."""
        told = self.run("doctor", "--data-dir", self.node.data_dir, "--json")
        (finding,) = [each for each in told.row["findings"] if each["check"] == "litestream"]
        assert told.code == 1 or finding["status"] == "ok"
        return dict(finding)

    def kill(self) -> float:
        """Kills both at once, as the end of the machine does. Returns the monotonic time of the kill."""
        killed_s = time.monotonic()
        os.kill(self.node.pid, signal.SIGKILL)
        os.kill(self.copier.pid, signal.SIGKILL)
        self.copier.end(signal.SIGKILL)
        self.node.kill()
        return killed_s

    def restore(self) -> list[bytes]:
        """Deletes the data directory and restores it from the copy. Returns what the restored directory has."""
        shutil.rmtree(self.node.data_dir)
        file = self._folder / "restored.sqlite"
        self.copier.restore(file)
        row = self.run("restore", "--file", file, "--data-dir", self.node.data_dir, "--json").row
        file.unlink()
        verified = self.run("verify", "--data-dir", self.node.data_dir, "--json").row
        assert (verified["ok"], verified["messages"]) == (True, row["messages"])
        # Compared in a copy, so that nothing but a node has ever opened the directory.
        looked_at = shutil.copytree(self.node.data_dir, self._folder / "looked at")
        stored = stored_messages(looked_at, STREAM)
        shutil.rmtree(looked_at)
        assert len(stored) == row["messages"]
        return stored


@pytest.fixture
def site(tmp_path: Path, command: Command) -> Iterator[Site]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    data_dir = tmp_path / "data"
    with litestream_beside(data_dir, folder) as copier, NodeProcess(data_dir, environment=sqlite_for_nodes()) as node:
        yield Site(folder, copier, node, command)


async def lose_the_machine(site: Site, load: Load, before: list[bytes], *, more: int) -> tuple[list[bytes], Loss]:
    """Loads the node until the copy has something of it and so many more messages are confirmed, kills both, and
    restores. Returns what came back, and the loss."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, site.node.address)
        await load.wait_confirmed(WINDOW)
        covered, at = len(load.confirmed), site.copier.newest()
        # The second piece from now on has begun after these confirms.
        await site.copier.wait_newer(at + 1)
        await load.wait_confirmed(len(load.confirmed) + more)
        killed_s = site.kill()
    stored = await trio.to_thread.run_sync(site.restore)
    assert len(stored) >= len(before) + covered
    return stored, loss_of(stored, before, load, killed_s)


async def test_a_lost_machine_comes_back_from_the_copy(site: Site) -> None:
    """Goal: the drill of docs/scale.md. The loss is printed: messages and seconds."""
    site.copier.start()
    await site.copier.wait_newer(0)
    print(f"doctor: {(await trio.to_thread.run_sync(site.finding))['text']}")
    first = Load("first life", 0, WINDOW)
    stored, loss = await lose_the_machine(site, first, [], more=2_000)
    print(f"{len(first.confirmed):,} confirmed, {loss.messages:,} lost, {loss.age_s:.2f} s back")
    # The node and the copying go on from there, and the second life can be lost as well.
    site.node.start()
    site.copier.start()
    second = Load("second life", len(stored), WINDOW)
    stored, loss = await lose_the_machine(site, second, stored, more=2_000)
    print(f"{len(second.confirmed):,} confirmed, {loss.messages:,} lost, {loss.age_s:.2f} s back")


async def test_after_a_stop_in_good_order_nothing_is_missing(site: Site) -> None:
    """Goal: the node stops beside Litestream, counts as stopped cleanly, and the copy then has everything."""
    site.copier.start()
    load = Load("only life", 0, WINDOW)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, site.node.address)
        await load.wait_confirmed(WINDOW)
        await site.copier.wait_newer(site.copier.newest() + 1)
        load.end()
    assert len(load.confirmed) == len(load.sent)
    assert site.node.stop() == 0
    # Its standing read has kept commits in the log; the next start takes them as they are.
    assert (site.node.data_dir / LOCK_NAME).read_bytes().startswith(KEPT)
    site.node.start()
    assert site.node.stop() == 0
    assert site.copier.end(signal.SIGTERM) == 0
    assert await trio.to_thread.run_sync(site.restore) == load.sent


async def test_doctor_sees_a_real_litestream(site: Site) -> None:
    assert (await trio.to_thread.run_sync(site.finding))["status"] == "ok"
    site.copier.start()
    await site.copier.wait_newer(0)
    assert (site.node.data_dir / LITESTREAM_FOLDER).is_dir()
    beside = await trio.to_thread.run_sync(site.finding)
    fine = tuple(map(int, beside["values"]["version"].split("."))) >= WAL_RESET_FIXED
    assert beside["status"] == ("ok" if fine else "wrong")


def test_the_page_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_litestream()
    for name, value in sqlite_for_nodes().items():
        monkeypatch.setenv(name, value)
    pids = tmp_path / "litestream.pid"
    try:
        with Reader(tmp_path) as reader:
            page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
            reader.read(page.partition("\n## Litestream\n")[2].partition("\n## ")[0])
            assert reader.stop() == []
        assert not pids.exists()
    finally:
        # The page ends it, unless something has failed before.
        if pids.exists():
            with suppress(ProcessLookupError):
                os.kill(int(pids.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param([b"0 ", b"2 "], id="one in the middle is missing"),
        pytest.param([b"1 "], id="the first is missing"),
        pytest.param([b"0 ", b"1 ", b"1 "], id="one is there twice"),
        pytest.param([], id="all from before are missing"),
    ],
)
def test_the_comparison_can_fail(stored: list[bytes]) -> None:
    load = Load("life", 1, WINDOW)
    load.sent = [b"1 ", b"2 ", b"3 "]
    load.confirmed = [Confirmed(data, float(number)) for number, data in enumerate(load.sent[:2])]
    assert loss_of([b"0 ", b"1 ", b"2 ", b"3 "], [b"0 "], load, 5.0) == (0, 0.0)
    assert loss_of([b"0 "], [b"0 "], load, 5.0) == (2, 5.0)
    assert loss_of([b"0 ", b"1 "], [b"0 "], load, 5.0) == (1, 4.0)
    with pytest.raises(AssertionError, match=r"is not the beginning|are missing"):
        loss_of(stored, [b"0 "], load, 5.0)


class Figures:
    """What a site has shown: losses, sizes, and how long stops, starts and restores took."""

    def __init__(self, site: Site) -> None:
        self.losses: list[Loss] = []
        self.seconds: dict[str, list[float]] = {}
        self.log_bytes = 0
        self.piece_bytes = 0
        self._site = site

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.seconds.setdefault(what, []).append(time.monotonic() - began_s)

    async def watch_sizes(self) -> None:
        log = self._site.node.data_dir / f"{FILE_NAME}-wal"
        while True:
            with suppress(FileNotFoundError):
                self.log_bytes = max(self.log_bytes, log.stat().st_size)
            self.piece_bytes = max([self.piece_bytes, *self._site.copier.pieces().values()])
            await trio.sleep(0.1)

    def tell(self) -> None:
        for what, seconds in sorted(self.seconds.items()):
            print(f"{what}: p50 {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s of {len(seconds)}")
        ages_s, messages = zip(*((loss.age_s, loss.messages) for loss in self.losses), strict=True)
        print(f"lost: p50 {statistics.median(ages_s):.2f} s, at most {max(ages_s):.2f} s of {len(ages_s)} kills")
        print(f"lost messages: p50 {statistics.median(messages):,.0f}, at most {max(messages):,}")
        print(f"largest log {self.log_bytes / 2**20:.1f} MiB, largest piece {self.piece_bytes / 2**20:.1f} MiB")


@pytest.mark.soak
async def test_many_lost_machines(site: Site) -> None:
    """Goal: with a sync interval of one second, half of the kills lose at most 1.5 s of confirms, half of the stops
    beside Litestream take at most one second, and the log stays below 64 MiB. All figures are printed.

    Method: in each life, the node is loaded, stops in good order or is killed alone beside Litestream, and starts
    again; then it is loaded once more, both are killed, and the next life begins with what the restore brought back.
    """
    chance = random.Random(19)
    figures, stored, pushed = Figures(site), list[bytes](), 0
    async with trio.open_nursery() as watching:
        watching.start_soon(figures.watch_sizes)
        for life in range(KILLS):
            site.copier.start()
            load = Load(f"life {life}, first half", len(stored), WINDOW, REST_S)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run, site.node.address)
                await load.wait_confirmed(WINDOW)
                await site.copier.wait_newer(site.copier.newest())
                await trio.sleep(chance.uniform(0.5, LOAD_S_MAX))
                load.end()
            before, pushed = stored + load.sent, pushed + len(load.sent)
            if life % 2:
                site.node.kill()
            else:
                with figures.timed("stop beside Litestream"):
                    assert await trio.to_thread.run_sync(site.node.stop) == 0
            with figures.timed(f"start beside Litestream after {'a kill' if life % 2 else 'a stop'}"):
                await trio.to_thread.run_sync(site.node.start)
            load = Load(f"life {life}, second half", len(before), WINDOW, REST_S)
            stored, loss = await lose_the_machine(site, load, before, more=chance.randrange(100, MORE_MAX))
            figures.losses.append(loss)
            pushed += len(load.confirmed)
            await trio.to_thread.run_sync(site.node.start)
        watching.cancel_scope.cancel()
    print(f"{pushed:,} messages confirmed in {KILLS} lives")
    figures.tell()
    assert statistics.median(loss.age_s for loss in figures.losses) <= 1.5
    assert statistics.median(figures.seconds["stop beside Litestream"]) <= 1.0
    assert 0 < figures.log_bytes <= 64 * 2**20
    assert 0 < figures.piece_bytes <= 64 * 2**20
