"""Encodes the answers to pushes that failed: the message is not stored, or it is unknown whether it is stored.

A client of the real services gets a confirm with the status ERROR, which is all that it knows. A client whose return
address begins with `extensions.TOLD` gets `node/push_failed/1`, with the outcome and the reason. A flag in each request
would make plain pushes larger and slower.
"""

from __future__ import annotations

from ockam.actors.message import Message
from ockam.protocol import ProtocolError, error_payload
from stream_service.extensions import PUSH_FAILED, RICH_PUSH, TOLD, Outcome, PushFailure, RichConfirm, RichStatus
from stream_service.protocol import PUSH, PushConfirm, Status
from stream_service.push_batch import BATCHED, PUSH_BATCH, BatchAnswer, BatchFailure, PushBatch
from stream_service.push_codec import decode_batch


class Failure:
    __slots__ = ("outcome", "reason")

    def __init__(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        self.reason = reason


def is_told(message: Message) -> bool:
    """Whether the sender of this message understands `node/push_failed/1`."""
    return bool(message.return_route) and message.return_route[-1].value.startswith(TOLD)


def is_batched(message: Message) -> bool:
    """Whether the sender of this push understands an answer to several pushes."""
    return bool(message.return_route) and message.return_route[-1].value.startswith(BATCHED)


def plain_failure(message: Message, request_id: int, failure: Failure) -> bytes:
    if is_told(message):
        return PUSH_FAILED.encode_response(PushFailure(request_id, failure.outcome, failure.reason))
    return PUSH.encode_response(PushConfirm(request_id, Status.ERROR, 0))


def rich_failure(message: Message, request_id: int, failure: Failure) -> bytes:
    if is_told(message):
        return PUSH_FAILED.encode_response(PushFailure(request_id, failure.outcome, failure.reason))
    status = RichStatus.REFUSED if failure.outcome is Outcome.REFUSED else RichStatus.ERROR
    return RICH_PUSH.encode_response(RichConfirm(request_id, status, 0, 0))


def batch_failure(batch: PushBatch, failure: Failure) -> bytes:
    what = BatchFailure(failure.outcome, failure.reason)
    return PUSH_BATCH.encode_response(BatchAnswer(batch.request_id, len(batch.messages), 0, what))


def refusal_payload(message: Message, reason: str) -> bytes | None:
    """Encodes the answer to a push that is refused, for example because it is too large.

    Returns None if the client understands no such answer. Then the caller answers with `error`.
    """
    failure = Failure(Outcome.REFUSED, reason)
    try:
        if RICH_PUSH.is_in(message.payload):
            return rich_failure(message, RICH_PUSH.decode_request(message.payload).request_id, failure)
        if PUSH.is_in(message.payload) and is_told(message):
            return plain_failure(message, PUSH.decode_request(message.payload).request_id, failure)
        if PUSH_BATCH.is_in(message.payload):
            return batch_failure(decode_batch(message.payload), failure)
    except ProtocolError:
        return None
    return None


def failure_payload(message: Message, failure: Failure) -> bytes:
    """Encodes the answer to a message of any protocol that the worker could not handle.

    A push gets no `error`, because a real producer would publish the `error` as a message.
    """
    payload = message.payload
    if PUSH.is_in(payload):
        return plain_failure(message, PUSH.decode_request(payload).request_id, failure)
    if RICH_PUSH.is_in(payload):
        return rich_failure(message, RICH_PUSH.decode_request(payload).request_id, failure)
    if PUSH_BATCH.is_in(payload):
        return batch_failure(decode_batch(payload), failure)
    return error_payload(failure.reason)
