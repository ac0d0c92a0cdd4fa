"""The answers to pushes that are not stored, or may not be: in full to our own clients, else as real services answer.

Real peers know a confirm with ERROR and nothing else, so they get exactly that. A client whose return address begins
with `extensions.TOLD` gets a `node/push_failed/1` instead, which says what became of the push and why. The address and
not the request asks for it, so that plain pushes stay small and fast.
"""

from __future__ import annotations

from ockam.message import Message
from ockam.protocol import ProtocolError, error_payload
from stream_service.extensions import PUSH_FAILED, RICH_PUSH, TOLD, Outcome, PushFailure, RichConfirm, RichStatus
from stream_service.protocol import PUSH, PushConfirm, Status


class Failure:
    """What became of a push that was not confirmed, and why. outcome: see `extensions.Outcome`."""

    __slots__ = ("outcome", "reason")

    def __init__(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        self.reason = reason


def is_told(message: Message) -> bool:
    """Whether the sender of this message understands `node/push_failed/1`."""
    return bool(message.return_route) and message.return_route[-1].value.startswith(TOLD)


def plain_failure(message: Message, request_id: int, failure: Failure) -> bytes:
    """The answer to a plain push."""
    if is_told(message):
        return PUSH_FAILED.encode_response(PushFailure(request_id, failure.outcome, failure.reason))
    return PUSH.encode_response(PushConfirm(request_id, Status.ERROR, 0))


def rich_failure(message: Message, request_id: int, failure: Failure) -> bytes:
    """The answer to a `node/stream_push/1`."""
    if is_told(message):
        return PUSH_FAILED.encode_response(PushFailure(request_id, failure.outcome, failure.reason))
    status = RichStatus.REFUSED if failure.outcome is Outcome.REFUSED else RichStatus.ERROR
    return RICH_PUSH.encode_response(RichConfirm(request_id, status, 0, 0))


def refusal_payload(message: Message, reason: str) -> bytes | None:
    """The answer to a push that no stream stores, for this push alone; None where only an `error` can be given."""
    failure = Failure(Outcome.REFUSED, reason)
    try:
        if RICH_PUSH.is_in(message.payload):
            return rich_failure(message, RICH_PUSH.decode_request(message.payload).request_id, failure)
        if PUSH.is_in(message.payload) and is_told(message):
            return plain_failure(message, PUSH.decode_request(message.payload).request_id, failure)
    except ProtocolError:
        return None
    return None


def failure_payload(message: Message, failure: Failure) -> bytes:
    """The answer to a message of any kind that could not be handled.

    A failed push is told by its own answer, never by `error`: a real producer would publish an `error` back.
    """
    payload = message.payload
    if PUSH.is_in(payload):
        return plain_failure(message, PUSH.decode_request(payload).request_id, failure)
    if RICH_PUSH.is_in(payload):
        return rich_failure(message, RICH_PUSH.decode_request(payload).request_id, failure)
    return error_payload(failure.reason)
