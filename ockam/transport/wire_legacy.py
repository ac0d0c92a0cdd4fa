"""The legacy framing: the bytes by which Ockam programs of February 2021 to June 2024 send messages over TCP
(facts/ockam.md §2.1). Each message is a frame: its length as u16, and the message in BARE.

    +-----------+------------+----------------------------+---------------+---------------+
    | u16 big-  | version    | onward_route               | return_route  | payload       |
    | endian N  | uint 1 (2) | count, {type, value} each  | the same      | uint length + |
    +-----------+------------+----------------------------+---------------+---------------+

We send version 1. A message of version 2 has a tracing context after the payload, which is decoded and ignored."""

from __future__ import annotations

import struct

import msgspec

import bare
from ockam.actors.address import ADDRESS_TYPE_MAX, Address, Route
from ockam.errors import RemoteProtocolError
from ockam.transport.wire import Wire

TRACED_VERSION = 2
ROUTE_HOPS_MAX = 64
"""The most hops of a route. The longest real route has about five, so a longer one is a loop or an attack."""
ADDRESS_BYTES_MAX = 1024 + 64
"""The most bytes of an address: the longest name of a stream, with a prefix. Real addresses have a few tens."""
ROUTE_BYTES_MAX = 8 * 1024
"""The most bytes of all addresses of a route. Routes of waiting requests stay in memory."""


# type RouteAddress struct { type: uint  value: data }
class RouteAddress(msgspec.Struct, frozen=True):
    type: bare.UInt
    value: bytes


# type Routes struct { version: uint  onwardRoute: list<RouteAddress>  returnRoute: list<RouteAddress> }
class Routes(msgspec.Struct, frozen=True):
    version: bare.UInt
    onward_route: list[RouteAddress]
    return_route: list[RouteAddress]


# type TracedPayload struct { payload: data  tracingContext: optional<str> }
class TracedPayload(msgspec.Struct, frozen=True):
    payload: bytes
    tracing_context: str | None


_routes_decoder = bare.Decoder(Routes)
_routes_encoder = bare.Encoder(Routes)
_payload_decoder = bare.Decoder(bytes)
_size_encoder: bare.Encoder[int] = bare.Encoder(bare.UInt)
_traced_decoder = bare.Decoder(TracedPayload)


class LegacyWire(Wire):
    """The legacy framing, which Ockam programs used from February 2021 to June 2024.

    We send no frame above 65,000 bytes, because the real node crashes on larger frames."""

    name = "legacy"
    hello = b""
    length_bytes = 2
    send_bytes_max = 65_000
    receive_bytes_max = 65_535
    heartbeat = struct.pack(">H", 4) + b"\x01\x00\x00\x00"

    def decode_routes(self, data: bytes, at: int, end: int) -> tuple[Route, Route, int]:
        try:
            routes, stop = _routes_decoder.decode_prefix(data[at:end])
        except bare.DecodeError as error:
            raise RemoteProtocolError("undecodable", f"not a legacy message: {error}") from error
        if routes.version not in (1, TRACED_VERSION):
            raise RemoteProtocolError("version", f"message version {routes.version}; known are 1 and 2")
        return _route(routes.onward_route), _route(routes.return_route), at + stop

    def decode_payload(self, data: bytes, start: int, at: int, end: int) -> bytes:
        try:
            if data[start] == TRACED_VERSION:
                return _traced_decoder.decode(data[at:end]).payload
            if at < end and data[at] < 128 and at + 1 + data[at] == end:
                return data[at + 1 : end]
            return _payload_decoder.decode(data[at:end])
        except bare.DecodeError as error:
            raise RemoteProtocolError("undecodable", f"not a legacy payload: {error}") from error

    def encode_routes(self, onward_route: Route, return_route: Route) -> bytes:
        return _routes_encoder.encode(Routes(1, _wire_route(onward_route), _wire_route(return_route)))

    def around_payload(self, size_bytes: int) -> tuple[bytes, bytes]:
        return _size_encoder.encode(size_bytes), b""


def _route(addresses: list[RouteAddress]) -> Route:
    if len(addresses) > ROUTE_HOPS_MAX:
        raise RemoteProtocolError("undecodable", f"a route of {len(addresses)} hops; at most {ROUTE_HOPS_MAX}")
    if any(address.type > ADDRESS_TYPE_MAX for address in addresses):
        raise RemoteProtocolError("undecodable", f"an address type above {ADDRESS_TYPE_MAX}")
    sizes = [len(address.value) for address in addresses]
    refusal = refusal_of_sizes(max(sizes, default=0), sum(sizes))
    if refusal is not None:
        raise RemoteProtocolError("undecodable", refusal)
    return tuple(Address(address.type, address.value) for address in addresses)


def refusal_of_sizes(address_bytes: int, route_bytes: int) -> str | None:
    if address_bytes > ADDRESS_BYTES_MAX:
        return f"an address of {address_bytes} bytes; at most {ADDRESS_BYTES_MAX}"
    if route_bytes > ROUTE_BYTES_MAX:
        return f"a route of {route_bytes} bytes; at most {ROUTE_BYTES_MAX}"
    return None


def _wire_route(route: Route) -> list[RouteAddress]:
    return [RouteAddress(address.type, address.value) for address in route]


LEGACY = LegacyWire()
"""The only instance of LegacyWire, which has no state."""
