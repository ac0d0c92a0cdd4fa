"""Encodes and decodes the payloads of plain pushes and of their confirms.

Nearly all messages of a busy node are plain pushes and confirms. These functions do the same as those of
`stream_service.protocol.PUSH`, but faster: they are ordinary typed source, which can be compiled, and
encoding needs no object for the push or the confirm. They handle the usual payloads. All other payloads go to the
functions of PUSH, which also raise the errors. `tests/service/test_push_codec.py` compares both.
"""

from __future__ import annotations

from bare.errors import Irregular
from bare.varint import FIRST_BYTE, ONE_BYTE, encode_uint, long_uint
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status

TAG = PUSH.tag
TAG_BYTES = len(TAG)
HEADS = [TAG + size for size in ONE_BYTE]
"""The bytes before a body of less than 128 bytes, by the size of the body."""
USUAL_BYTES_MAX = 1024 * 1024
"""The size of the largest payload that is handled here, in bytes. PUSH knows the limits of larger ones."""
OK_BYTE = b"\0"
OK = Status.OK


def encode_push(request_id: int, data: bytes) -> bytes:
    """Returns the payload of a push, the same bytes as PUSH makes."""
    size = len(data)
    if size > USUAL_BYTES_MAX:
        return PUSH.encode_request(PushRequest(request_id, data))
    body = _encode_uint(request_id) + _encode_uint(size)
    size += len(body)
    return (HEADS[size] if size < 128 else TAG + _encode_uint(size)) + body + data


def encode_confirm(request_id: int, index: int) -> bytes:
    """Returns the payload of a confirm with the status OK, the same bytes as PUSH makes."""
    body = _encode_uint(request_id) + OK_BYTE + _encode_uint(index)
    return HEADS[len(body)] + body


def decode_push(payload: bytes) -> PushRequest:
    """Returns the push that a payload has, as PUSH does. Raises ProtocolError."""
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
    """Returns the confirm that a payload has, as PUSH does. Raises ProtocolError."""
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


def _encode_uint(value: int) -> bytes:
    if value < 128:
        return ONE_BYTE[value]
    if value < 16384:
        return FIRST_BYTE[value & 127] + ONE_BYTE[value >> 7]
    return encode_uint(value)
