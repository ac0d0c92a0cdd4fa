"""Pushes and reads over HTTP, on plain sockets. As a program, it is the client:

    python -m bench.works.http PORT WORK SECONDS

It prints a `Timed` as one JSON line, which counts requests.
"""

from __future__ import annotations

import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from bench.errors import BenchFailed
from bench.measure import sample_fields
from bench.own import ROOT
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from stream_node.bench.run import Timed

WORK = "http"
LINES, PAGE_MESSAGES = 10_000, 1_000
MESSAGE = b'{"device":"room-1","celsius":21.5,"at":"2026-11-29T10:00:00Z","padding":"0123456789abcdef01"}'
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Requested(NamedTuple):
    """One kind of request. name: the system in the report. messages: how many each request has. request: its bytes."""

    name: str
    connections: int
    messages: int
    request: bytes


def _post(kind: str, body: bytes) -> bytes:
    head = f"POST /v1/streams/bench?partition=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


READ = f"GET /v1/streams/bench?limit={PAGE_MESSAGES} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
WORKS = {
    "lines": Requested("NDJSON", 1, LINES, _post("application/x-ndjson", (MESSAGE + b"\n") * LINES)),
    "json": Requested("JSON", 1, 1, _post("application/json", MESSAGE)),
    "json by 32": Requested("JSON", 32, 1, _post("application/json", MESSAGE)),
    "pages": Requested("pages", 1, PAGE_MESSAGES, READ),
}


def samples(plan: Plan) -> Iterator[Sample]:
    """Requests to a node that serves HTTP. The messages of a sample are those of all its requests."""
    for round_ in range(plan.rounds):
        with BenchNode(arguments=("--http", "127.0.0.1:0")) as node:
            port = node.http[0].rpartition(":")[2]
            for work, requested in WORKS.items():
                cpu_s = node.cpu_seconds()
                command = [sys.executable, "-m", "bench.works.http", port, work, str(plan.http_seconds)]
                done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
                if done.returncode != 0:
                    raise BenchFailed(f"{WORK}, {work}: {done.stderr.decode().strip().splitlines()[-1:]}")
                timed = msgspec.json.decode(done.stdout, type=Timed)
                timed = msgspec.structs.replace(timed, messages=timed.messages * requested.messages)
                yield Sample(
                    work=WORK,
                    system=f"{OURS}, {requested.name}",
                    round=round_,
                    window=requested.messages,
                    clients=requested.connections,
                    size_bytes=len(MESSAGE),
                    server_cpu_s=node.cpu_seconds() - cpu_s,
                    server_memory_bytes=node.memory_bytes(),
                    **sample_fields(timed),
                )


def _ask(port: int, requested: Requested, seconds: float) -> Timed:
    """Each connection sends its next request when it has the whole answer to the one before."""
    times_us: list[float] = []
    poll = select.epoll()
    open_now: dict[int, tuple[socket.socket, bytearray]] = {}
    sent_ns: dict[int, int] = {}
    began_s = time.perf_counter()
    for _ in range(requested.connections):
        connected = socket.create_connection(("127.0.0.1", port))
        poll.register(connected, select.EPOLLIN)
        open_now[connected.fileno()] = connected, bytearray()
        sent_ns[connected.fileno()] = time.perf_counter_ns()
        connected.sendall(requested.request)
    while not times_us or time.perf_counter() < began_s + seconds:
        for descriptor, _ in poll.poll():
            connected, answer = open_now[descriptor]
            answer += connected.recv(1 << 20)
            if _is_whole(answer):
                now_ns = time.perf_counter_ns()
                times_us.append((now_ns - sent_ns[descriptor]) / 1e3)
                answer.clear()
                sent_ns[descriptor] = now_ns
                connected.sendall(requested.request)
    return Timed(len(times_us), time.perf_counter() - began_s, times_us)


def _is_whole(answer: bytearray) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(repr(answer[:500]))
    length = LENGTH.search(head)
    return len(body) >= int(length[1]) if length is not None else body.endswith(b"\r\n0\r\n\r\n")


if __name__ == "__main__":
    port, work, seconds = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(_ask(int(port), WORKS[work], float(seconds))) + b"\n")
