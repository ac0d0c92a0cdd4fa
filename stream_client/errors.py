"""The errors of the clients. Each error says who must act, and whether the same request can succeed later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

SPEAKS_TLS = "it speaks TLS"

Fault: TypeAlias = Literal["caller", "node", "network"]
"""Who must act after an error. "caller": the program must change the request. "node": an operator must look at the
node. "network": nobody must act; the network needs time to recover."""


_DENIAL = re.compile(r"access denied: (?P<right>.+?) on (?:(?!: rule ').)*(?:: rule '(?P<rule>[^']*)' forbids it$)?")
"""Matches the text of a node's refusal (`ockam.identity.rules.rules.Rules.decide`)."""
_LIMIT = re.compile(r"limit exceeded: (?P<limit>\w+) is ")
"""Matches the text of a node's refusal (`ockam.quotas.usage.Usage.reason`)."""


class ClientError(Exception):
    """The base class of all errors of the clients.

    fault: who must act.
    retriable: whether the same request can succeed later.
    in_doubt: whether the node may have carried out the request in spite of the error. If false, the node has not
        carried out the request, and the program can send it again without harm.
    """

    fault: Fault = "caller"
    retriable: bool = False
    in_doubt: bool = False

    def __init_subclass__(
        cls, *, fault: Fault | None = None, retriable: bool | None = None, in_doubt: bool | None = None, **others: Any
    ) -> None:
        """An argument that a subclass leaves out is inherited. `others`: the arguments of other base classes."""
        super().__init_subclass__(**others)
        # An inherited value is not set here: if there are several base classes, the first that sets a value counts.
        if fault is not None:
            cls.fault = fault
        if retriable is not None:
            cls.retriable = retriable
        if in_doubt is not None:
            cls.in_doubt = in_doubt


class InvalidArgument(ClientError, ValueError):
    """The program passed a value that cannot be sent or is not valid. Nothing was sent."""


class NodeUnreachable(ClientError, fault="network", retriable=True, in_doubt=True):
    """The client could not connect to the node, or the service does not answer.

    The node may have carried out requests that were sent over an earlier connection.
    """


class TlsFailed(NodeUnreachable, fault="caller"):
    """TLS with the node failed: one side does not accept the other's certificate, or one of them does not use TLS.

    The text says what to do. The client tries again, because certificates can be renewed meanwhile.

    kind: a short, fixed word, one of `ockam.identity.tls_layer.KINDS`, or `tls_files` if a file of this client cannot
        be used at present.
    """

    def __init__(self, text: str, kind: str) -> None:
        self.kind = kind
        super().__init__(text)


class ConnectionLost(ClientError, fault="network", retriable=True, in_doubt=True):
    """The connection ended before this request was answered. The node may have carried out the request."""


class RequestTimeout(ClientError, fault="network", retriable=True, in_doubt=True):
    """No answer arrived within the timeout. The node may have carried out the request."""


class RequestRefused(ClientError):
    """The request itself is wrong: the node has refused it, or no node would accept it. The text says why."""


class AccessDenied(RequestRefused):
    """The node's rules do not allow this request to this client. The text is the node's reason.

    right: the name of the missing right, for example "read"; several names are joined by " or ".
    rule: the name of the rule that forbids the request; None if no rule allows it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        found = _DENIAL.search(reason)
        self.right = found["right"] if found is not None else ""
        self.rule = found["rule"] if found is not None else None


class AuthenticationFailed(AccessDenied):
    """The node does not accept the token of this client, or the client does not send it. The text says what to do.

    The client has ended: with the same token every further attempt would fail, too.

    kind: a short, fixed word: `unknown`, `expired`, `revoked`, `unencrypted` (a token is sent to another machine over
        TLS only), `second` (the client's certificate proves another identity than the token), or `other` (a reason that
        this version does not know).
    right: always empty for this error.
    rule: always None for this error.
    """

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


class LimitExceeded(RequestRefused, retriable=True, in_doubt=True):
    """This client's identity exceeds one of its limits on the node. The text says what to do.

    A request that was sent over an earlier connection may have been carried out.

    limit: the name of the node's setting, for example "identity_connections_max".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        found = _LIMIT.search(reason)
        self.limit = found["limit"] if found is not None else ""


class NodeFailed(ClientError, fault="node", retriable=True, in_doubt=True):
    """The node could not carry out the request, for example because its disk is full. The text is the node's reason.

    If the request may have been carried out in spite of the failure, the reason says so.
    """


class PushFailed(ClientError, fault="node", retriable=True):
    """The node reports that it could not store a pushed message. The text is the node's reason.

    The subclasses PushNotStored and PushUnknown say whether the message is perhaps stored after all.
    """


class PushNotStored(PushFailed):
    """A pushed message is not stored, for example because the disk is full. To store it, push it again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message has not been stored: {reason}")


class PushOutOfOrder(PushNotStored, fault="caller", retriable=False):
    """A pushed message is not stored, because its number does not follow the last stored number of its publisher.

    Push the missing messages first, beginning with the number `expected`.

    expected: the number that the node expects next from this publisher.
    """

    def __init__(self, number: int, expected: int) -> None:
        self.expected = expected
        super().__init__(f"number {number} of this publisher does not follow: the node expects {expected}")


class PushUnknown(PushFailed, in_doubt=True):
    """The node does not know whether a pushed message is stored, for example because an fsync failed.

    If you push the message again, it is perhaps stored twice. An idempotent publisher usually sends the message again
    for some minutes before it raises this error, so that the node can find out whether the message is stored.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message may have been stored, or not: {reason}")


class UnexpectedAnswer(ClientError, fault="node", in_doubt=True):
    """The answer cannot be decoded as an answer to this request: the other side is probably not a stream node."""


class NotAStreamNode(UnexpectedAnswer):
    """The server at this address is not a stream node. The text says which kind of server it is, if that is known."""


class TlsRequired(NotAStreamNode):
    """The server at this address accepts only TLS, and this client was given no TLS settings."""


class NotSupported(RequestRefused):
    """The service does not have the protocol that the request needs. The text names the protocol and its use."""


class RouteRefused(NodeUnreachable, fault="caller", retriable=False):
    """A node on the route refuses to forward messages to the next node: its operator does not allow this."""


class RouteLost(NodeUnreachable):
    """A node on the route cannot reach the next node at the moment. The request may have been carried out."""


class ChannelSilent(NodeUnreachable):
    """No secure channel could be opened, because nobody answers at the listener's address."""


class ChannelRefused(ClientError, in_doubt=True):
    """The node does not accept this client's identity for a secure channel. Its operator must trust the identity.

    A request that was sent over an earlier channel may have been carried out.
    """


class PeerNotTrusted(ClientError, in_doubt=True):
    """The other end of a secure channel has not proved the identity that this client expects. Nothing was sent to it.

    A request that was sent over an earlier channel may have been carried out.
    """


class StreamNotFound(ClientError):
    """The stream, or one partition of the stream, does not exist on the node."""


class PositionBeyondEnd(ClientError):
    """The position of a reader is higher than the stream's end, because the stream was deleted and created again, or
    has lost its last messages."""


class StreamRemade(PositionBeyondEnd):
    """The stream was deleted and created again under the same name, so the position of a reader means nothing in it.

    A consumer does not raise this error, but goes on at the beginning of the new stream, and passes the error to the
    option `on_event`. Without that option, it logs a warning. `Stream.follow` raises the error.

    index: the next index that was to be read in the former stream.
    """

    def __init__(self, stream_name: str, partition: int, index: int) -> None:
        self.stream_name = stream_name
        self.partition = partition
        self.index = index
        super().__init__(
            f"{stream_name!r}, partition {partition}, was deleted and created again: the position {index} of the "
            "former stream means nothing in it; read it from its beginning"
        )


class PositionReset(ClientError):
    """Somebody has set or deleted the saved position of a running consumer, for example with `index set`.

    A consumer does not raise this error, but goes on at the position that is now saved, and passes the error to the
    option `on_event`. Without that option, it logs a warning.

    before, index: the next index to read, before and after the change.
    """

    def __init__(self, stream_name: str, partition: int, before: int, index: int) -> None:
        self.stream_name = stream_name
        self.partition = partition
        self.before = before
        self.index = index
        super().__init__(
            f"the position in {stream_name!r}, partition {partition}, was set from {before} to {index} by somebody else"
        )


class LeaseLost(ClientError, retriable=True):
    """A shared consumer has lost the leases of `partitions`, so the program must stop processing these partitions.

    Other members of the consumer group get the messages after this consumer's last saved position. The iterator of a
    shared consumer raises this error. You can continue the iteration: it returns messages of the partitions that the
    consumer still has, and of partitions that it gets later.
    """

    def __init__(self, stream_name: str, partitions: Iterable[int]) -> None:
        self.stream_name = stream_name
        self.partitions: tuple[int, ...] = tuple(sorted(partitions))
        which = ", ".join(map(str, self.partitions))
        super().__init__(f"the lease of partition {which} of {stream_name!r} has been lost; stop processing it")


class ClientClosed(ClientError, in_doubt=True):
    """The program has closed the client. The node may have carried out requests that had no answer at that time."""


class ClientForked(ClientError, in_doubt=True):
    """The client was opened in the parent process, before fork() made this process.

    The client in the child ends at the fork, and sends nothing. The client in the parent continues, also with the
    requests that the parent made before the fork; they may have been carried out.
    """

    def __init__(self, parent: int) -> None:
        super().__init__(
            f"this client belongs to process {parent}, from which this process was forked; open a client here, after "
            "the fork"
        )


def doubted(error: ClientError) -> ClientError:
    """Returns `error` if it is in doubt, else a copy that is in doubt: other requests may have the original error."""
    if error.in_doubt:
        return error
    copied = type(error).__new__(type(error), *error.args)
    vars(copied).update(vars(error), in_doubt=True)
    copied.__cause__ = error.__cause__
    return copied


def silent(address: str) -> NodeUnreachable:
    return NodeUnreachable(f"{address} takes connections and sends nothing: it stands still, or is no stream node")


def not_a_stream_node(address: str, what: str) -> NotAStreamNode:
    if what == SPEAKS_TLS:
        return TlsRequired(
            f"{address} is no stream node: it speaks TLS, and this client does not; if it is a node with TLS, give the "
            "authority of its certificate: Tls(ca=…), --tls-ca or STREAM_NODE_TLS_CA"
        )
    return NotAStreamNode(f"{address} is no stream node: {what}")
