"""Encodes and decodes the payloads of pages, the answers to pulls, faster than PULL, RICH_PULL and MARKED_PULL do.

It handles the usual pages: messages without key and headers. All others go to the functions of the protocols, which
also raise the errors. `tests/service/machines/test_page_codec.py` compares both.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from bare.errors import Irregular
from bare.limits import LIST_ITEMS_MAX
from bare.varint import FIRST_BYTE, ONE_BYTE, decode_uint, encode_uint, long_uint
from stream_service.extensions import MARKED_PULL, RICH_PULL, MarkedPage, RichMessage, RichPage
from stream_service.protocol import PULL, PullResponse, StreamMessage

Record: TypeAlias = tuple[int, bytes, int, bytes | None, bytes | None]
"""A stored message, as `stream_storage.contract.Record`; clients use this module, too, and have no storage."""
TAG = PULL.tag
RICH_TAG = RICH_PULL.tag
MARKED_TAG = MARKED_PULL.tag
USUAL_BYTES_MAX = 8 * 1024 * 1024
"""The size of the largest payload that is handled here, in bytes."""
NO_KEY_NO_HEADERS = b"\0\0"
TIME_BYTES = 8
BLOCK_MAX = ((1 << 64) - 1) >> 7
"""The block, which is the index divided by 128, of the greatest index."""


def encode_page(request_id: int, records: list[Record]) -> bytes:
    """Returns the payload of a plain page. Keys and headers are left out."""
    pieces = [encode_uint(request_id), encode_uint(len(records))]
    _encode_messages(pieces, records, timed=False)
    return _payload(TAG, pieces)


def encode_rich_page(
    request_id: int,
    first_index: int,
    next_index: int,
    resume_index: int,
    records: list[Record],
    created_us: int | None = None,
) -> bytes | None:
    """Returns the payload of a rich page, marked if the creation time of the stream is given; None for a page that is
    not usual."""
    for record in records:
        if record[3] is not None or record[4] is not None:
            return None
    pieces = [encode_uint(each) for each in (request_id, first_index, next_index, resume_index, len(records))]
    _encode_messages(pieces, records, timed=True)
    if created_us is None:
        return _payload(RICH_TAG, pieces)
    pieces.append(created_us.to_bytes(TIME_BYTES, "little"))
    return _payload(MARKED_TAG, pieces)


def decode_page(payload: bytes) -> PullResponse:
    found = _decode_usual(payload, TAG, 1, timed=False)
    if found is None:
        return PULL.decode_response(payload)
    (request_id,), messages = found
    return PullResponse(request_id, messages)


def decode_rich_page(payload: bytes) -> RichPage:
    found = _decode_usual(payload, RICH_TAG, 4, timed=True)
    if found is None:
        return RICH_PULL.decode_response(payload)
    (request_id, first_index, next_index, resume_index), messages = found
    return RichPage(request_id, first_index, next_index, resume_index, messages)


def decode_marked_page(payload: bytes) -> MarkedPage:
    found = _decode_usual(payload, MARKED_TAG, 4, timed=True, behind_bytes=TIME_BYTES)
    if found is None:
        return MARKED_PULL.decode_response(payload)
    (request_id, first_index, next_index, resume_index), messages = found
    created_us = int.from_bytes(payload[-TIME_BYTES:], "little")
    return MarkedPage(request_id, first_index, next_index, resume_index, messages, created_us)


def _payload(tag: bytes, pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return tag + encode_uint(len(body)) + body


def _encode_messages(pieces: list[bytes], records: list[Record], timed: bool) -> None:
    """Appends the encoded messages to `pieces`. timed: whether they have times, keys and headers."""
    # Of 128 indexes in sequence, only the first byte differs.
    block, later_bytes = -1, b""
    last_time_us, middle = -1, b""
    for record in records:
        index = record[0]
        data = record[1]
        if index >> 7 != block:
            block = index >> 7
            later_bytes = encode_uint(block)
        pieces.append(FIRST_BYTE[index & 127] + later_bytes if block else ONE_BYTE[index])
        if timed:
            time_us = record[2]
            if time_us != last_time_us:
                last_time_us = time_us
                middle = time_us.to_bytes(TIME_BYTES, "little") + NO_KEY_NO_HEADERS
            pieces.append(middle)
        size = len(data)
        pieces.append(ONE_BYTE[size] if size < 128 else encode_uint(size))
        pieces.append(data)


def _decode_usual(
    payload: bytes, tag: bytes, numbers: int, timed: bool, behind_bytes: int = 0
) -> tuple[list[int], list[Any]] | None:
    """Returns the numbers before the messages, and the messages; None for a payload that is not usual.

    numbers: how many numbers stand before the number of messages. behind_bytes: how many bytes stand behind them.
    """
    have = len(payload)
    if have > USUAL_BYTES_MAX or not payload.startswith(tag):
        return None
    try:
        size, at = decode_uint(payload, len(tag))
        if at + size != have:
            return None
        head = []
        for _ in range(numbers):
            number, at = decode_uint(payload, at)
            head.append(number)
        count, at = decode_uint(payload, at)
        if count > LIST_ITEMS_MAX:
            return None
        messages: list[Any] = []
        index, block, later_bytes = -1, -1, b""
        time_us, middle = -1, b""
        for _ in range(count):
            # Nearly always, the index is that after the one before. To compare its bytes is faster than to decode it.
            index += 1
            if index >> 7 != block:
                block = index >> 7
                if block > BLOCK_MAX:
                    return None
                later_bytes = encode_uint(block)
            expected = FIRST_BYTE[index & 127] + later_bytes if block else ONE_BYTE[index]
            if payload.startswith(expected, at):
                at += len(expected)
            else:
                index, at = decode_uint(payload, at)
            if timed:
                # Many messages have the time of the one before.
                if time_us < 0 or not payload.startswith(middle, at):
                    middle = payload[at : at + TIME_BYTES + 2]
                    if len(middle) < TIME_BYTES + 2 or not middle.endswith(NO_KEY_NO_HEADERS):
                        return None
                    time_us = int.from_bytes(middle[:TIME_BYTES], "little")
                at += TIME_BYTES + 2
            size = payload[at]
            at += 1
            if size > 127:
                size, at = long_uint(payload, at - 1)
            end = at + size
            data = payload[at:end]
            messages.append(RichMessage(index, time_us, None, [], data) if timed else StreamMessage(index, data))
            at = end
    except (Irregular, IndexError):
        return None
    return (head, messages) if at + behind_bytes == have else None
