"""A client made of a plain socket and its own codec of both framings, which shares no code with the project.

It is the independent check of the bytes in docs/wire.md: CBOR and BARE are written and read here by hand.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

WAIT_S = 20.0


class Answer(NamedTuple):
    onward: list[tuple[int, bytes]]
    returns: list[tuple[int, bytes]]
    payload: bytes


class Authenticated(NamedTuple):
    request_id: int
    status: int
    identity: str
    reason: str


class PlainPeer:
    """One connection. framing: "head" or "legacy"."""

    def __init__(self, address: str, framing: str, wrap: Any = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), WAIT_S)
        if wrap is not None:
            self.socket = wrap(self.socket)
        self.framing = framing
        self._received = b""
        if framing == "head":
            self.socket.sendall(b"\x01")
            assert self._exactly(1) == b"\x01"

    def close(self) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def frame(self, onward: list[bytes], payload: bytes, returns: bytes = b"me") -> bytes:
        """onward: local addresses; one that begins with `tcp:` is a TCP address."""
        hops = [(1, each[4:]) if each.startswith(b"tcp:") else (0, each) for each in onward]
        if self.framing == "head":
            body = b"\x84" + cbor_route(hops) + cbor_route([(0, returns)]) + cbor_bytes(payload) + b"\xf6"
            return len(body).to_bytes(4, "big") + body
        body = b"\x01" + bare_route(hops) + bare_route([(0, returns)]) + bare_data(payload)
        return len(body).to_bytes(2, "big") + body

    def receive(self) -> Answer:
        """The next message."""
        if self.framing == "head":
            body = self._exactly(int.from_bytes(self._exactly(4), "big"))
            assert body[0] == 0x84
            onward, at = read_cbor_route(body, 1)
            returns, at = read_cbor_route(body, at)
            payload, at = read_cbor_bytes(body, at)
            assert body[at:] == b"\xf6"
            return Answer(onward, returns, payload)
        body = self._exactly(int.from_bytes(self._exactly(2), "big"))
        assert body[0] == 1
        onward, at = read_bare_route(body, 1)
        returns, at = read_bare_route(body, at)
        payload, at = read_bare_data(body, at)
        assert at == len(body)
        return Answer(onward, returns, payload)

    def authenticate(self, token: str, request_id: int = 7) -> Authenticated:
        self.send(self.frame([b"node_authenticate"], authentication(token, request_id)))
        return self.authenticated()

    def authenticated(self) -> Authenticated:
        answer = self.receive()
        assert answer.onward == [(0, b"me")]
        assert answer.returns == [(0, b"node_authenticate")]
        return read_authenticated(answer.payload)

    def is_closed(self) -> bool:
        """Waits for the end of the connection. False: the node has sent something else."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            data = self.socket.recv(65_536)
            assert data, "the node closed the connection"
            self._received += data
        taken, self._received = self._received[:size], self._received[size:]
        return taken


def authentication(token: str, request_id: int = 7) -> bytes:
    body = uint(request_id) + bare_data(token.encode())
    return bare_data(b"node/authenticate/1") + bare_data(body)


def read_authenticated(payload: bytes) -> Authenticated:
    name, at = read_bare_data(payload, 0)
    assert name == b"node/authenticate/1"
    body, at = read_bare_data(payload, at)
    assert at == len(payload)
    request_id, at = read_uint(body, 0)
    status, at = read_uint(body, at)
    identity, at = read_bare_data(body, at)
    reason, at = read_bare_data(body, at)
    assert at == len(body)
    return Authenticated(request_id, status, identity.decode(), reason.decode())


def create(name: bytes) -> bytes:
    """A `stream_create`."""
    return bare_data(b"stream_create") + bare_data(b"\x01" + bare_data(name))


def protocol_of(answer: Answer) -> bytes:
    return read_bare_data(answer.payload, 0)[0]


def uint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def read_uint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return number, at


def bare_data(data: bytes) -> bytes:
    return uint(len(data)) + data


def read_bare_data(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_uint(data, at)
    assert at + size <= len(data)
    return data[at : at + size], at + size


def bare_route(hops: list[tuple[int, bytes]]) -> bytes:
    return uint(len(hops)) + b"".join(uint(kind) + bare_data(value) for kind, value in hops)


def read_bare_route(data: bytes, at: int) -> tuple[list[tuple[int, bytes]], int]:
    count, at = read_uint(data, at)
    hops = []
    for _ in range(count):
        kind, at = read_uint(data, at)
        value, at = read_bare_data(data, at)
        hops.append((kind, value))
    return hops, at


def cbor_head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | code]) + number.to_bytes(size, "big")
    raise AssertionError(number)


def cbor_bytes(data: bytes) -> bytes:
    return cbor_head(2, len(data)) + data


def cbor_route(hops: list[tuple[int, bytes]]) -> bytes:
    return cbor_head(4, len(hops)) + b"".join(b"\x82" + cbor_head(0, kind) + cbor_bytes(value) for kind, value in hops)


def read_cbor_head(data: bytes, at: int, major: int) -> tuple[int, int]:
    assert data[at] >> 5 == major, data[at:]
    small = data[at] & 31
    if small < 24:
        return small, at + 1
    size = {24: 1, 25: 2, 26: 4}[small]
    return int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size


def read_cbor_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_cbor_head(data, at, 2)
    return data[at : at + size], at + size


def read_cbor_route(data: bytes, at: int) -> tuple[list[tuple[int, bytes]], int]:
    count, at = read_cbor_head(data, at, 4)
    hops = []
    for _ in range(count):
        two, at = read_cbor_head(data, at, 4)
        assert two == 2
        kind, at = read_cbor_head(data, at, 0)
        value, at = read_cbor_bytes(data, at)
        hops.append((kind, value))
    return hops, at
