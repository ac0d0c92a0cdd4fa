"""PUSH_BATCH: the protocol by which a publisher sends many pushes in one message, and a stream confirms many at once.

A batch means the same as its pushes sent one after the other, with one frame and one route. docs/wire.md describes when
a client may send it.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol
from stream_service.extensions import TOLD, Outcome

BATCHED = TOLD + b"batch/"
"""The beginning of the return addresses of publishers that understand BatchAnswer, also as the confirm of plain pushes.
"""
BATCH_MESSAGES_MAX = 1_000


# type PushBatch struct { request_id: uint  messages: list<data> }
class PushBatch(msgspec.Struct, frozen=True, gc=False):
    """Pushes of messages without key and headers."""

    request_id: bare.UInt  # of the first push; each further push has the next number
    messages: list[bytes]  # 1 to BATCH_MESSAGES_MAX


# type BatchFailure struct { outcome: Outcome  reason: str }
class BatchFailure(msgspec.Struct, frozen=True, gc=False):
    outcome: Outcome
    reason: str


# type BatchAnswer struct { request_id: uint  count: uint  index: uint  failure: optional<BatchFailure> }
class BatchAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to pushes that follow each other. They need not be the pushes of one batch.

    request_id, index: of the first push. The others have the next request ids, and the next indexes if they are stored.
    failure: None if the messages are stored.
    """

    request_id: bare.UInt
    count: bare.UInt
    index: bare.UInt
    failure: BatchFailure | None


PUSH_BATCH = Protocol("node/push_batch/1", PushBatch, BatchAnswer)
