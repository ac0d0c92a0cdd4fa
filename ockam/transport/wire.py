"""Wire: the interface of the two framings of Ockam messages: `head` since June 2024, `legacy` before."""

from __future__ import annotations

from typing import Protocol

from ockam.actors.address import Route


class Wire(Protocol):
    """One framing of Ockam messages (facts/ockam.md §2). It has no state. A frame's body follows its length.

    name: "legacy" or "head".
    hello: bytes that each side sends before its first frame.
    length_bytes: number of bytes of the big-endian length at the start of every frame.
    send_bytes_max, receive_bytes_max: the largest body that this side sends, and that it accepts, in bytes.
    heartbeat: a complete frame without a message, which only shows that the sender is alive."""

    name: str
    hello: bytes
    length_bytes: int
    send_bytes_max: int
    receive_bytes_max: int
    heartbeat: bytes

    def decode_routes(self, data: bytes, at: int, end: int) -> tuple[Route, Route, int]:
        """Returns the onward route and the return route of the body `data[at:end]`, and the position after both.
        Another body that begins with the same bytes has the same routes, so decoded routes can be remembered. Raises
        RemoteProtocolError."""

    def decode_payload(self, data: bytes, start: int, at: int, end: int) -> bytes:
        """Returns the payload of the body `data[start:end]`. at: the position after the routes. Raises
        RemoteProtocolError if the rest of the body is not valid."""

    def encode_routes(self, onward_route: Route, return_route: Route) -> bytes: ...

    def encode_payload(self, payload: bytes) -> bytes:
        head, tail = self.around_payload(len(payload))
        return head + payload + tail

    def around_payload(self, size_bytes: int) -> tuple[bytes, bytes]:
        """Returns the bytes before and after every payload of this size."""
