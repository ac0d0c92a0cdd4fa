"""Payloads of the stream protocols as the client writes and reads them. What is not an answer is UnexpectedAnswer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ockam.protocol import ERROR, Protocol, ProtocolError, is_failure
from stream_service.client.arguments import encoded
from stream_service.client.errors import ClientError, NodeFailed, RequestRefused, StreamNotFound, UnexpectedAnswer
from stream_service.client.requests import Call
from stream_service.extensions import DELETED
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    CreatePartitions,
    CreateStream,
    StreamMessage,
)

Q = TypeVar("Q")
A = TypeVar("A")


def create_payload(name: str | None, partitions: int) -> bytes:
    """A request for a stream; one partition is asked for by the plain protocol, which every service has."""
    if partitions == 1:
        return encoded(CREATE, CreateStream(name))
    return encoded(CREATE_PARTITIONED, CreatePartitions(name, partitions))


def created(payload: bytes) -> tuple[str, int]:
    """Name and partition of an Init. Raises UnexpectedAnswer."""
    try:
        if CREATE.is_in(payload):
            return CREATE.decode_response(payload).stream_name, 0
        answer = CREATE_PARTITIONED.decode_response(payload)
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a create: {error}") from error
    return answer.stream_name, answer.partition


def answer_of(call: Call, protocol: Protocol[Q, A]) -> A:
    """The one answer of a finished call. Raises UnexpectedAnswer."""
    try:
        return protocol.decode_response(call.answers[0])
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a {protocol.name}: {error}") from error


def pulled(call: Call) -> Sequence[StreamMessage]:
    """The messages of a finished pull. Raises UnexpectedAnswer."""
    return answer_of(call, PULL).messages


def refusal(payload: bytes, *, of_stream: bool = False) -> ClientError:
    """The reason of an `error`, as an error. of_stream: whether a stream was asked, which may be gone."""
    try:
        reason = ERROR.decode_response(payload).reason
    except ProtocolError as error:
        return RequestRefused(f"an error that cannot be read: {error}")
    if is_failure(reason):
        return NodeFailed(reason)
    return StreamNotFound(reason) if of_stream and reason.endswith(DELETED) else RequestRefused(reason)
