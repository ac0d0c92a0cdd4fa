"""Encodes and decodes the payloads of plain pushes, of their batches and confirms, faster than PUSH and PUSH_BATCH do.

It handles the usual payloads. All others go to the functions of the protocols, which also raise the errors.
`tests/service/machines/test_push_codec.py` compares both.
"""

from __future__ import annotations

from bare.errors import Irregular
from bare.varint import ONE_BYTE, decode_uint, encode_uint, long_uint
from ockam.protocol import ProtocolError
from stream_service.extensions import BATCH_MESSAGES_MAX, PUSH_BATCH, BatchAnswer, PushBatch
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status

TAG = PUSH.tag
TAG_BYTES = len(TAG)
HEADS = [TAG + size for size in ONE_BYTE]
"""The bytes before a body of less than 128 bytes, by the size of the body."""
USUAL_BYTES_MAX = 1024 * 1024
"""The size of the largest payload that is handled here, in bytes."""
BATCH_TAG = PUSH_BATCH.tag
BATCH_TAG_BYTES = len(BATCH_TAG)
OK_BYTE = b"\0"
NO_FAILURE = b"\0"
OK = Status.OK


def encode_push(request_id: int, data: bytes) -> bytes:
    size = len(data)
    if size > USUAL_BYTES_MAX:
        return PUSH.encode_request(PushRequest(request_id, data))
    body = encode_uint(request_id) + encode_uint(size)
    size += len(body)
    return (HEADS[size] if size < 128 else TAG + encode_uint(size)) + body + data


def encode_confirm(request_id: int, index: int) -> bytes:
    """Returns the payload of a confirm with the status OK."""
    body = encode_uint(request_id) + OK_BYTE + encode_uint(index)
    return HEADS[len(body)] + body


def decode_push(payload: bytes) -> PushRequest:
    have = len(payload)
    if have <= USUAL_BYTES_MAX and payload.startswith(TAG):
        try:
            # The size of the body. A number from 128 on has more than one byte.
            at = TAG_BYTES + 1
            size = payload[TAG_BYTES]
            if size > 127:
                size, at = long_uint(payload, TAG_BYTES)
            if at + size == have:
                # The body: the request id, the size of the data, the data.
                request_id = payload[at]
                at += 1
                if request_id > 127:
                    request_id, at = long_uint(payload, at - 1)
                size = payload[at]
                at += 1
                if size > 127:
                    size, at = long_uint(payload, at - 1)
                if at + size == have:
                    return PushRequest(request_id, payload[at:])
        except (Irregular, IndexError):
            pass
    return PUSH.decode_request(payload)


def decode_confirm(payload: bytes) -> PushConfirm:
    have = len(payload)
    at = TAG_BYTES + 1
    if have > at and payload[TAG_BYTES] == have - at and payload.startswith(TAG):
        try:
            # The body: the request id, the status, the index.
            request_id = payload[at]
            at += 1
            if request_id > 127:
                request_id, at = long_uint(payload, at - 1)
            if not payload[at]:
                index = payload[at + 1]
                at += 2
                if index > 127:
                    index, at = long_uint(payload, at - 1)
                if at == have:
                    return PushConfirm(request_id, OK, index)
        except (Irregular, IndexError):
            pass
    return PUSH.decode_response(payload)


def encode_batch(request_id: int, messages: list[bytes]) -> bytes:
    pieces = [encode_uint(request_id), encode_uint(len(messages))]
    for data in messages:
        size = len(data)
        pieces.append(ONE_BYTE[size] if size < 128 else encode_uint(size))
        pieces.append(data)
    body = b"".join(pieces)
    return BATCH_TAG + encode_uint(len(body)) + body


def decode_batch(payload: bytes) -> PushBatch:
    """Returns the batch of a payload. Raises ProtocolError, also for a batch without messages or with too many."""
    batch = _decode_usual_batch(payload)
    if batch is None:
        batch = PUSH_BATCH.decode_request(payload)
    if not 0 < len(batch.messages) <= BATCH_MESSAGES_MAX:
        raise ProtocolError(f"a batch of {len(batch.messages)} messages; it has 1 to {BATCH_MESSAGES_MAX}")
    return batch


def _decode_usual_batch(payload: bytes) -> PushBatch | None:
    have = len(payload)
    try:
        if not payload.startswith(BATCH_TAG):
            return None
        size, at = decode_uint(payload, BATCH_TAG_BYTES)
        if at + size != have:
            return None
        request_id, at = decode_uint(payload, at)
        count, at = decode_uint(payload, at)
        # Each message has at least one byte, its size.
        if count > have - at:
            return None
        messages = []
        for _ in range(count):
            size = payload[at]
            at += 1
            if size > 127:
                size, at = long_uint(payload, at - 1)
            end = at + size
            messages.append(payload[at:end])
            at = end
    except (Irregular, IndexError):
        return None
    return PushBatch(request_id, messages) if at == have else None


def encode_batch_stored(request_id: int, count: int, index: int) -> bytes:
    """Returns the payload of the answer to pushes whose messages are stored."""
    body = encode_uint(request_id) + encode_uint(count) + encode_uint(index) + NO_FAILURE
    return BATCH_TAG + ONE_BYTE[len(body)] + body


def decode_batch_answer(payload: bytes) -> BatchAnswer:
    have = len(payload)
    at = BATCH_TAG_BYTES + 1
    if have > at and payload[BATCH_TAG_BYTES] == have - at and payload.startswith(BATCH_TAG):
        try:
            request_id, at = decode_uint(payload, at)
            count, at = decode_uint(payload, at)
            index, at = decode_uint(payload, at)
            if at == have - 1 and not payload[at]:
                return BatchAnswer(request_id, count, index, None)
        except (Irregular, IndexError):
            pass
    return PUSH_BATCH.decode_response(payload)
