"""A stream service and an index service as the real Elixir ones are (facts/ockam.md §5), in either framing.

It knows what the captured conversations of real peers show, and nothing of ours: a worker answers all else with
`error "Invalid request"`, the index service says nothing, and what is sent to nobody is dropped. Payloads are read and
written here by hand, so that no codec of the project is checked against itself.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio

from ockam.actors.address import Address, Route, local
from ockam.actors.message import HERE, Message
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire import Wire

SERVICE, INDEX_SERVICE = local("stream"), local("stream_index")


class Malformed(Exception):
    """What the real workers answer with `error`."""


class Bytes:
    """Reads BARE values one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def uint(self) -> int:
        value = shift = 0
        while self.data:
            byte, self.data = self.data[0], self.data[1:]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise Malformed

    def data_(self) -> bytes:
        size = self.uint()
        if size > len(self.data):
            raise Malformed
        found, self.data = self.data[:size], self.data[size:]
        return found

    def end(self) -> None:
        if self.data:
            raise Malformed


def uint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def data(value: bytes) -> bytes:
    return uint(len(value)) + value


def envelope(protocol: bytes, body: bytes) -> bytes:
    return data(protocol) + data(body)


INVALID = envelope(b"error", data(b"Invalid request"))


class Answer(NamedTuple):
    return_route: Route
    payload: bytes


class RealService:
    """Streams and indexes in memory. asked: the name of every protocol that came, in order."""

    def __init__(self) -> None:
        self.addresses: dict[tuple[bytes, int], Address] = {}
        self.streams: dict[Address, list[bytes]] = {}
        self.indexes: dict[tuple[bytes, bytes], int] = {}
        self.asked: list[bytes] = []

    def __call__(self, onward_route: Route, payload: bytes) -> Iterator[Answer]:
        to = onward_route[0]
        try:
            envelope_ = Bytes(payload)
            protocol, body = envelope_.data_(), Bytes(envelope_.data_())
            envelope_.end()
            self.asked.append(protocol)
            if to == SERVICE:
                yield from self._create(protocol, body)
            elif to == INDEX_SERVICE:
                yield from self._index(protocol, body)
            elif to in self.streams:
                yield Answer((to,), self._stream(protocol, body, self.streams[to]))
        except Malformed:
            if to != INDEX_SERVICE:
                yield Answer((to,), INVALID)

    def _create(self, protocol: bytes, body: Bytes) -> Iterator[Answer]:
        if protocol not in (b"stream_create", b"stream_create_partitioned"):
            raise Malformed
        name = body.data_() if body.uint() else b"generated_" + secrets.token_hex(4).encode()
        partitions = body.uint() if protocol.endswith(b"partitioned") else 1
        body.end()
        if not name:
            raise Malformed
        for partition in range(partitions):
            made = local(f"ST_S_{secrets.token_hex(8)}")
            address = self.addresses.setdefault((name, partition), made)
            self.streams.setdefault(address, [])
            told = uint(partition) if protocol.endswith(b"partitioned") else b""
            yield Answer((address,), envelope(protocol, data(name) + told))

    def _stream(self, protocol: bytes, body: Bytes, stored: list[bytes]) -> bytes:
        if protocol == b"stream_push":
            request_id, message = body.uint(), body.data_()
            body.end()
            stored.append(message)
            return envelope(protocol, uint(request_id) + uint(0) + uint(len(stored) - 1))
        if protocol != b"stream_pull":
            raise Malformed
        request_id, index, limit = body.uint(), body.uint(), body.uint()
        body.end()
        found = list(enumerate(stored))[index : index + limit]
        messages = b"".join(uint(at) + data(message) for at, message in found)
        return envelope(protocol, uint(request_id) + uint(len(found)) + messages)

    def _index(self, protocol: bytes, body: Bytes) -> Iterator[Answer]:
        if protocol not in (b"stream_index", b"stream_index_partitioned"):
            raise Malformed
        saves, client_id, name = body.uint(), body.data_(), body.data_()
        partition = uint(body.uint()) if protocol.endswith(b"partitioned") else b""
        # The partition is told and not kept, as in the real service's memory.
        key = client_id, name
        if saves:
            self.indexes[key] = max(self.indexes.get(key, 0), body.uint())
            return
        index = self.indexes.get(key)
        told = b"\0" if index is None else b"\1" + uint(index)
        yield Answer((INDEX_SERVICE,), envelope(protocol, data(client_id) + data(name) + partition + told))


@asynccontextmanager
async def real_service(service: RealService, wire: Wire) -> AsyncIterator[str]:
    """The address where it listens. A head service greets at once; a legacy one waits, and ends what is no frame."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, partial(_serve, service, wire), 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        yield "{}:{}".format(*listener.socket.getsockname())
        nursery.cancel_scope.cancel()


async def _serve(service: RealService, wire: Wire, stream: trio.SocketStream) -> None:
    reader, writer, hello = FrameReader(wire, HERE), FrameWriter(wire), wire.hello
    try:
        await stream.send_all(hello)
        while chunk := bytes(await stream.receive_some()):
            chunk, hello = chunk.removeprefix(hello), b""
            for message in reader.feed(chunk):
                for answer in service(message.onward_route, message.payload):
                    sent = Message((local("-"), *message.return_route), answer.return_route, answer.payload)
                    await stream.send_all(writer.encode([sent], _too_large)[1])
    except trio.BrokenResourceError:
        return


def _too_large(error: Exception) -> None:
    raise error
