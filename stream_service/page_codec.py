"""Encodes and decodes the payloads of pages, the answers to pulls, faster than their protocols do.

Of plain and rich pages it handles the usual ones: messages without key and headers. All others go to the functions of
the protocols, which also raise the errors. The columns of a packed page are made and cut by one call for all messages.
`tests/service/machines/test_page_codec.py` compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from struct import Struct, pack, unpack_from
from typing import Any, TypeAlias

import bare
from bare.errors import Irregular
from bare.limits import LIST_ITEMS_MAX
from bare.varint import FIRST_BYTE, ONE_BYTE, decode_uint, encode_uint, long_uint
from ockam.protocol import ProtocolError
from stream_service.extensions import (
    MARKED_PULL,
    PACKED_PULL,
    RICH_PULL,
    Beside,
    Header,
    MarkedPage,
    RichMessage,
    RichPage,
    decode_extras,
)
from stream_service.protocol import PULL, PullResponse, StreamMessage

Record: TypeAlias = tuple[int, bytes, int, bytes | None, bytes | None]
"""A stored message, as `stream_storage.contract.Record`; clients use this module, too, and have no storage."""
TAG = PULL.tag
RICH_TAG = RICH_PULL.tag
MARKED_TAG = MARKED_PULL.tag
USUAL_BYTES_MAX = 8 * 1024 * 1024
"""The size of the largest payload that is handled here, in bytes."""
COUNTED_PIECES_MAX = 1024
NO_KEY_NO_HEADERS = b"\0\0"
TIME_BYTES = 8
BLOCK_MAX = ((1 << 64) - 1) >> 7
"""The block of the greatest index. The block of an index is the index divided by 128."""
INDEX_END = 1 << 64
TIME = Struct("<Q")
SIZE = Struct("<I")
NOTHING_BESIDE = b"\0"
"""The field `beside` of a packed page whose messages have neither keys nor headers."""
_encode_beside, _decode_beside = bare.Encoder(list[Beside]).encode, bare.Decoder(list[Beside]).decode


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
    """Returns the payload of a RichPage, or of a MarkedPage if `created_us` is given; None if a message has a key or
    headers."""
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


def _payload(tag: bytes, pieces: list[bytes]) -> bytes:
    # Few pieces can have megabytes, so they are joined once. Many small pieces are joined twice: summing takes longer.
    if len(pieces) <= COUNTED_PIECES_MAX:
        return b"".join((tag, encode_uint(sum(map(len, pieces))), *pieces))
    body = b"".join(pieces)
    return tag + encode_uint(len(body)) + body


def _encode_messages(pieces: list[bytes], records: list[Record], timed: bool) -> None:
    """Appends the encoded messages to `pieces`. timed: whether it is a rich page; then none has a key or headers."""
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


def _decode_usual(payload: bytes, tag: bytes, numbers: int, timed: bool) -> tuple[list[int], list[Any]] | None:
    """Decodes a page without keys and headers. Returns the numbers before the messages, and the messages; None for any
    other payload.

    numbers: how many numbers stand before the number of messages.
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
            # Nearly always, the index is the next one. To compare its bytes is faster than to decode it.
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
    return (head, messages) if at == have else None


class PackedMessages:
    """The messages of a packed page. The first access to one of them makes them all.

    So a client can request the next page first. The columns are checked before, so making messages cannot fail."""

    def __init__(
        self,
        payload: bytes,
        at: int,
        start: int,
        times_us: Sequence[int],
        sizes: Sequence[int],
        beside: Sequence[Beside],
    ) -> None:
        """at: where the data of the first message begin. times_us: the time of each message, or one time for all."""
        self.start = start
        self._count = len(sizes)
        self._columns = payload, at, times_us, sizes, beside
        self._made: list[RichMessage] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def is_plain(self) -> bool:
        """Whether the messages are not made yet, and have no keys and headers."""
        return self._made is None and not self._columns[4]

    @property
    def data_bytes(self) -> int:
        """The size of the data of messages that are not made yet."""
        return sum(self._columns[3])

    def columns(self) -> tuple[Iterable[int], list[bytes]]:
        """Returns the times and the data of messages that are not made yet. One time for all is repeated endlessly."""
        payload, begin, times_us, sizes, _ = self._columns
        data = [payload[first:end] for first, end in pairwise(accumulate(sizes, initial=begin))]
        return repeat(times_us[0]) if len(times_us) == 1 else times_us, data

    def __iter__(self) -> Iterator[RichMessage]:
        # Python does not iterate over a compiled class by `__getitem__`.
        made: list[RichMessage] = self[:]
        return iter(made)

    def __getitem__(self, at: Any) -> Any:
        if self._made is None:
            beside, (times, data) = self._columns[4], self.columns()
            keys: list[bytes | None] = [None] * len(data)
            # Every message has a list of its own: a program may change it.
            headers: list[list[Header]] = [[] for _ in data]
            for each in beside:
                keys[each.at], headers[each.at] = each.key, each.headers
            indexes = range(self.start, self.start + self._count)
            self._made = list(map(RichMessage, indexes, times, keys, headers, data))
            self._columns = b"", 0, (), (), ()
        return self._made[at]


def encode_packed_page(
    request_id: int,
    first_index: int,
    next_index: int,
    resume_index: int,
    created_us: int,
    records: Sequence[Record],
    *,
    more: bool,
) -> bytes:
    """Returns the payload of a page of messages with consecutive indexes. Its last byte is `more`."""
    times_us: set[int] = set()
    data: Sequence[bytes] = ()
    beside = NOTHING_BESIDE
    if records:
        _, data, times, keys, stored = zip(*records, strict=True)
        times_us = set(times)
        if keys.count(None) + stored.count(None) < 2 * len(records):
            rows = [Beside(at, each[3], decode_extras(each[4]).headers) for at, each in enumerate(records)]
            beside = _encode_beside([each for each in rows if each.key is not None or each.headers])
    sizes = list(map(len, data))
    head = [encode_uint(each) for each in (request_id, first_index, next_index, resume_index)]
    head += (TIME.pack(created_us), encode_uint(records[0][0] if records else resume_index))
    packed = TIME.pack(*times_us) if len(times_us) == 1 else pack(f"<{len(sizes)}Q", *[each[2] for each in records])
    for column in (packed, pack(f"<{len(sizes)}I", *sizes)):
        head += (encode_uint(len(column)), column)
    head.append(encode_uint(sum(sizes)))
    tail = beside + ONE_BYTE[more]
    body_bytes = sum(map(len, head)) + sum(sizes) + len(tail)
    return b"".join((PACKED_PULL.tag, encode_uint(body_bytes), *head, *data, tail))


def decode_packed_page(payload: bytes) -> MarkedPage:
    """Returns the answer to a PackedPull, with the PackedMessages of a PackedPage. Raises ProtocolError."""
    if not PACKED_PULL.is_in(payload):
        raise ProtocolError(f"the payload is not a {PACKED_PULL.name} message")
    try:
        return _decode(payload)
    except (Irregular, IndexError, bare.DecodeError) as error:
        raise ProtocolError(f"{PACKED_PULL.name} response: sizes that do not fit") from error


def _decode(payload: bytes) -> MarkedPage:
    size, at = decode_uint(payload, len(PACKED_PULL.tag))
    end = at + size
    request_id, at = decode_uint(payload, at)
    first_index, at = decode_uint(payload, at)
    next_index, at = decode_uint(payload, at)
    resume_index, at = decode_uint(payload, at)
    created_us, at = int.from_bytes(payload[at : at + TIME.size], "little"), at + TIME.size
    start, at = decode_uint(payload, at)
    times_bytes, times_at = decode_uint(payload, at)
    sizes_bytes, sizes_at = decode_uint(payload, times_at + times_bytes)
    data_bytes, at = decode_uint(payload, sizes_at + sizes_bytes)
    count = sizes_bytes // SIZE.size
    data_end = at + data_bytes
    # Nothing is read beyond the end of the payload, and every message has a time and ends within the data. Behind the
    # data are at least the two bytes of an empty list and of `more`.
    if (
        not data_end + 2 <= end == len(payload)
        or sizes_bytes % SIZE.size
        or times_bytes not in (TIME.size if count else 0, TIME.size * count)
        or start + count > INDEX_END
        or payload[-1] > 1
    ):
        raise Irregular
    times_us = unpack_from(f"<{times_bytes // TIME.size}Q", payload, times_at)
    sizes = unpack_from(f"<{count}I", payload, sizes_at)
    beside = _decode_beside(payload[data_end:-1]) if payload[data_end:-1] != NOTHING_BESIDE else ()
    if sum(sizes) != data_bytes or any(each.at >= count for each in beside):
        raise Irregular
    messages: Any = PackedMessages(payload, at, start, times_us, sizes, beside)
    return MarkedPage(request_id, first_index, next_index, resume_index, messages, created_us)
