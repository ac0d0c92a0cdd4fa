"""What a client can run into, and whether asking again helps. Errors of other libraries are mapped to these."""

from __future__ import annotations


class ClientError(Exception):
    """Base of every error of the clients. `retriable`: the same request may succeed later, unchanged."""

    retriable = False


class NodeUnreachable(ClientError):
    """No connection could be made: nothing was sent."""

    retriable = True


class ConnectionLost(ClientError):
    """The connection ended with this request unanswered: it may or may not have been carried out."""

    retriable = True


class RequestTimeout(ClientError):
    """No answer in time: the request may or may not have been carried out."""

    retriable = True


class RequestRefused(ClientError):
    """The node answered with `error`: the request is wrong as it stands. The text is the node's reason."""


class PushFailed(ClientError):
    """The node could not save this message (a full disk, say); it has not been stored."""

    retriable = True


class UnexpectedAnswer(ClientError):
    """The other side answered with something that is not an answer to this request; it is not a stream node."""


class ClientClosed(ClientError):
    """The client has been closed by its owner."""
