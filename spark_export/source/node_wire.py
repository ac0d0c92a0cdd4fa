"""Encodes and decodes the frames and payloads between a Spark worker and a node. This module opens no connection.

A worker need not have this project installed, because `spark_export.register` makes Spark send this code to workers. So
this module uses only the standard library, and has only the message formats of docs/wire.md that Spark needs. The
packages `ockam`, `bare` and `stream_service` have all formats. tests/spark_export/test_node_wire.py compares the bytes
of this module with the bytes of those packages.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from spark_export.errors import BadAnswer

HELLO = b"\x01"
FRAME_BYTES_MAX = 16 * 1024 * 1024
UINT_BYTES_MAX = 10
ADDRESS_DIGITS = 24


def stream_address(name: str, partition: int) -> bytes:
    """Returns the address of the worker of a stream-partition (docs/wire.md, "Names")."""
    digest = hashlib.sha256(f"{name}\0{partition}".encode()).hexdigest()
    return b"ST_S_" + digest[:ADDRESS_DIGITS].encode()


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition for a key, from 0 to `partitions` - 1 (docs/wire.md, "Names")."""
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % partitions


def uint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def data(value: bytes) -> bytes:
    """Encodes a BARE data: the size, then the bytes."""
    return uint(len(value)) + value


def text(value: str) -> bytes:
    return data(value.encode())


def optional(value: bytes | None) -> bytes:
    """Encodes a BARE optional, given the encoded value or None."""
    return b"\x00" if value is None else b"\x01" + value


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def payload(protocol: str, body: bytes) -> bytes:
    """Encodes the payload of a request: the name of the protocol, then the body."""
    return text(protocol) + data(body)


def frame(address: bytes, return_address: bytes, body: bytes) -> bytes:
    """Encodes one frame: the length in 4 bytes, then the message as a CBOR array of both addresses and the payload."""
    message = b"\x84" + _route(address) + _route(return_address) + _cbor_bytes(body) + b"\xf6"
    return struct.pack(">I", len(message)) + message


def _route(address: bytes) -> bytes:
    return b"\x81\x82\x00" + _cbor_bytes(address)


def _cbor_bytes(value: bytes) -> bytes:
    size = len(value)
    if size < 24:
        return bytes((0x40 | size,)) + value
    for head, width in ((0x58, 1), (0x59, 2), (0x5A, 4)):
        if size < 1 << 8 * width:
            return bytes((head,)) + size.to_bytes(width, "big") + value
    raise ValueError(f"a frame cannot carry {size} bytes")


@dataclass(frozen=True)
class Answer:
    """An answer of the node to the request that gave this return address; `body` lacks the protocol's name."""

    return_address: bytes
    protocol: str
    body: memoryview


def read_frame(message: memoryview) -> Answer | None:
    """Decodes a frame, given without the 4-byte length. Returns None for a heartbeat. Raises BadAnswer."""
    reader = CborFrameReader(message)
    reader.array(4)
    onward = reader.route()
    reader.route()
    body = reader.bytes()
    if not onward:
        return None
    envelope = BareReader(body)
    protocol = envelope.text()
    return Answer(bytes(onward[0]), protocol, envelope.data())


class CborFrameReader:
    """A reader of the CBOR values in a frame from the node (docs/wire.md).

    Raises BadAnswer for a kind of value that such frames never have.
    """

    def __init__(self, source: memoryview) -> None:
        self._source = source
        self._at = 0

    def array(self, items: int) -> None:
        if self._head(4) != items:
            raise BadAnswer("a frame that is not a message of four parts: this is no stream node")

    def route(self) -> list[memoryview]:
        hops = []
        for _ in range(self._head(4)):
            self.array_of_two()
            hops.append(self.bytes())
        return hops

    def array_of_two(self) -> None:
        if self._head(4) != 2:
            raise BadAnswer("an address that has not two parts: this is no stream node")
        self._head(0)

    def bytes(self) -> memoryview:
        size = self._head(2)
        self._at += size
        if self._at > len(self._source):
            raise BadAnswer("a frame that ends inside its message")
        return self._source[self._at - size : self._at]

    def _head(self, major: int) -> int:
        if self._at >= len(self._source):
            raise BadAnswer("a frame that ends inside its message")
        first = self._source[self._at]
        self._at += 1
        width = {24: 1, 25: 2, 26: 4, 27: 8}.get(first & 31, 0)
        if first >> 5 != major or (first & 31 > 23 and not width):
            raise BadAnswer(f"CBOR byte {first} where type {major} is due: this is no stream node")
        if not width:
            return first & 31
        self._at += width
        return int.from_bytes(self._source[self._at - width : self._at], "big")


class BareReader:
    """A reader of consecutive BARE values. Raises BadAnswer for an invalid value, or if the bytes end too early."""

    def __init__(self, source: memoryview) -> None:
        self._source = source
        self._at = 0

    @property
    def rest(self) -> int:
        return len(self._source) - self._at

    def uint(self) -> int:
        value = shift = 0
        for _ in range(UINT_BYTES_MAX):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise BadAnswer("a number of more than 64 bits")

    def byte(self) -> int:
        if self._at >= len(self._source):
            raise BadAnswer("an answer that ends too early")
        self._at += 1
        return self._source[self._at - 1]

    def data(self) -> memoryview:
        size = self.uint()
        if size > self.rest:
            raise BadAnswer("an answer that ends too early")
        self._at += size
        return self._source[self._at - size : self._at]

    def text(self) -> str:
        try:
            return str(self.data(), "utf-8")
        except UnicodeDecodeError as error:
            raise BadAnswer("a text that is not UTF-8") from error

    def u64(self) -> int:
        if self.rest < 8:
            raise BadAnswer("an answer that ends too early")
        self._at += 8
        return int.from_bytes(self._source[self._at - 8 : self._at], "little")

    def is_there(self) -> bool:
        """Reads the first byte of an optional. Returns True if a value follows."""
        return self.byte() == 1


@dataclass(frozen=True)
class StreamEnds:
    """A partition of a stream (see `stream_service.extensions.StreamInfo`). Times are in microseconds since 1970.

    A stream that is deleted and created again under the same name has another created_us.
    """

    stream: str
    partition: int
    first_index: int
    next_index: int
    size_bytes: int
    created_us: int


def read_stream_info(reader: BareReader) -> StreamEnds:
    """Decodes a StreamInfo. Skips the times of the first and last message, and the retention."""
    stream, partition, first_index, next_index, size_bytes = reader.text(), *(reader.uint() for _ in range(4))
    created_us = reader.u64()
    for _ in range(2):
        if reader.is_there():
            reader.u64()
    if reader.is_there():
        for _ in range(3):
            if reader.is_there():
                reader.uint()
    return StreamEnds(stream, partition, first_index, next_index, size_bytes, created_us)


@dataclass(frozen=True)
class PulledMessage:
    """A message of a page, stored at `time_us` (microseconds since 1970)."""

    index: int
    time_us: int
    key: bytes | None
    headers: list[tuple[str, bytes]]
    data: bytes


@dataclass(frozen=True)
class StoredPage:
    """An answer to `node/stream_pull/1`. The next pull begins at `resume_index`."""

    first_index: int
    next_index: int
    resume_index: int
    messages: list[PulledMessage]


def read_page(body: memoryview) -> StoredPage:
    """Decodes a RichPage (see `stream_service.extensions.RichPage`). Ignores the request id."""
    reader = BareReader(body)
    reader.uint()
    first_index, next_index, resume_index = reader.uint(), reader.uint(), reader.uint()
    messages = []
    for _ in range(reader.uint()):
        index, time_us = reader.uint(), reader.u64()
        key = bytes(reader.data()) if reader.is_there() else None
        headers = read_headers(reader)
        messages.append(PulledMessage(index, time_us, key, headers, bytes(reader.data())))
    return StoredPage(first_index, next_index, resume_index, messages)


def read_headers(reader: BareReader) -> list[tuple[str, bytes]]:
    return [(reader.text(), bytes(reader.data())) for _ in range(reader.uint())]
