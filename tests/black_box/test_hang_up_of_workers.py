"""Goal: SIGHUP does the same to a node with workers as to one with one process, and a service manager hears the truth.

Method: the real command; a real datagram socket in place of systemd's; workers are killed, or frozen, beside the
signal.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stream_client import blocking
from stream_node.node.process import NodeProcess
from stream_storage.directory_lock import owner_of
from tests.black_box.test_notify import Manager
from tests.stream_node.fleet.workers.test_workers import wait_for

WORKERS = ("w00", "w01")
TWO = ("--workers", "2")


def next_state(manager: Manager) -> str:
    """The name of the next state that a node tells, beside progress."""
    return next(iter(manager.next_message()))


@contextmanager
def frozen(pid: int | None) -> Iterator[int]:
    """Freezes a process for the block. A frozen worker would outlive the test that fails meanwhile."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(f"@stream-node-test-{os.getpid()}-{tmp_path.name}")
    yield made
    made.close()


def log_lines(node: NodeProcess, event: str) -> list[Any]:
    lines = [json.loads(line) for line in node.log_file.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def owners(node: NodeProcess) -> list[int | None]:
    """The process ids of the workers."""
    return [owner_of(node.data_dir / name) for name in WORKERS]


def test_workers_that_ignore_hang_ups_go_on(tmp_path: Path) -> None:
    """Goal: a node that was started with `nohup` outlives its terminal. Method: the signal is ignored from the start. A
    supervisor that stops for it would not start a killed worker again."""
    with ExitStack() as stack:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            node = stack.enter_context(NodeProcess(tmp_path / "data", arguments=TWO))
        finally:
            signal.signal(signal.SIGHUP, before)
        first, second = owners(node)
        (told, *_) = log_lines(node, "hang_up_ignored")
        assert "SIGHUP ignored, as nohup does" in told["reason"]
        node.signal(signal.SIGHUP)
        assert second is not None
        os.kill(second, signal.SIGKILL)
        wait_for(lambda: owners(node)[1] not in (None, second))
        assert owners(node)[0] == first
        with blocking.connect(node.address) as client:
            assert client.create("s").push(b"x") == 0
        assert node.stop() == 0


@pytest.mark.parametrize("watchdog_us", ["", "60000000"], ids=["no watchdog", "watchdog"])
def test_a_reload_without_files_changes_nothing_and_is_told(tmp_path: Path, manager: Manager, watchdog_us: str) -> None:
    environment = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": watchdog_us}
    with NodeProcess(tmp_path / "data", arguments=TWO, environment=environment) as node:
        assert next_state(manager) == "READY"
        before = owners(node)
        for _ in range(2):
            node.signal(signal.SIGHUP)
            assert [next_state(manager) for _ in range(2)] == ["RELOADING", "READY"]
        assert owners(node) == before
        node.signal(signal.SIGTERM)
        assert next_state(manager) == "STOPPING"
        assert node.wait() == 0
        assert log_lines(node, "worker_died") == []


def test_a_reload_is_told_to_be_over_when_every_worker_has_read_the_file(tmp_path: Path, manager: Manager) -> None:
    """One is frozen until the other one has read it. Only then, the manager hears of the end."""
    file = tmp_path / "node.toml"
    file.write_text("streams_max = 7\n")
    arguments = (*TWO, "--config", str(file))
    with NodeProcess(tmp_path / "data", arguments=arguments, environment={"NOTIFY_SOCKET": manager.name}) as node:
        assert next_state(manager) == "READY"
        with frozen(owners(node)[1]):
            file.write_text("streams_max = 8\n")
            node.signal(signal.SIGHUP)
            assert next_state(manager) == "RELOADING"
            wait_for(lambda: len(log_lines(node, "settings_loaded")) == 1)
            assert manager.take_waiting() == []
        assert next_state(manager) == "READY"
        wait_for(lambda: len(log_lines(node, "settings_loaded")) == 2)
        assert node.stop() == 0


def test_a_worker_that_dies_or_starts_does_not_end_or_hold_up_a_reload(tmp_path: Path, manager: Manager) -> None:
    """One is frozen, so it cannot read the file; it is killed, and its next process reads the file at its start. A
    signal meanwhile would end a process that does not listen yet."""
    with NodeProcess(tmp_path / "data", arguments=TWO, environment={"NOTIFY_SOCKET": manager.name}) as node:
        assert next_state(manager) == "READY"
        with frozen(owners(node)[1]) as victim:
            node.signal(signal.SIGHUP)
            assert next_state(manager) == "RELOADING"
            os.kill(victim, signal.SIGKILL)
        assert next_state(manager) == "READY"
        node.signal(signal.SIGHUP)
        assert [next_state(manager) for _ in range(2)] == ["RELOADING", "READY"]
        wait_for(lambda: owners(node)[1] not in (None, victim))
        assert len(log_lines(node, "worker_died")) == 1
        assert node.stop() == 0
