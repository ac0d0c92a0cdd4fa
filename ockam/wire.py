"""The interface of the two real framings: a frame is a length, a header (the two routes) and a payload.

`wire_legacy` and `wire_head` each implement `Wire`; `handshake` tells which one a peer speaks. A wire turns the body of
one frame into routes and payload and back. It keeps no state, reads no sockets and does not look into payloads.
"""

from __future__ import annotations

from typing import Protocol

from ockam.address import Route


class Wire(Protocol):
    """One framing of Ockam messages (facts/ockam.md §2).

    name: "legacy" or "head".
    hello: bytes that each side sends before its first frame.
    length_bytes: size of the big-endian length in front of every frame.
    send_bytes_max, receive_bytes_max: the largest body that this side sends, and accepts.
    heartbeat: a whole frame that says only "still here".
    """

    name: str
    hello: bytes
    length_bytes: int
    send_bytes_max: int
    receive_bytes_max: int
    heartbeat: bytes

    def decode_routes(self, data: bytes, at: int, end: int) -> tuple[Route, Route, int]:
        """The onward and return route of the body `data[at:end]`, and where the payload's part begins.

        Raises RemoteProtocolError. The bytes before that place are self-delimiting: another body that begins with
        the same bytes has the same routes, which is what lets a connection remember them.
        """
        ...

    def decode_payload(self, data: bytes, start: int, at: int, end: int) -> bytes:
        """The payload of the body `data[start:end]`; `at` is where `decode_routes` stopped.

        Raises RemoteProtocolError.
        """
        ...

    def encode_routes(self, onward_route: Route, return_route: Route) -> bytes:
        """The part of a body that comes before the payload's part."""
        ...

    def encode_payload(self, payload: bytes) -> bytes:
        """The part of a body that carries the payload."""
        ...

    def around_payload(self, size_bytes: int) -> tuple[bytes, bytes]:
        """What `encode_payload` puts before and behind every payload of that size."""
        ...
