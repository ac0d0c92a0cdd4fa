"""Encodes and decodes payloads of the stream protocols. Raises UnexpectedAnswer if a payload cannot be decoded."""

from __future__ import annotations

from typing import TypeVar

from ockam.identity.gate import is_denied
from ockam.protocol import ERROR, FAILURE, REFUSAL, ProtocolError, find_name, is_failure
from ockam.quotas.usage import is_limited
from ockam.transport.forwarding import OWN_PREFIX, is_destination_unreachable, is_forward_refused
from stream_client.arguments import encoded
from stream_client.errors import (
    AccessDenied,
    ClientError,
    LimitExceeded,
    NodeFailed,
    NotSupported,
    RequestRefused,
    RouteLost,
    RouteRefused,
    StreamNotFound,
    UnexpectedAnswer,
)
from stream_service.extensions import DELETED
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    CreatePartitions,
    CreateStream,
)

Q = TypeVar("Q")
A = TypeVar("A")

PLAIN_REFUSAL = "Invalid request"
"""The only reason for an `error` that real Ockam services ever give (facts/ockam.md §5.1). Our nodes say more."""
USES = {
    "node/stream_list/1": "finding and listing streams",
    "node/stream_info/1": "telling where a stream begins and ends",
    "node/stream_push/1": "pushing with a key, with headers or idempotently",
    "node/stream_pull/1": "pulling from a time or the end, or with times, keys and headers",
    "node/stream_pull/2": "reading the beginnings of messages",
    "node/stream_truncate/1": "truncating",
    "node/stream_delete/1": "deleting",
    "node/stream_retention/1": "setting what is kept",
    "node/stream_pull/3": "telling a stream from one that was made again",
    "node/stream_pull/4": "telling a stream from one that was made again",
    "node/stream_delete/2": "deleting the positions of consumers with a stream",
    "node/index_load/1": "telling a stream from one that was made again",
    "node/index_save/1": "sharing partitions",
    "node/index_save/2": "telling a stream from one that was made again",
    "node/lease/1": "sharing partitions",
    "node/lease/2": "sharing partitions",
    "node/index_list/1": "listing positions",
    "node/index_set/1": "setting a position",
}
"""The operations that need each of our own protocols, as text for an error."""


def create_payload(name: str | None, partitions: int) -> bytes:
    """Encodes a request to create a stream. For one partition it uses the plain protocol, which every service has."""
    if partitions == 1:
        return encoded(CREATE, CreateStream(name))
    return encoded(CREATE_PARTITIONED, CreatePartitions(name, partitions))


def created(payload: bytes) -> tuple[str, int]:
    """Returns the stream's name and the partition's number from the answer to a create. Raises UnexpectedAnswer."""
    try:
        if CREATE.is_in(payload):
            return CREATE.decode_response(payload).stream_name, 0
        answer = CREATE_PARTITIONED.decode_response(payload)
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a create: {error}") from error
    return answer.stream_name, answer.partition


def refusal(payload: bytes, *, of_stream: bool = False, request: bytes = b"") -> ClientError:
    """Returns the exception that corresponds to an `error` message. Its text is the node's reason.

    of_stream: whether a stream sent the message. Only then can the result be StreamNotFound.
    request: the payload of the refused request; empty if unknown.
    """
    try:
        reason = ERROR.decode_response(payload).reason
    except ProtocolError as error:
        return RequestRefused(f"an error that cannot be read: {error}")
    # Our nodes say by fixed words who refuses: a node on the route, the rules, a limit, or the node by a failure.
    if is_forward_refused(reason):
        return RouteRefused(reason.removeprefix(REFUSAL))
    if is_destination_unreachable(reason):
        return RouteLost(reason.removeprefix(REFUSAL).removeprefix(FAILURE))
    if is_denied(reason):
        return AccessDenied(reason.removeprefix(REFUSAL))
    if is_limited(reason):
        return LimitExceeded(reason.removeprefix(REFUSAL))
    if is_failure(reason):
        return NodeFailed(reason)
    # A real Ockam service gives this reason for all it does not know.
    if reason == PLAIN_REFUSAL and request[1:].startswith(OWN_PREFIX):
        return not_supported(find_name(request) or "")
    return StreamNotFound(reason) if of_stream and reason.endswith(DELETED) else RequestRefused(reason)


def not_supported(protocol: str) -> NotSupported:
    """Returns the error for a service without this protocol. The service only answers that the request is invalid."""
    use = USES.get(protocol, "")
    return NotSupported(
        f"the service there is no stream node's: it does not know {protocol}{use and f', which is needed for {use}'}; "
        "create, push and pull by index work with every service"
    )
