"""The errors of this package. RemoteProtocolError means that the peer made a mistake."""

from __future__ import annotations

from typing import Self


class OckamError(Exception):
    """The base class of all errors of this package."""


class InvalidAddress(OckamError, ValueError):
    """Error: a text is not an address or a route."""


class AddressInUse(OckamError):
    """Error: another worker is already registered under the same address."""


class RemoteProtocolError(OckamError):
    """Error: the peer's bytes are not a valid frame or message, or came too slowly. The connection is closed.

    kind: a short, fixed word for counters, for example `oversized`, `undecodable`, `version` or `header`."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind

    def without_frames(self) -> Self:
        """Returns this error without its traceback and causes, which would retain the messages that were being read."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class FrameTooLarge(OckamError):
    """Error: a message is too large for the framing of this connection. No part of the message was sent."""

    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes does not fit: this framing carries at most {bytes_max}")
        self.size_bytes = size_bytes
        self.bytes_max = bytes_max


class ConnectFailed(OckamError):
    """Error: a connection to the other node could not be made."""


class CallbackExpected(OckamError, TypeError):
    """Error: a worker has a coroutine function where the node calls a function, or the other way round. A worker that
    awaits derives from `AsyncWorker`."""


class InvalidMessage(OckamError, TypeError):
    """Error: a message that a program sends has a payload that is not bytes, or a route that is not a tuple of
    addresses. Nothing was sent."""


class AskTimedOut(OckamError):
    """Error: no answer to a request came in time. The request may have been handled nevertheless."""


class AskRefused(OckamError):
    """Error: a request was answered with an `error`, or nobody takes it.

    reason: the text of the `error`. route: the route of the request, as text."""

    def __init__(self, reason: str, route: str) -> None:
        super().__init__(f"{route}: {reason}")
        self.reason = reason
        self.route = route


class ChildFailed(OckamError):
    """Error: a child of a worker has ended more often than its `Restarts` allow. Its parent crashes with this error,
    unless the parent overrides `child_ended`."""


class WorkerEnded(OckamError):
    """Error: a worker that has stopped or crashed tried to start a child."""
