"""Goal: a node whose workers cannot serve ends with one plain line and a failure, so that its service manager sees it.

Method: the real command; the lock or the database of a worker is taken away from it; settings are wrong; the supervisor
may open no more files, so the system starts no process for it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from stream_client import blocking
from stream_node.fleet import supervisor
from stream_node.fleet.supervisor import FAILURES_MAX
from stream_node.fleet.worker_place import VARIABLE
from stream_node.node.config import Config
from stream_node.node.notify import Notifier
from stream_node.node.process import NodeNotStarted, NodeProcess
from stream_storage.directory_lock import DirectoryLock, owner_of
from stream_storage.sqlite.database import FILE_NAME
from tests.support.command import ROOT

TWO = ("--workers", "2")
PATIENCE_S = 60.0


def plain_lines(node: NodeProcess) -> list[str]:
    """What the node told people: the lines on stderr that are not its log."""
    return [line for line in node.log_file.read_text().splitlines() if not line.startswith("{")]


def test_a_worker_whose_directory_is_in_use_ends_the_start_with_one_line(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", arguments=TWO)
    (tmp_path / "data" / "w01").mkdir(parents=True)
    lock = DirectoryLock(tmp_path / "data" / "w01")
    try:
        with pytest.raises(NodeNotStarted, match="ended with 1:"), node:
            pass
    finally:
        lock.release(clean=True)
    (line,) = plain_lines(node)
    assert re.search(rf"stream-node: the data directory .*w01 is in use by process {os.getpid()}; stop it", line)


@pytest.mark.parametrize("setting", [("--access-rules", "missing.toml"), ("--cluster", "m1")])
def test_a_wrong_setting_is_told_once(tmp_path: Path, setting: tuple[str, str]) -> None:
    node = NodeProcess(tmp_path / "data", arguments=(*TWO, *setting))
    with pytest.raises(NodeNotStarted, match="ended with 2:"), node:
        pass
    assert len(plain_lines(node)) == 1
    assert not (tmp_path / "data").exists()


def test_a_start_that_could_not_listen_binds_nobody_to_its_number_of_workers(tmp_path: Path) -> None:
    failing = NodeProcess(
        tmp_path / "data", listen="192.0.2.1:1", arguments=("--workers", "3", "--insecure"), log_file=tmp_path / "log"
    )
    with pytest.raises(NodeNotStarted, match="does not have that address"), failing:
        pass
    with NodeProcess(tmp_path / "data", arguments=TWO) as node:
        assert node.stop() == 0


@pytest.mark.soak
def test_a_worker_that_fails_for_good_ends_the_node(tmp_path: Path) -> None:
    """Below, the same number of failures ends a node that gets no process for a worker."""
    with NodeProcess(tmp_path / "data", arguments=TWO) as node:
        victim = tmp_path / "data" / "w01"
        pid = owner_of(victim)
        assert pid is not None
        for file in victim.glob(f"{FILE_NAME}*"):
            file.unlink()
        (victim / FILE_NAME).write_bytes(b"this is no database" * 1_000)
        os.kill(pid, signal.SIGKILL)
        assert node.wait(PATIENCE_S) == 1
        *reasons, last = plain_lines(node)
        assert f"the worker w01 has ended {FAILURES_MAX} times in a row before it listened" in last
        assert len(reasons) >= FAILURES_MAX
        assert "Traceback" not in node.log_file.read_text()


def wait_for(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.05)


def allow_files(node: NodeProcess, count: int | None) -> None:
    """Lets the supervisor open no further file than this number; None: as many as at its start."""
    _, most = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (most if count is None else count, most))


def kill_worker(node: NodeProcess, name: str) -> int:
    """Kills a worker. Returns the process id that it had."""
    pid = owner_of(node.data_dir / name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_worker_for_which_there_is_no_process_is_tried_again(tmp_path: Path) -> None:
    """The other worker serves meanwhile, and the dead one comes back when the system has a process for it."""
    with NodeProcess(tmp_path / "data", arguments=TWO) as node:
        allow_files(node, 3)
        before = kill_worker(node, "w01")
        wait_for(lambda: '"worker_not_started"' in node.log_file.read_text())
        allow_files(node, None)
        wait_for(lambda: owner_of(node.data_dir / "w01") not in (None, before))
        with blocking.connect(node.address, answer_timeout_s=PATIENCE_S) as client:
            for number in range(6):
                assert client.create(f"s{number}").push(b"x") == 0
        assert node.stop() == 0
        assert "Traceback" not in node.log_file.read_text()


@pytest.mark.slow
def test_a_node_that_gets_no_process_for_a_worker_ends_in_order(tmp_path: Path) -> None:
    """The other worker drains: the lock of its directory says that it has ended cleanly."""
    with NodeProcess(tmp_path / "data", arguments=TWO) as node:
        allow_files(node, 3)
        kill_worker(node, "w01")
        assert node.wait(PATIENCE_S) == 1
        assert owner_of(node.data_dir / "w00") is None
        assert owner_of(node.data_dir) is None
        (last,) = plain_lines(node)
        assert f"the worker w01 has ended {FAILURES_MAX} times in a row before it listened" in last
        assert "Too many open files" in last
        text = node.log_file.read_text()
        events = [json.loads(line) for line in text.splitlines() if '"worker_not_started"' in line]
        assert sum(event.get("repeated", 1) for event in events) == FAILURES_MAX
        assert "Traceback" not in text


def texts_of(folder: Path, pattern: str) -> list[str]:
    return [file.read_text() for file in folder.glob(pattern)]


async def test_a_worker_that_never_listens_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real worker processes, which stand still before they read their first setting. Each has a file for its errors: in
    one, the letters of both would mix."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, signal\ndef hang():\n    signal.pause()\nif {VARIABLE!r} in os.environ:\n"
        f"    file = {str(tmp_path)!r} + f'/{{os.getpid()}}.err'\n"
        "    os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), 2)\n    hang()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setattr(supervisor, "LISTEN_S_MAX", 1.0)
    lock = DirectoryLock(tmp_path)
    node = supervisor.Supervisor(
        Config(data_dir=str(tmp_path), listen="127.0.0.1:0", workers=2), lock, ["serve"], Notifier({})
    )
    with trio.fail_after(PATIENCE_S):
        end = await node.run(lambda: pytest.fail("no worker listens"))
    node.close()
    lock.release(clean=True)
    assert end.code > 0
    assert re.match(r"the worker w0[01] did not listen within 1 s and was killed; its log", end.reason or "")
    assert any('sitecustomize.py", line 3 in hang' in text for text in texts_of(tmp_path, "*.err"))


async def test_what_the_code_of_an_operator_prints_is_no_report_and_stops_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Real worker processes print more than a pipe takes before they listen. It goes where this process prints."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nif {VARIABLE!r} in os.environ:\n    print('printed ' * 20_000, flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    command = ["serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", *TWO]
    lock = DirectoryLock(tmp_path)
    node = supervisor.Supervisor(
        Config(data_dir=str(tmp_path), listen="127.0.0.1:0", workers=2), lock, command, Notifier({})
    )
    with trio.fail_after(PATIENCE_S):
        end = await node.run(node.stop)
    node.close()
    lock.release(clean=True)
    assert end.code == 0
    # What two processes print at the same time can be mixed.
    assert sorted(capfd.readouterr().out) == sorted(("printed " * 20_000 + "\n") * 2)


async def test_a_worker_for_which_there_is_no_thread_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of trio starts the process. Method: trio raises what Python raises then; at the first start, the node
    ends with a plain reason, as it does without room for a process."""

    async def fail(*arguments: object, **options: object) -> trio.Process:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "open_process", fail)
    lock = DirectoryLock(tmp_path)
    config = Config(data_dir=str(tmp_path), listen="127.0.0.1:0", workers=2)
    node = supervisor.Supervisor(config, lock, ["serve"], Notifier({}))
    end = await node.run(lambda: pytest.fail("no worker listens"))
    node.close()
    lock.release(clean=True)
    assert end.code == 1
    assert re.fullmatch("the system did not start the worker w0[01]: can't start new thread", end.reason or "")


def own_named_sockets() -> list[str]:
    """Returns the names of the Unix sockets that this process has."""
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    # The eighth field is the name, if the socket has one.
    return [row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in own]


async def test_no_other_program_can_report_for_a_worker() -> None:
    """Claim: what a worker reports is heard, also if it can open no file, and there is no socket by whose name another
    user of the machine could report in its place. Method: the supervisor's side and a worker's notifier; the list of
    this machine's sockets."""
    reloaded = trio.Event()
    watch = supervisor.WorkerWatch("w00", 60.0, kill=lambda: None, end_reload=reloaded.set)
    worker = Notifier(dict(watch.environment))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await trio.testing.wait_all_tasks_blocked()
            assert own_named_sockets() == []
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            try:
                worker.reloading()
                worker.ready()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await reloaded.wait()
            nursery.cancel_scope.cancel()
    watch.close()
