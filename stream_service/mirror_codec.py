"""Encodes and decodes the pages of `node/stream_mirror/1`, and checks their messages.

`encode_mirror_page` makes the same bytes as `stream_service.mirroring.MIRROR` does, but faster, and from messages as
the log returns them. `decode_mirror_page` returns messages as the log stores them.

    crc = CRC-32 (zlib) of  u64 time_us, u32 length, key, u32 length, beside, data

The numbers are little-endian, and the length 2**32 - 1 stands for None. The crc does not depend on the id of the
stream, which differs between two nodes. The checksum that a mirror stores is made from the message after its crc was
compared.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple
from zlib import crc32

from bare.errors import Irregular
from bare.varint import ONE_BYTE, decode_uint, encode_uint
from ockam.protocol import ProtocolError
from stream_service.mirroring import (
    INDEX_MAX,
    MIRROR,
    MIRROR_MESSAGES_MAX,
    MirrorStatus,
    SourceRole,
    WireEntry,
    read_history,
)
from stream_storage.checksum import prefixed
from stream_storage.contract import Record
from stream_storage.history import History

_NO_KEY_NO_BESIDE = b"\0\0"
_TIME = Struct("<Q")
_HEAD = Struct("<QI")


class MirrorAnswer(NamedTuple):
    """A decoded page: the fields of `stream_service.mirroring.MirrorPage`, with the messages as the log stores them."""

    status: MirrorStatus
    role: SourceRole
    history: History
    first_index: int
    next_index: int
    start: int
    records: list[Record]

    @property
    def is_mirror(self) -> bool:
        return self.role in (SourceRole.MIRROR, SourceRole.PROMOTED)


class DamagedCopy(ProtocolError):
    """Error: the crc of a message in a page is wrong, so it is not the message that the source has stored."""


def message_crc(time_us: int, key: bytes | None, beside: bytes | None, data: bytes) -> int:
    return crc32(data, crc32(prefixed(beside), crc32(prefixed(key), crc32(_TIME.pack(time_us)))))


def encode_mirror_page(
    request_id: int,
    status: MirrorStatus,
    role: SourceRole,
    history: History,
    first_index: int,
    next_index: int,
    start: int,
    records: list[Record],
) -> bytes:
    """Returns the payload of a page. The arguments are the fields of `stream_service.mirroring.MirrorPage`."""
    pieces = [encode_uint(request_id), encode_uint(status), encode_uint(role), encode_uint(len(history))]
    for entry in history:
        pieces += (_TIME.pack(entry.entry_id), encode_uint(entry.first_index))
    pieces += map(encode_uint, (first_index, next_index, start, len(records)))
    last_time_us, base = -1, 0
    pack = _HEAD.pack
    for _, data, time_us, key, beside in records:
        size = len(data)
        size_bytes = ONE_BYTE[size] if size < 128 else encode_uint(size)
        if key is None and beside is None:
            # Many messages have the time of the one before.
            if time_us != last_time_us:
                last_time_us, base = time_us, message_crc(time_us, None, None, b"")
            pieces.append(pack(time_us, crc32(data, base)) + _NO_KEY_NO_BESIDE + size_bytes)
        else:
            crc = message_crc(time_us, key, beside, data)
            pieces.append(pack(time_us, crc) + _optional(key) + _optional(beside) + size_bytes)
        pieces.append(data)
    body = b"".join(pieces)
    return b"".join((MIRROR.tag, encode_uint(len(body)), body))


def decode_mirror_page(payload: bytes) -> MirrorAnswer:
    """Returns the page that a payload has. Raises ProtocolError, and DamagedCopy if the crc of a message is wrong."""
    body = MIRROR.body(payload)
    try:
        return _decode(body)
    except (Irregular, IndexError, error) as cause:
        raise ProtocolError(f"{MIRROR.name} response: {cause!r}") from cause


def _decode(body: bytes) -> MirrorAnswer:
    _, at = decode_uint(body, 0)
    status, at = decode_uint(body, at)
    role, at = decode_uint(body, at)
    if status > MirrorStatus.PARTED or role > SourceRole.PROMOTED:
        raise Irregular
    count, at = decode_uint(body, at)
    entries = []
    for _ in range(count):
        (entry_id,) = _TIME.unpack_from(body, at)
        index, at = decode_uint(body, at + 8)
        entries.append(WireEntry(entry_id, index))
    first_index, at = decode_uint(body, at)
    next_index, at = decode_uint(body, at)
    start, at = decode_uint(body, at)
    count, at = decode_uint(body, at)
    if count > MIRROR_MESSAGES_MAX or max(first_index, next_index, start) > INDEX_MAX:
        raise ProtocolError(f"{MIRROR.name}: a page of {count} messages from index {start}, which no stream has")
    records, at = _decode_records(body, at, start, count)
    if at != len(body):
        raise Irregular
    return MirrorAnswer(
        MirrorStatus(status), SourceRole(role), read_history(entries), first_index, next_index, start, records
    )


def _decode_records(body: bytes, at: int, start: int, count: int) -> tuple[list[Record], int]:
    records: list[Record] = []
    last_time_us, base = -1, 0
    unpack = _HEAD.unpack_from
    for index in range(start, start + count):
        time_us, crc = unpack(body, at)
        key = beside = None
        if body[at + 12 : at + 14] == _NO_KEY_NO_BESIDE:
            at += 14
            if time_us != last_time_us:
                last_time_us, base = time_us, message_crc(time_us, None, None, b"")
            found = base
        else:
            key, at = _decode_optional(body, at + 12)
            beside, at = _decode_optional(body, at)
            found = message_crc(time_us, key, beside, b"")
        size = body[at]
        at += 1
        if size > 127:
            size, at = decode_uint(body, at - 1)
        end = at + size
        data = body[at:end]
        if end > len(body) or time_us >> 63:
            raise Irregular
        if crc32(data, found) != crc:
            raise DamagedCopy(f"the message at index {index} was changed on its way from the source: its crc is wrong")
        records.append((index, data, time_us, key, beside))
        at = end
    return records, at


def _decode_optional(body: bytes, at: int) -> tuple[bytes | None, int]:
    if body[at] > 1:
        raise Irregular
    if not body[at]:
        return None, at + 1
    size, at = decode_uint(body, at + 1)
    if at + size > len(body):
        raise Irregular
    return body[at : at + size], at + size


def _optional(part: bytes | None) -> bytes:
    return b"\0" if part is None else b"\1" + encode_uint(len(part)) + part
