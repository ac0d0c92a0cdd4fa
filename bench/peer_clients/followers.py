"""Many followers of one stream on plain sockets, in one loop, of the node or of NATS.

    python -m bench.peer_clients.followers pull|parts|nats PORT FOLLOWERS LOAD

All have the same loop and look for the same mark in the received bytes, so the difference is the server. The program
prints `ready` when all followers wait, begins at a line of its input, and prints the fields of `Done` as one JSON line.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from typing import Protocol

from bench.peer_clients.load import Clock, Done, Load, Pace
from ockam.actors.address import Route, local
from ockam.transport.wire_head import HEAD
from stream_service.extensions import MARKED_PULL, PACKED_PULL, FromIndex, MarkedPull, PackedPull
from stream_service.names import stream_address
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest

MARK = b"\xf5pushed at\xf5"
DUE_AT = struct.Struct("<q")
WRITER = "to.writer"
PAGE_MESSAGES, WAIT_MS = 1_000, 5_000
SETTLE_S = 1.0
"""The wait between the last request of a follower and the first push."""
SILENT_S = 20.0
"""After this time without a delivery, the program fails."""
RECEIVE_BYTES = 1 << 18


class Follower(Protocol):
    """One connection that follows the stream."""

    socket: socket.socket

    def take(self, data: bytes) -> bytes:
        """Takes received bytes. Returns the bytes whose messages are complete."""
        ...


class NodeFollower:
    """Waits for a page, and asks for the next one as soon as nothing more comes for the last request.

    is_whole: whether it asks for whole pages, as clients of older nodes do. Otherwise, a page comes in parts."""

    def __init__(self, port: int, stream: str, *, is_whole: bool) -> None:
        self._is_whole = is_whole
        self._route = (stream_address(stream, 0),)
        self._rest, self._at = b"", 0
        self.socket = _node(port)
        self._ask()

    def take(self, data: bytes) -> bytes:
        data, at, frames = self._rest + data, 0, []
        while len(data) >= at + HEAD.length_bytes:
            end = at + HEAD.length_bytes + int.from_bytes(data[at : at + HEAD.length_bytes], "big")
            if end > len(data):
                break
            frame, at = data[at:end], end
            if b"Invalid request" in frame:
                raise RuntimeError(repr(frame))
            frames.append(frame)
            self._at += frame.count(MARK)
            # The last byte of a part's payload says whether another part follows. Each frame ends with a zero byte.
            if self._is_whole or not frame[-2]:
                self._ask()
        self._rest = data[at:]
        return b"".join(frames)

    def _ask(self) -> None:
        values = (0, FromIndex(self._at), PAGE_MESSAGES, WAIT_MS, 0)
        if self._is_whole:
            payload = MARKED_PULL.encode_request(MarkedPull(*values))
        else:
            payload = PACKED_PULL.encode_request(PackedPull(*values))
        _send(self.socket, self._route, payload)


class NatsFollower:
    """An ephemeral push consumer of JetStream, without acknowledgements."""

    def __init__(self, port: int, stream: str, number: int) -> None:
        self._rest = b""
        subject = f"to.{stream}.{number}"
        config = {"deliver_subject": subject, "ack_policy": "none", "deliver_policy": "all"}
        self.socket = _nats(port, subject)
        _ask_nats(self.socket, subject, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})

    def take(self, data: bytes) -> bytes:
        data = self._rest + data
        at = data.rfind(MARK)
        # An incomplete time is kept, and begins the next bytes.
        cut = at if 0 <= at > len(data) - len(MARK) - DUE_AT.size else max(at + len(MARK), len(data) - len(MARK) + 1)
        self._rest = data[cut:]
        return data[:cut]


def main() -> None:
    kind, port, followers, load = sys.argv[1:]
    done = _follow(kind, int(port), int(followers), Load(**json.loads(load)))
    sys.stdout.write(json.dumps(done._asdict()) + "\n")


def _follow(kind: str, port: int, count: int, load: Load) -> Done:
    """Pushes at the rate of the load until all followers have all messages. Each delivery is timed from when its push
    was due. Raises RuntimeError."""
    writer = _nats(port, WRITER) if kind == "nats" else _node(port)
    if kind == "nats":
        _ask_nats(writer, WRITER, f"STREAM.CREATE.{load.stream}", {"name": load.stream, "subjects": [load.stream]})
    else:
        _send(writer, (local("stream_service"),), CREATE.encode_request(CreateStream(load.stream)))
        writer.recv(RECEIVE_BYTES)
    followers: dict[int, Follower] = {}
    poll = select.epoll()
    for number in range(count):
        follower: Follower
        if kind == "nats":
            follower = NatsFollower(port, load.stream, number)
        else:
            follower = NodeFollower(port, load.stream, is_whole=kind == "pull")
        followers[follower.socket.fileno()] = follower
    for each in (writer, *(follower.socket for follower in followers.values())):
        each.setblocking(False)
        poll.register(each, select.EPOLLIN)
    time.sleep(SETTLE_S)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    clock, pace = Clock(load), Pace(load)
    expected = min(load.messages, int(load.rate * load.seconds)) * count
    padding, times_us = os.urandom(max(0, load.size_bytes - len(MARK) - DUE_AT.size)), clock.times_us
    last_s = time.monotonic()
    while len(times_us) < expected:
        if not pace.is_over:
            for number in pace.due():
                _push(kind, writer, load.stream, MARK + DUE_AT.pack(pace.due_ns(number)) + padding)
        for descriptor, _ in poll.poll(SETTLE_S if pace.is_over else pace.sleep_s()):
            found = followers.get(descriptor)
            if found is None:
                writer.recv(RECEIVE_BYTES)
                continue
            received = found.socket.recv(RECEIVE_BYTES)
            now_ns = time.perf_counter_ns()
            for piece in found.take(received).split(MARK)[1:]:
                times_us.append((now_ns - DUE_AT.unpack_from(piece)[0]) / 1e3)
            last_s = time.monotonic()
        if time.monotonic() > last_s + SILENT_S:
            raise RuntimeError(f"{len(times_us)} of {expected} deliveries")
    return clock.done(expected)


def _push(kind: str, writer: socket.socket, stream: str, data: bytes) -> None:
    if kind == "nats":
        writer.sendall(b"PUB %b %b %d\r\n%b\r\n" % (stream.encode(), WRITER.encode(), len(data), data))
    else:
        _send(writer, (stream_address(stream, 0),), PUSH.encode_request(PushRequest(0, data)))


def _connect(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _node(port: int) -> socket.socket:
    connected = _connect(port)
    connected.sendall(HEAD.hello)
    assert connected.recv(1) == HEAD.hello, "no node of the head framing"
    return connected


def _send(to: socket.socket, route: Route, payload: bytes) -> None:
    body = HEAD.encode_routes(route, (local("follower"),)) + HEAD.encode_payload(payload)
    to.sendall(len(body).to_bytes(HEAD.length_bytes, "big") + body)


def _nats(port: int, subject: str) -> socket.socket:
    connected = _connect(port)
    connected.recv(RECEIVE_BYTES)
    connected.sendall(b'CONNECT {"verbose":false}\r\nSUB %b 1\r\nPING\r\n' % subject.encode())
    while not connected.recv(RECEIVE_BYTES).endswith(b"PONG\r\n"):
        pass
    return connected


def _ask_nats(connected: socket.socket, subject: str, what: str, request: dict[str, object]) -> None:
    payload = json.dumps(request).encode()
    head = f"PUB $JS.API.{what} {subject} {len(payload)}\r\n".encode()
    connected.sendall(head + payload + b"\r\n")
    said = connected.recv(RECEIVE_BYTES)
    if b'"error"' in said:
        raise RuntimeError(repr(said))


if __name__ == "__main__":
    main()
