"""Measures attacks on a node, and a good client that uses the node meanwhile: `python -m tests.ockam.floods`.

Each attack is bounded, goes to 127.0.0.1 only, and runs in a process of its own against a node of its own; a good
client in another process pushes a message every 10 ms. Printed for each: the good client's median, 99th percentile and
longest wait for a confirm before, during and after the attack (in milliseconds), and the node's memory. After an
attack its connections stay open and silent. `--code DIRECTORY` measures the node of another checkout, `--only NAME` one
attack.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeAlias

import msgspec

from ockam.actors.address import Route, local
from ockam.actors.message import HERE
from ockam.transport.frames import FrameReader
from ockam.transport.wire_head import HEAD
from stream_service.extensions import RICH_PULL, FromIndex, RichPull
from stream_service.names import stream_address
from stream_service.protocol import CREATE, PULL, PUSH, CreateStream, PullRequest, PushRequest

PUSH_INTERVAL_S = 0.01
QUIET_S = 2.0
AFTER_S = 25.0
"""Long enough for a silent connection to give its memory back."""
SERVICE = (local("stream_service"),)


Lines: TypeAlias = "Sequence[Line | socket.socket]"
"""The connections of an attack."""


def frame(onward: Route, payload: bytes, back: Route = (local("me"),)) -> bytes:
    body = HEAD.encode_routes(onward, back) + HEAD.encode_payload(payload)
    return len(body).to_bytes(4, "big") + body


class Line:
    """One blocking connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(HEAD.hello)
        self._reader = FrameReader(HEAD, HERE)
        self._hello = True

    def ask(self, data: bytes, answers: int = 1) -> None:
        self.socket.sendall(data)
        while answers > 0:
            chunk = self.socket.recv(1 << 20)
            assert chunk, "the node closed the connection"
            if self._hello:
                chunk, self._hello = chunk[1:], False
            answers -= len(self._reader.feed(chunk))


def good_client(address: tuple[str, int], results: Queue[list[tuple[float, float]]], stop_at_s: Queue[float]) -> None:
    """Push every 10 ms; (when, how long until the confirm) of each."""
    line = Line(address)
    line.ask(frame(SERVICE, CREATE.encode_request(CreateStream("good"))))
    route = (stream_address("good", 0),)
    found: list[tuple[float, float]] = []
    due_s = time.monotonic()
    while stop_at_s.empty():
        due_s = max(due_s + PUSH_INTERVAL_S, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        began_s = time.monotonic()
        line.ask(frame(route, PUSH.encode_request(PushRequest(1, b"x"))))
        found.append((began_s, time.monotonic() - began_s))
    results.put(found)


def close_at_once(address: tuple[str, int]) -> Lines:
    """9,000 connections, or as many as this process may open, all closed by its end."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lines = []
    for _ in range(min(9_000, hard - 100)):
        lines.append(socket.create_connection(address))
        lines[-1].sendall(HEAD.hello)
    time.sleep(2)
    for line in lines:
        line.close()
    return []


def come_and_go(address: tuple[str, int]) -> Lines:
    """Connections that close as soon as they are open, for five seconds."""
    end_s = time.monotonic() + 5
    while time.monotonic() < end_s:
        for line in [socket.create_connection(address) for _ in range(200)]:
            line.close()
    return []


def distinct_headers(address: tuple[str, int]) -> Lines:
    """Sixteen connections on which every message has another return route, for five seconds."""
    lines = [Line(address).socket for _ in range(16)]
    runs = [
        b"".join(frame((local("nobody"),), b"x", (local(f"{at}-{number}" + "r" * 40),)) for number in range(3_000))
        for at in range(16)
    ]
    send_all(lines, runs, 5.0)
    return lines


def many_streams(address: tuple[str, int]) -> Lines:
    """Eight connections that pull an empty stream, each time from another return address, and read the answers."""
    lines = [Line(address) for _ in range(8)]
    lines[0].ask(frame(SERVICE, CREATE.encode_request(CreateStream("empty"))))
    route, pull = (stream_address("empty", 0),), PULL.encode_request(PullRequest(1, 0, 1))
    end_s, number = time.monotonic() + 5, 0
    while time.monotonic() < end_s:
        for line in lines:
            number += 500
            line.ask(b"".join(frame(route, pull, (local(f"r{number + each}"),)) for each in range(500)), 500)
    return lines


def routes(address: tuple[str, int]) -> Lines:
    """120 connections that use 4,096 return routes of 450 bytes each, and then are silent."""
    lines = [Line(address)]
    lines[0].ask(frame(SERVICE, CREATE.encode_request(CreateStream("empty"))))
    route, pull = (stream_address("empty", 0),), PULL.encode_request(PullRequest(1, 0, 1))
    for at in range(120):
        lines.append(line := Line(address))
        for begin in range(0, 4_096, 256):
            backs = [(local(f"{at}-{number}-" + "r" * 440),) for number in range(begin, begin + 256)]
            line.ask(b"".join(frame(route, pull, back) for back in backs), 256)
    return lines


def unread(address: tuple[str, int]) -> Lines:
    """600 connections that ask for full pages and read none of them."""
    first = Line(address)
    first.ask(frame(SERVICE, CREATE.encode_request(CreateStream("full"))))
    route = (stream_address("full", 0),)
    for _ in range(64):
        first.ask(frame(route, PUSH.encode_request(PushRequest(1, bytes(16_000)))))
    pulls = frame(route, PULL.encode_request(PullRequest(1, 0, 64))) * 50
    lines = [Line(address).socket for _ in range(600)]
    send_all(lines, [pulls] * len(lines), 10.0)
    return lines


def parked(address: tuple[str, int]) -> Lines:
    """20 connections that leave 8,000 long polls each on streams without messages, each from a route of 400 bytes."""
    lines = [Line(address) for _ in range(20)]
    for number in range(16):
        lines[0].ask(frame(SERVICE, CREATE.encode_request(CreateStream(f"quiet{number}"))))
    pull = RICH_PULL.encode_request(RichPull(1, FromIndex(0), 1, 5_000))
    runs = [
        b"".join(
            frame((stream_address(f"quiet{each % 16}", 0),), pull, (local(f"{at}-{each}-" + "p" * 390),))
            for each in range(8_000)
        )
        for at in range(len(lines))
    ]
    send_all([line.socket for line in lines], runs, 4.0)
    return lines


def send_all(lines: list[socket.socket], runs: list[bytes], for_s: float) -> None:
    """Send each its run again and again, as fast as the node takes it; what the node answers is not read."""
    end_s = time.monotonic() + for_s
    left = [memoryview(run) for run in runs]
    for line in lines:
        line.setblocking(False)
    while time.monotonic() < end_s:
        idle = True
        for at, line in enumerate(lines):
            try:
                left[at] = left[at][line.send(left[at]) :] or memoryview(runs[at])
                idle = False
            except BlockingIOError:
                continue
            except OSError:  # The node has closed it.
                left[at] = memoryview(runs[at])
        if idle:
            time.sleep(0.001)


def run(name: str, address: tuple[str, int], done: Event) -> None:
    """Attack; then keep the connections open until this process is killed."""
    kept = ATTACKS[name](address)
    done.set()
    while kept is not None:
        time.sleep(1)


ATTACKS: dict[str, Callable[[tuple[str, int]], Lines]] = {
    attack.__name__: attack
    for attack in (close_at_once, come_and_go, distinct_headers, many_streams, routes, unread, parked)
}


def memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Waits(msgspec.Struct, frozen=True):
    """Of the pushes between two moments; how long their confirms took, in milliseconds."""

    pushes: int
    median: float | None
    p99: float | None
    most: float | None


def waits(found: list[tuple[float, float]], begin_s: float, end_s: float) -> Waits:
    each = sorted(round(wait_s * 1000, 1) for when_s, wait_s in found if begin_s <= when_s < end_s)
    if not each:
        return Waits(0, None, None, None)
    return Waits(len(each), statistics.median(each), each[min(len(each) - 1, len(each) * 99 // 100)], each[-1])


class Measured(msgspec.Struct, frozen=True):
    """One attack: the good client's waits, how long it took, and the node's resident memory."""

    attack: str
    before: Waits
    during: Waits
    after: Waits
    attack_s: float
    before_mib: int
    most_mib: int
    kept_mib: int


def measure(name: str, code: Path, after_s: float = AFTER_S) -> Measured:
    """One attack on a node of its own."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "stream_node", "serve", "--data-dir", directory, "--listen", "127.0.0.1:0"]
        node = subprocess.Popen(
            command,
            cwd=code,
            env=os.environ | {"PYTHONPATH": str(code)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert node.stdout is not None
            host, _, port = json.loads(node.stdout.readline())["addresses"][0].rpartition(":")
            return _measure(name, (host, int(port)), node.pid, after_s)
        finally:
            node.terminate()
            node.wait(30)
            if node.stdout is not None:
                node.stdout.close()


def _measure(name: str, address: tuple[str, int], pid: int, after_s: float) -> Measured:
    fork = multiprocessing.get_context("fork")
    results: Queue[list[tuple[float, float]]] = fork.Queue()
    stop: Queue[float] = fork.Queue()
    good = fork.Process(target=good_client, args=(address, results, stop), daemon=True)
    good.start()
    time.sleep(QUIET_S)
    quiet_mib = most_mib = memory_mib(pid)
    began_s = time.monotonic()
    done = fork.Event()
    attack = fork.Process(target=run, args=(name, address, done), daemon=True)
    attack.start()
    while not done.is_set() and attack.is_alive() and time.monotonic() < began_s + 90:
        time.sleep(0.05)
        most_mib = max(most_mib, memory_mib(pid))
    ended_s = time.monotonic()
    while time.monotonic() < ended_s + after_s:
        time.sleep(0.05)
        most_mib = max(most_mib, memory_mib(pid))
    kept_mib = memory_mib(pid)
    stop.put(0.0)
    found = results.get(timeout=60)
    good.join()
    attack.kill()
    attack.join()
    # What a push waited for at the end of the attack belongs to it.
    return Measured(
        name,
        waits(found, 0, began_s),
        waits(found, began_s, ended_s + 3),
        waits(found, ended_s + 3, time.monotonic()),
        round(ended_s - began_s, 1),
        *(round(each) for each in (quiet_mib, most_mib, kept_mib)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--only", choices=ATTACKS, action="append")
    parser.add_argument("--after-s", type=float, default=AFTER_S)
    given = parser.parse_args()
    for name in given.only or ATTACKS:
        sys.stdout.write(msgspec.json.encode(measure(name, given.code, given.after_s)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
