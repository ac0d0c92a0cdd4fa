"""What can go wrong between nodes. A `Remote…` error is the peer's fault; the others are ours or the caller's."""

from __future__ import annotations


class OckamError(Exception):
    """Base of every error of this package."""


class InvalidAddress(OckamError, ValueError):
    """A text that is not an address or a route."""


class AddressInUse(OckamError):
    """Somebody else is registered under that address."""


class RemoteProtocolError(OckamError):
    """The peer sent bytes that are not a frame or a message of the framing in use; the connection is closed.

    kind: a short stable word for counters (`oversized`, `undecodable`, `version`, `header`).
    """

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class FrameTooLarge(OckamError):
    """A message that the framing of this connection cannot carry; nothing of it was sent."""

    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes does not fit: this framing carries at most {bytes_max}")
        self.size_bytes = size_bytes
        self.bytes_max = bytes_max


class ConnectFailed(OckamError):
    """The other node could not be reached."""


class ConnectionClosed(OckamError):
    """We closed this connection."""


class ConnectionBroken(OckamError):
    """The peer or the network ended this connection."""
