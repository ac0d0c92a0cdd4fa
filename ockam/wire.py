"""Wire: the interface of the two real framings. A frame is a length, a header (the two routes) and a payload.

`wire_legacy` and `wire_head` implement it; `handshake` detects which one a peer uses. A wire decodes the body of one
frame into routes and payload, and encodes them. It has no state, reads no sockets and does not decode payloads.
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
    heartbeat: a complete frame without a message. It only shows that the sender is alive.
    """

    name: str
    hello: bytes
    length_bytes: int
    send_bytes_max: int
    receive_bytes_max: int
    heartbeat: bytes

    def decode_routes(self, data: bytes, at: int, end: int) -> tuple[Route, Route, int]:
        """Decodes the onward route and the return route of the body `data[at:end]`. Also returns where the routes end.

        Raises RemoteProtocolError if they are not valid. The bytes of the routes are self-delimiting: another body that
        begins with the same bytes has the same routes. So a connection can remember them.
        """
        ...

    def decode_payload(self, data: bytes, start: int, at: int, end: int) -> bytes:
        """Decodes the payload of the body `data[start:end]`. at: the end of the routes, as `decode_routes` returned it.

        Raises RemoteProtocolError if the rest of the body is not valid.
        """
        ...

    def encode_routes(self, onward_route: Route, return_route: Route) -> bytes:
        """Encodes the part of a body before the payload."""
        ...

    def encode_payload(self, payload: bytes) -> bytes:
        """Encodes the part of a body behind the routes, with the payload."""
        ...

    def around_payload(self, size_bytes: int) -> tuple[bytes, bytes]:
        """Returns the bytes that `encode_payload` puts before and behind every payload of this size."""
        ...
