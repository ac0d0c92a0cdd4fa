"""The head framing: the bytes by which Ockam programs since June 2024 send messages over TCP (facts/ockam.md §2.2).

One byte, the hello, comes first. Then each message is a frame: its length as u32, and the message in CBOR.

    +----+   +------------+----+------------------------+--------------+-------------+-----------------+
    | 01 |   | u32 big-   | 84 | onward_route: array of | return_route | payload:    | tracing_context |
    +----+   | endian N   |    | 82 type, byte string   | the same     | byte string | f6, or text     |
    hello    +------------+----+------------------------+--------------+-------------+-----------------+

This is no general CBOR reader. It accepts what real peers use: an array of four elements, definite lengths, and byte
strings for bytes. The outer array may have an indefinite length, because the Elixir node accepts this too."""

from __future__ import annotations

import struct

from ockam.actors.address import ADDRESS_TYPE_MAX, Address, Route
from ockam.errors import RemoteProtocolError
from ockam.transport.wire import Wire
from ockam.transport.wire_legacy import ROUTE_HOPS_MAX, refusal_of_sizes

UNSIGNED, BYTE_STRING, TEXT_STRING, ARRAY = 0, 2, 3, 4
NULL = 0xF6
MESSAGE_ARRAY = 0x84
INDEFINITE_ARRAY, BREAK = 0x9F, 0xFF
SIZE_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
"""For the low bits of a CBOR head, the number of bytes after the head that have its number or length."""
ONE_BYTE_SIZE = 0x58
"""The first byte of a CBOR byte string whose size is in the next byte. Nearly every payload begins with it."""


class HeadWire(Wire):
    """The head framing, which Ockam programs use since June 2024. Frames have at most 16 MiB, as in Ockam for Rust."""

    name = "head"
    hello = b"\x01"
    length_bytes = 4
    send_bytes_max = 16 * 1024 * 1024
    receive_bytes_max = 16 * 1024 * 1024
    heartbeat = struct.pack(">I", 5) + b"\x84\x80\x80\x40\xf6"

    def decode_routes(self, data: bytes, at: int, end: int) -> tuple[Route, Route, int]:
        if at >= end or data[at] not in (MESSAGE_ARRAY, INDEFINITE_ARRAY):
            raise _undecodable("the message is not an array of four")
        onward_route, at = read_route(data, at + 1, end)
        return_route, at = read_route(data, at, end)
        return onward_route, return_route, at

    def decode_payload(self, data: bytes, start: int, at: int, end: int) -> bytes:
        # The usual case: a payload of up to 255 bytes, no tracing context, and a definite array.
        if (
            end - at > 3
            and data[at] == ONE_BYTE_SIZE
            and at + 3 + data[at + 1] == end
            and data[end - 1] == NULL
            and data[start] == MESSAGE_ARRAY
        ):
            return data[at + 2 : end - 1]
        # An array of indefinite length ends with the byte BREAK.
        if data[start] == INDEFINITE_ARRAY:
            end -= 1
            if data[end] != BREAK:
                raise _undecodable("an indefinite array without its end")
        size, at = read_head(data, at, end, BYTE_STRING)
        # The payload is followed by the tracing context, null or a text, and by nothing else.
        stop = at + size
        if stop >= end:
            raise _undecodable("the payload is longer than the frame")
        if stop + 1 != end or data[stop] != NULL:
            context_bytes, begin = read_head(data, stop, end, TEXT_STRING)
            if begin + context_bytes != end:
                raise _undecodable("bytes behind the message, or a tracing context that is cut")
        return data[at:stop]

    def encode_routes(self, onward_route: Route, return_route: Route) -> bytes:
        return b"\x84" + write_route(onward_route) + write_route(return_route)

    def around_payload(self, size_bytes: int) -> tuple[bytes, bytes]:
        return write_head(BYTE_STRING, size_bytes), b"\xf6"


def read_route(data: bytes, at: int, end: int) -> tuple[Route, int]:
    hops, at = read_head(data, at, end, ARRAY)
    if hops > ROUTE_HOPS_MAX:
        raise _undecodable(f"a route of {hops} hops; at most {ROUTE_HOPS_MAX}")
    route: list[Address] = []
    route_bytes = 0
    for _ in range(hops):
        parts, at = read_head(data, at, end, ARRAY)
        if parts != 2:
            raise _undecodable(f"an address of {parts} parts; it has two, type and value")
        kind, at = read_head(data, at, end, UNSIGNED)
        size, at = read_head(data, at, end, BYTE_STRING)
        if kind > ADDRESS_TYPE_MAX:
            raise _undecodable(f"an address type above {ADDRESS_TYPE_MAX}")
        if at + size > end:
            raise _undecodable("an address is longer than the frame")
        # The sizes are checked before the bytes are copied.
        route_bytes += size
        refusal = refusal_of_sizes(size, route_bytes)
        if refusal is not None:
            raise _undecodable(refusal)
        route.append(Address(kind, data[at : at + size]))
        at += size
    return tuple(route), at


def read_head(data: bytes, at: int, end: int, major: int) -> tuple[int, int]:
    """Returns the number or length of the CBOR item of this major type at `at`, and the position of its content."""
    if at >= end:
        raise _undecodable("the frame ends inside the message")
    first = data[at]
    if first >> 5 != major:
        raise _undecodable(f"CBOR type {first >> 5} where {major} is due, at byte {at}")
    small = first & 31
    if small < 24:
        return small, at + 1
    width = SIZE_BYTES.get(small)
    if width is None or at + 1 + width > end:
        raise _undecodable(f"a CBOR length that is indefinite or cut, at byte {at}")
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width


def write_route(route: Route) -> bytes:
    parts = [write_head(ARRAY, len(route))]
    for address in route:
        parts += (b"\x82", write_head(UNSIGNED, address.type), write_head(BYTE_STRING, len(address.value)))
        parts.append(address.value)
    return b"".join(parts)


def write_head(major: int, value: int) -> bytes:
    """Encodes the head of a CBOR item: its major type, and its number or length. Raises ValueError above 64 bits."""
    if value < 24:
        return bytes((major << 5 | value,))
    for small, width in SIZE_BYTES.items():
        if value < 1 << 8 * width:
            return bytes((major << 5 | small,)) + value.to_bytes(width, "big")
    raise ValueError(f"{value} does not fit 64 bits")


def _undecodable(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("undecodable", f"not a head message: {what}")


HEAD = HeadWire()
"""The only instance of HeadWire, which has no state."""
