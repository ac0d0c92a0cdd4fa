"""What a client can run into, whose fault it is, and whether asking again helps.

Errors of other libraries are mapped to these where they enter: in `shell.async_shell`, `shell.blocking_shell` and
`core.payloads`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from ockam.errors import RemoteProtocolError
    from stream_client.core.requests import Push

Fault: TypeAlias = Literal["caller", "node", "network"]
"""Who must act: the caller changes the request, the node's operator looks at the node, the network needs time."""


class ClientError(Exception):
    """Base of every error of the clients.

    fault: who must act. retriable: the same request may succeed later, unchanged. in_doubt: the request may have been
    carried out all the same; without it, it has not been, and sending it again does nothing twice.
    """

    fault: Fault = "caller"
    retriable: bool = False
    in_doubt: bool = False


class InvalidArgument(ClientError, ValueError):
    """The program passed a value that cannot be sent, or that means nothing; nothing was sent."""


class NodeUnreachable(ClientError):
    """No connection could be made, or nothing answers. What was asked over an earlier one may have been carried out."""

    fault: Fault = "network"
    retriable = True
    in_doubt = True


class ConnectionLost(ClientError):
    """The connection ended with this request unanswered: it may or may not have been carried out."""

    fault = "network"
    retriable = True
    in_doubt = True


class RequestTimeout(ClientError):
    """No answer in time: the request may or may not have been carried out."""

    fault = "network"
    retriable = True
    in_doubt = True


class RequestRefused(ClientError):
    """The node answered with `error`: the request is wrong as it stands. The text is the node's reason."""


class NodeFailed(ClientError):
    """The node could not carry the request out (a full disk, say), and answered so. The text is the node's reason; it
    says so where the request may have been carried out all the same."""

    fault = "node"
    retriable = True
    in_doubt = True


class PushFailed(ClientError):
    """The node could not save this message, and answered so: PushNotStored or PushUnknown. The text has its reason."""

    fault: Fault = "node"
    retriable = True


class PushNotStored(PushFailed):
    """The message is not stored, and will not be unless it is pushed again (a full disk, say)."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message has not been stored: {reason}")


class PushUnknown(PushFailed):
    """Nobody knows whether the message is stored: its sync failed, say. Pushed again, it may be stored twice.

    An idempotent publisher does not raise this at once: it sends the message again until the node knows.
    """

    in_doubt = True

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message may have been stored, or not: {reason}")


class PushesFailed(PushFailed):
    """Some pushes of a publisher failed that its owner had not asked about; `pushes` are these, each with its error.

    fault, retriable: of the first that no retry helps, else of the first. in_doubt: of any.
    """

    def __init__(self, pushes: Iterable[Push]) -> None:
        self.pushes: Sequence[Push] = tuple(pushes)
        errors = [push.error for push in self.pushes if push.error is not None]
        decisive = next((error for error in errors if not error.retriable), errors[0])
        self.fault, self.retriable = decisive.fault, decisive.retriable
        doubts = sum(error.in_doubt for error in errors)
        self.in_doubt = doubts > 0
        what = "1 message was" if len(errors) == 1 else f"{len(errors)} messages were"
        may = f" ({doubts} of them may have been stored)" if doubts and len(errors) > 1 else ""
        super().__init__(f"{what} not confirmed{may}; the first: {errors[0]}")


class UnexpectedAnswer(ClientError):
    """The other side answered with something that is not an answer to this request; it is not a stream node."""

    fault = "node"
    in_doubt = True


class NotAStreamNode(UnexpectedAnswer):
    """Something else answers at that address; the text says what."""


class NotSupported(RequestRefused):
    """The other side is a stream service that does not have this protocol; the text says what cannot be done there."""


class RouteRefused(NodeUnreachable):
    """A node on the way does not pass on what is sent: its operator allows no such destination."""

    fault = "caller"
    retriable = False


class RouteLost(NodeUnreachable):
    """A node on the way cannot reach the next one just now: what was asked may or may not have been carried out."""


class StreamNotFound(ClientError):
    """The node has no stream of that name."""


class PositionBeyondEnd(ClientError):
    """A saved position lies beyond the stream's end: the stream was deleted, and made again, since it was saved."""


class LeaseLost(ClientError):
    """This consumer no longer has these partitions of a shared stream; what it had not saved comes to somebody else.

    Raised inside the iterator. The iteration may be taken up again: it goes on with the partitions that are left, and
    with those that the members give it later.
    """

    retriable = True

    def __init__(self, stream_name: str, partitions: Iterable[int]) -> None:
        self.stream_name = stream_name
        self.partitions: tuple[int, ...] = tuple(sorted(partitions))
        which = ", ".join(map(str, self.partitions))
        super().__init__(f"the lease of partition {which} of {stream_name!r} has been lost; stop processing it")


class ClientClosed(ClientError):
    """The client has been closed by its owner. What had no answer then may have been carried out."""

    in_doubt = True


def silent(address: str) -> NodeUnreachable:
    """Connections are made, and nothing comes over any of them."""
    return NodeUnreachable(f"{address} takes connections and sends nothing: it stands still, or is no stream node")


def fault_of(address: str, error: RemoteProtocolError) -> UnexpectedAnswer:
    """What the other side sent is not what a node sends: already the first bytes, or later ones."""
    if error.kind == "header":
        return NotAStreamNode(f"{address} is no stream node: {error}")
    return UnexpectedAnswer(f"what {address} sends is not what a node sends: {error}")
