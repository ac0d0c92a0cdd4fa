"""Encodes the answers to pushes that failed: the message is not stored, or it is unknown whether it is stored.

A client of the real services gets a confirm with the status ERROR, which is all that it knows. A client whose return
address begins with `extensions.TOLD` gets `node/push_failed/1`, with the outcome and the reason. A flag in each request
would make plain pushes larger and slower.
"""

from __future__ import annotations

from ockam.actors.message import Message
from ockam.protocol import ProtocolError, error_payload
from stream_service.extensions import (
    BATCHED,
    PUSH_BATCH,
    PUSH_FAILED,
    RICH_PUSH,
    TOLD,
    BatchAnswer,
    BatchFailure,
    Outcome,
    PushBatch,
    PushFailure,
    RichConfirm,
    RichPush,
    RichStatus,
)
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status
from stream_service.push_codec import decode_batch


def is_told(message: Message) -> bool:
    """Whether the sender of this message understands `node/push_failed/1`."""
    return bool(message.return_route) and message.return_route[-1].value.startswith(TOLD)


def is_batched(message: Message) -> bool:
    """Whether the sender of this push understands an answer to several pushes."""
    return bool(message.return_route) and message.return_route[-1].value.startswith(BATCHED)


def push_failure(message: Message, request: PushRequest | PushBatch | RichPush, failure: BatchFailure) -> bytes:
    """Encodes the answer to a push that failed. request: the decoded payload of the message."""
    if isinstance(request, PushBatch):
        return PUSH_BATCH.encode_response(BatchAnswer(request.request_id, len(request.messages), 0, failure))
    if is_told(message):
        return PUSH_FAILED.encode_response(PushFailure(request.request_id, failure.outcome, failure.reason))
    if isinstance(request, PushRequest):
        return PUSH.encode_response(PushConfirm(request.request_id, Status.ERROR, 0))
    status = RichStatus.REFUSED if failure.outcome is Outcome.REFUSED else RichStatus.ERROR
    return RICH_PUSH.encode_response(RichConfirm(request.request_id, status, 0, 0))


def refusal_payload(message: Message, reason: str) -> bytes | None:
    """Encodes the answer to a push that is refused, for example because it is too large.

    Returns None if the client understands no such answer. Then the caller answers with `error`.
    """
    try:
        request = _decode(message.payload)
    except ProtocolError:
        return None
    if request is None or (isinstance(request, PushRequest) and not is_told(message)):
        return None
    return push_failure(message, request, BatchFailure(Outcome.REFUSED, reason))


def failure_payload(message: Message, failure: BatchFailure) -> bytes:
    """Encodes the answer to a message of any protocol that the worker could not handle.

    A push gets no `error`, because a real producer would publish the `error` as a message.
    """
    request = _decode(message.payload)
    return error_payload(failure.reason) if request is None else push_failure(message, request, failure)


def _decode(payload: bytes) -> PushRequest | PushBatch | RichPush | None:
    if PUSH.is_in(payload):
        return PUSH.decode_request(payload)
    if RICH_PUSH.is_in(payload):
        return RICH_PUSH.decode_request(payload)
    return decode_batch(payload) if PUSH_BATCH.is_in(payload) else None
