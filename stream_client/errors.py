"""The errors of the clients: each says whose fault it is, and whether asking again helps.

Errors of other libraries are mapped to these where they enter: in `shell.async_shell`, `shell.blocking_shell` and
`core.payloads`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from ockam.errors import RemoteProtocolError

Fault: TypeAlias = Literal["caller", "node", "network"]
"""Who must act: the caller changes the request, the operator looks at the node, or the network needs time."""


class ClientError(Exception):
    """Base of every error of the clients.

    fault: who must act. retriable: the same request may succeed later, unchanged. in_doubt: the request may have been
    carried out all the same. Without in_doubt it has not been carried out, and you may safely send it again.
    """

    fault: Fault = "caller"
    retriable: bool = False
    in_doubt: bool = False


class InvalidArgument(ClientError, ValueError):
    """The program passed a value that cannot be sent, or that has no meaning; nothing was sent."""


class NodeUnreachable(ClientError):
    """No connection could be made, or nothing answers. Requests sent over an earlier one may have been carried out."""

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
    """The node could not carry the request out (its disk is full, say), and answered so. The text is the node's reason.

    The reason says so where the request may have been carried out all the same.
    """

    fault = "node"
    retriable = True
    in_doubt = True


class PushFailed(ClientError):
    """The node could not save this message, and answered so: PushNotStored or PushUnknown. The text has its reason."""

    fault: Fault = "node"
    retriable = True


class PushNotStored(PushFailed):
    """The message is not stored (the disk is full, say), and will not be unless it is pushed again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message has not been stored: {reason}")


class PushUnknown(PushFailed):
    """It is not known whether the message is stored: its sync failed, say. Pushed again, it may be stored twice.

    An idempotent publisher does not raise this at once: it sends the message again until the node knows.
    """

    in_doubt = True

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message may have been stored, or not: {reason}")


class UnexpectedAnswer(ClientError):
    """The other side sent bytes that are no answer to this request; it is not a stream node."""

    fault = "node"
    in_doubt = True


class NotAStreamNode(UnexpectedAnswer):
    """Another kind of server answers at that address; the text says which."""


class NotSupported(RequestRefused):
    """The other side is a stream service without this protocol; the text says which action it cannot do."""


class RouteRefused(NodeUnreachable):
    """A node on the route does not pass messages on to the next one: its operator does not allow that destination."""

    fault = "caller"
    retriable = False


class RouteLost(NodeUnreachable):
    """A node on the route cannot reach the next one just now: the request may or may not have been carried out."""


class StreamNotFound(ClientError):
    """The node has no stream of that name."""


class PositionBeyondEnd(ClientError):
    """A saved position lies beyond the stream's end: since the save, the stream was deleted and made again."""


class LeaseLost(ClientError):
    """This consumer has lost the leases of these partitions. Messages behind its last save go to another member.

    Raised inside the iterator. You may take the iteration up again: it goes on with the partitions that are left, and
    with those that it gets later.
    """

    retriable = True

    def __init__(self, stream_name: str, partitions: Iterable[int]) -> None:
        self.stream_name = stream_name
        self.partitions: tuple[int, ...] = tuple(sorted(partitions))
        which = ", ".join(map(str, self.partitions))
        super().__init__(f"the lease of partition {which} of {stream_name!r} has been lost; stop processing it")


class ClientClosed(ClientError):
    """The program has closed the client. Requests without an answer then may have been carried out."""

    in_doubt = True


def silent(address: str) -> NodeUnreachable:
    """The error for an address that accepts connections and sends nothing over any of them."""
    return NodeUnreachable(f"{address} takes connections and sends nothing: it stands still, or is no stream node")


def fault_of(address: str, error: RemoteProtocolError) -> UnexpectedAnswer:
    """The error for bytes that no node sends: NotAStreamNode if the first ones were wrong already."""
    if error.kind == "header":
        return NotAStreamNode(f"{address} is no stream node: {error}")
    return UnexpectedAnswer(f"what {address} sends is not what a node sends: {error}")
