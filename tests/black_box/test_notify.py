"""Goal: a service manager learns of each state of a node when it is true, and of progress only while there is some.

Method: a real node process, and a real datagram socket in place of systemd's, which keeps every message.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ockam.actors.address import split_host_port
from stream_node.node.notify import Notifier
from stream_node.node.process import NodeProcess
from stream_service.protocol import PUSH, PushRequest
from tests.support.stream_peer import stream_peer


class Manager:
    """The socket of a service manager. name: what NOTIFY_SOCKET says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self._socket.settimeout(60)

    def close(self) -> None:
        self._socket.close()

    def next_message(self, but: str = "WATCHDOG=1") -> dict[str, str]:
        """The fields of the next message that is another one than `but`."""
        while True:
            text = self._socket.recv(4096).decode()
            if text != but:
                return dict(line.split("=", 1) for line in text.splitlines())

    def take_waiting(self) -> list[str]:
        """All messages that have come and were not read yet."""
        found = []
        self._socket.setblocking(False)
        try:
            while True:
                found.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return found
        finally:
            self._socket.settimeout(60)


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = str(tmp_path / "notify") if request.param == "file" else f"@stream-node-test-{os.getpid()}-{tmp_path.name}"
    made = Manager(name)
    yield made
    made.close()


def test_a_manager_learns_of_start_reload_and_stop(manager: Manager, tmp_path: Path) -> None:
    """Goal: READY comes when clients can connect, a reload begins and ends, and stopping is told before the end."""
    file = tmp_path / "node.toml"
    file.write_text("streams_max = 7\n")
    environment = {"NOTIFY_SOCKET": manager.name}
    with NodeProcess(tmp_path / "data", arguments=("--config", str(file)), environment=environment) as node:
        assert manager.next_message() == {"READY": "1"}
        socket.create_connection(split_host_port(node.address), timeout=60).close()
        before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        file.write_text("streams_max = 0\n")
        node.signal(signal.SIGHUP)
        told = manager.next_message()
        assert told.keys() == {"RELOADING", "MONOTONIC_USEC"}
        assert before_us <= int(told["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        # The file is wrong, and the node serves on with what it had.
        assert manager.next_message() == {"READY": "1"}
        node.signal(signal.SIGTERM)
        assert manager.next_message() == {"STOPPING": "1"}
        assert node.wait() == 0
    assert manager.take_waiting() == []


@pytest.mark.slow
async def test_progress_is_reported_only_while_messages_are_written(tmp_path: Path) -> None:
    """Goal: a node whose disk hangs is killed by its watchdog. Method: each commit takes 1.5 s, and progress is due
    every 0.1 s; during a commit at most the reports arrive that were under way."""
    manager = Manager(str(tmp_path / "notify"))
    environment = {
        "NOTIFY_SOCKET": manager.name,
        "WATCHDOG_USEC": "400000",
        "STREAM_NODE_SYNC_DELAY_MS": "1500",
    }
    with NodeProcess(tmp_path / "data", environment=environment) as node:
        async with stream_peer(node.address) as peer:
            route = await peer.create("s")
            assert {"READY=1"} <= set(manager.take_waiting())
            await trio.to_thread.run_sync(manager.next_message, "")
            manager.take_waiting()
            await peer.stream.send_all(peer.frame(route, PUSH.encode_request(PushRequest(1, b"slow"))))
            await peer.receive()
            during = manager.take_waiting()
            assert set(during) <= {"WATCHDOG=1"}
            assert len(during) <= 5
            # After the commit, progress is reported again.
            assert await trio.to_thread.run_sync(manager.next_message, "") == {"WATCHDOG": "1"}
        logged = [json.loads(line) for line in node.log_file.read_text().splitlines()]
        assert [line["level"] for line in logged if line["event"] == "writing_stuck"][-1:] == ["error"]
        assert node.stop() == 0
    manager.close()


def test_a_manager_that_is_gone_does_not_stop_a_node(tmp_path: Path) -> None:
    """Goal: messages to nobody are logged, and lost. Method: a socket that nobody made."""
    with NodeProcess(tmp_path / "data", environment={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as node:
        assert node.stop() == 0
    logged = [json.loads(line) for line in node.log_file.read_text().splitlines()]
    assert {line["message"] for line in logged if line["event"] == "not_notified"} == {"READY=1", "STOPPING=1"}


@pytest.mark.parametrize(
    ("given", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000"}, 30.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "own"}, 30.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"}, None),
        ({"NOTIFY_SOCKET": "/x"}, None),
    ],
)
def test_the_variables_of_a_manager_count_for_one_process(given: dict[str, str], watchdog_s: float | None) -> None:
    """Goal: the watchdog of another process is not fed, and child processes get none of the variables. Method: `own`
    stands for this process, whose number is not known yet when the module is imported."""
    environment = {name: str(os.getpid()) if text == "own" else text for name, text in given.items()}
    environment["HOME"] = "/home"
    notifier = Notifier(environment)
    assert (notifier.watchdog_s, notifier.is_active) == (watchdog_s, "NOTIFY_SOCKET" in given)
    assert environment == {"HOME": "/home"}
