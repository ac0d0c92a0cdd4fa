"""The errors of this package. A `Remote…` error is the fault of the peer, the others are ours or the caller's."""

from __future__ import annotations


class OckamError(Exception):
    """Base of every error of this package."""


class InvalidAddress(OckamError, ValueError):
    """A text that is not an address or a route."""


class AddressInUse(OckamError):
    """Another worker is registered under that address."""


class RemoteProtocolError(OckamError):
    """The peer broke the protocol: its bytes are no frame or message of the framing, or came too slowly.

    The connection is closed. kind: a short stable word for counters (`oversized`, `undecodable`, `version`, `header`).
    """

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class FrameTooLarge(OckamError):
    """The framing of this connection cannot carry the message; nothing of it was sent."""

    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes does not fit: this framing carries at most {bytes_max}")
        self.size_bytes = size_bytes
        self.bytes_max = bytes_max


class ConnectFailed(OckamError):
    """The other node could not be reached."""
