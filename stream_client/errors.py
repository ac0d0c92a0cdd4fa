"""The errors of the clients. Each error says whose fault it is, and whether it helps to ask again.

Errors of other libraries are converted to these errors in three places: `shell.async_shell`, `shell.blocking_shell` and
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
    """The base class of all errors of the clients.

    fault: who must act. retriable: whether the same request may succeed later. in_doubt: whether the node may have
    carried out the request in spite of the error. If in_doubt is false, the request was not carried out and you may
    safely send it again.
    """

    fault: Fault = "caller"
    retriable: bool = False
    in_doubt: bool = False


class InvalidArgument(ClientError, ValueError):
    """The program passed a value that cannot be sent or that makes no sense. Nothing was sent."""


class NodeUnreachable(ClientError):
    """No connection could be made, or the service does not answer.

    Requests that were sent over an earlier connection may have been carried out.
    """

    fault: Fault = "network"
    retriable = True
    in_doubt = True


class ConnectionLost(ClientError):
    """The connection ended before this request was answered. The request may have been carried out."""

    fault = "network"
    retriable = True
    in_doubt = True


class RequestTimeout(ClientError):
    """The answer did not come in time. The request may have been carried out."""

    fault = "network"
    retriable = True
    in_doubt = True


class RequestRefused(ClientError):
    """The node refused the request with `error`: the request itself is wrong. The text is the node's reason."""


class NodeFailed(ClientError):
    """The node could not carry out the request, for example because its disk is full. The text is the node's reason.

    If the request may have been carried out all the same, the reason says so.
    """

    fault = "node"
    retriable = True
    in_doubt = True


class PushFailed(ClientError):
    """The node reports that it failed to save a pushed message: PushNotStored or PushUnknown. The text is its
    reason."""

    fault: Fault = "node"
    retriable = True


class PushNotStored(PushFailed):
    """A pushed message is not stored, for example because the disk is full. It stays so unless you push it again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message has not been stored: {reason}")


class PushUnknown(PushFailed):
    """The node does not know whether a pushed message is stored, for example because a sync failed.

    If you push the message again, it may be stored twice. An idempotent publisher does not raise this error at once: it
    sends the message again until the node knows.
    """

    in_doubt = True

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message may have been stored, or not: {reason}")


class UnexpectedAnswer(ClientError):
    """The answer cannot be decoded as an answer to this request: the other side is not a stream node."""

    fault = "node"
    in_doubt = True


class NotAStreamNode(UnexpectedAnswer):
    """A server of another kind answers at this address. The text names the kind."""


class NotSupported(RequestRefused):
    """The stream service does not have the protocol that this action needs. The text names the action."""


class RouteRefused(NodeUnreachable):
    """A node on the route does not forward messages to the next node: its operator does not allow that destination."""

    fault = "caller"
    retriable = False


class RouteLost(NodeUnreachable):
    """A node on the route cannot reach the next node at the moment. The request may have been carried out."""


class StreamNotFound(ClientError):
    """The node has no stream of this name."""


class PositionBeyondEnd(ClientError):
    """A saved position is higher than the stream's end: the stream was deleted and created again after the save."""


class LeaseLost(ClientError):
    """This consumer has lost the leases of these partitions. Other members get the messages after its last save.

    The iterator of a shared consumer raises this error. You may continue the iteration: it goes on with the partitions
    that the consumer still has and with partitions that it gets later.
    """

    retriable = True

    def __init__(self, stream_name: str, partitions: Iterable[int]) -> None:
        self.stream_name = stream_name
        self.partitions: tuple[int, ...] = tuple(sorted(partitions))
        which = ", ".join(map(str, self.partitions))
        super().__init__(f"the lease of partition {which} of {stream_name!r} has been lost; stop processing it")


class ClientClosed(ClientError):
    """The program has closed the client. Requests that were unanswered then may have been carried out."""

    in_doubt = True


def silent(address: str) -> NodeUnreachable:
    """Returns the error for an address that accepts connections but never sends a byte."""
    return NodeUnreachable(f"{address} takes connections and sends nothing: it stands still, or is no stream node")


def fault_of(address: str, error: RemoteProtocolError) -> UnexpectedAnswer:
    """Returns the error for bytes that no node sends: NotAStreamNode if already the first bytes were wrong."""
    if error.kind == "header":
        return NotAStreamNode(f"{address} is no stream node: {error}")
    return UnexpectedAnswer(f"what {address} sends is not what a node sends: {error}")
