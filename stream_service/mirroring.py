"""The messages of `node/stream_mirror/1` and `node/stream_role/1`, by which a node mirrors a stream of another node.

A mirror has the messages of its source at the same indexes, with the same times, keys, headers and sequence numbers. It
asks its source for them by `node/stream_mirror/1`, and takes no pushes. `node/stream_role/1` makes a stream a mirror or
a primary, which takes pushes. docs/wire.md describes both.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from struct import Struct
from typing import Annotated, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

import bare
from bare.errors import Irregular
from bare.varint import ONE_BYTE, decode_uint, encode_uint
from ockam.actors.address import split_host_port
from ockam.errors import InvalidAddress
from ockam.protocol import Protocol, ProtocolError
from stream_service.names import refusal_of_name
from stream_storage.checksum import prefixed
from stream_storage.contract import Record
from stream_storage.history import ENTRIES_MAX, ENTRY_ID_MAX, History, HistoryEntry

MIRROR_MESSAGES_MAX = 4_096
"""The largest number of messages in one answer to a mirror."""
MIRROR_BYTES_MAX = 1024 * 1024
"""The size of the data that a mirror asks for, in bytes."""
INDEX_MAX = 2**62
"""The highest index of a mirrored message. The log stores indexes up to 2^63 - 1."""
SOURCE_BYTES_MAX = 300
"""The largest size of the `host:port` of a source, in bytes."""


# type AskingMirror struct { address: str  stream_name: str }
class AskingMirror(msgspec.Struct, frozen=True):
    """The mirror that asks: the `host:port` of the mirror's node, and the name of the mirror there."""

    address: str
    stream_name: str


# type MirrorPull struct { request_id: uint  start: uint  size_bytes: uint  wait_ms: uint  entry_id: u64
#   follower: optional<AskingMirror> }
class MirrorPull(msgspec.Struct, frozen=True):
    """A request for the stored messages of a stream, from the index `start` on."""

    request_id: bare.UInt
    start: bare.UInt
    size_bytes: bare.UInt  # about the largest size of the data in the answer
    wait_ms: bare.UInt  # how long an answer without a message may be delayed; at most 5,000
    entry_id: bare.U64  # the newest entry in the history of the mirror; 0 without a message
    # the mirror, if its node knows its own address; only a peer with the right ADMIN can name a mirror
    follower: AskingMirror | None = None


# type MirrorStatus enum { OK PARTED }
class MirrorStatus(enum.IntEnum):
    """The relation of the messages of a source to those of its mirror, as far as the histories tell."""

    OK = 0
    PARTED = 1  # the mirror has messages that the source does not have; the answer has no messages


# type SourceRole enum { PRIMARY MIRROR SUCCESSOR PROMOTED }
class SourceRole(enum.IntEnum):
    """The role of the stream that answers a mirror."""

    PRIMARY = 0  # it takes pushes
    MIRROR = 1  # it is itself a mirror of another stream
    SUCCESSOR = 2  # it takes pushes, was a mirror, and has not reached its former source since
    PROMOTED = 3  # it is still a mirror of another stream, and is being promoted


# type WireEntry struct { entry_id: u64  first_index: uint }
class WireEntry(msgspec.Struct, frozen=True):
    entry_id: bare.U64
    first_index: bare.UInt


# type StoredMessage struct { time_us: u64  crc: u32  key: optional<data>  beside: optional<data>  data: data }
class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as the source has stored it. `message_crc` computes `crc`."""

    time_us: bare.U64
    crc: bare.U32
    key: bytes | None
    beside: bytes | None  # headers and sequence number, as `stream_service.extensions.Extras` encodes them
    data: bytes


# type MirrorPage struct { request_id: uint  status: MirrorStatus  role: SourceRole  history: list<WireEntry>
#   first_index: uint  next_index: uint  start: uint  messages: list<StoredMessage> }
class MirrorPage(msgspec.Struct, frozen=True):
    """The answer to a MirrorPull. `first_index`, `next_index` and `history` are those of the source."""

    request_id: bare.UInt
    status: MirrorStatus
    role: SourceRole
    history: list[WireEntry]  # oldest entry first
    first_index: bare.UInt
    next_index: bare.UInt
    start: bare.UInt  # the index of the first message; without messages, where the next page begins
    messages: list[StoredMessage]


# type BeMirror struct { source: str  stream_name: str }
class BeMirror(msgspec.Struct, frozen=True):
    """The change of a stream to a mirror, which refuses pushes and follows a source: a stream of the same partition."""

    source: str  # the `host:port` of the source's node
    stream_name: str


# type BePrimary struct { fences: bool }
class BePrimary(msgspec.Struct, frozen=True):
    """The change of a mirror to a primary, which takes pushes. The history of the stream gets an entry."""

    fences: bool  # whether the former source becomes a mirror of this stream, as soon as it is reached


# type RoleChange union { BeMirror = 0 | BePrimary = 1 }
RoleChange: TypeAlias = Annotated[BeMirror | BePrimary, bare.Union({0: BeMirror, 1: BePrimary})]


# type RoleRequest struct { request_id: uint  change: optional<RoleChange>  force: bool }
class RoleRequest(msgspec.Struct, frozen=True):
    """A request to change the role of a stream, or only to ask for it.

    change: the new role; None: the role stays as it is.
    force: with BeMirror, whether messages that the source does not have are moved to another stream, so that this one
    can follow. With BePrimary, it must be true: only the mirror's own node knows whether the mirror has everything.
    """

    request_id: bare.UInt
    change: RoleChange | None
    force: bool


# type Role enum { PRIMARY MIRROR }
class Role(enum.IntEnum):
    """The role of the stream after the request."""

    PRIMARY = 0  # it takes pushes
    MIRROR = 1  # it follows a source, and refuses pushes


# type RoleResponse struct { request_id: uint  role: Role  source: str  stream_name: str  entry_id: u64
#   next_index: uint  lag: uint  can_change: bool }
class RoleResponse(msgspec.Struct, frozen=True):
    """The answer to a RoleRequest: the role after the request, which is on disk."""

    request_id: bare.UInt
    role: Role
    source: str  # empty for a primary, and so is the name
    stream_name: str
    entry_id: bare.U64  # the id of the newest entry in the history of the stream
    next_index: bare.UInt  # a new mirror has confirmed no push at this index or above
    lag: bare.UInt  # how many more messages the source had, when the mirror last heard of the source
    can_change: bool  # whether the asker has the rights, and the node is one that can have mirrors


MIRROR = Protocol("node/stream_mirror/1", MirrorPull, MirrorPage)
ROLE = Protocol("node/stream_role/1", RoleRequest, RoleResponse)


def read_role(payload: bytes) -> RoleRequest:
    """Decodes a request about a role. Raises ProtocolError, also if the name or address of a new source is invalid."""
    request = ROLE.decode_request(payload)
    if isinstance(request.change, BeMirror):
        refusal = refusal_of_name(request.change.stream_name) or refusal_of_source(request.change.source)
        if refusal is not None:
            raise ProtocolError(refusal)
    return request


def refusal_of_source(source: str) -> str | None:
    """Returns the reason why a text cannot be the address of a node with a source or a mirror; None if it can."""
    try:
        split_host_port(source)
    except InvalidAddress as error:
        return f"the source of a mirror is HOST:PORT: {error}"
    size_bytes = len(source.encode())
    return f"a HOST:PORT of {size_bytes} bytes; at most {SOURCE_BYTES_MAX}" if size_bytes > SOURCE_BYTES_MAX else None


def read_history(entries: Sequence[WireEntry]) -> History:
    """Returns a history that came from another node. Raises ProtocolError if the entries form no history."""
    if len(entries) > ENTRIES_MAX:
        raise ProtocolError(f"a history of {len(entries)} entries; at most {ENTRIES_MAX}")
    before = 0
    for entry in entries:
        if not 0 < entry.entry_id <= ENTRY_ID_MAX or not before <= entry.first_index <= INDEX_MAX:
            raise ProtocolError("this is no history of a stream")
        before = entry.first_index
    return tuple(HistoryEntry(entry.entry_id, entry.first_index) for entry in entries)


def has_parted(history: History, next_index: int, is_mirror: bool, entry_id: int, start: int) -> bool:
    """Whether a mirror has messages that its source does not have.

    history, next_index, is_mirror: the history, the end and the role of the source.
    entry_id, start: the fields of the mirror's MirrorPull.
    """
    if not entry_id:
        return False
    places = [place for place, entry in enumerate(history) if entry.entry_id == entry_id]
    if not places:
        return True
    after = history[places[0] + 1 :]
    if after and start > after[0].first_index:
        return True
    # A primary never has fewer messages than its mirror, unless it has lost some. A source that is a mirror itself may
    # be behind.
    return start > next_index and not is_mirror


_NO_KEY_NO_BESIDE = b"\0\0"
_TIME = Struct("<Q")
_HEAD = Struct("<QI")


class MirrorAnswer(NamedTuple):
    """A decoded page: the fields of MirrorPage, with the messages as the log stores them."""

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
    """Returns the CRC-32 (zlib) of u64 time_us, u32 length, key, u32 length, beside, data. The numbers are
    little-endian, and the length 2**32 - 1 stands for None. It does not depend on the id of the stream, which differs
    between two nodes."""
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
    """Returns the payload of a MirrorPage with these fields, as MIRROR does, but faster."""
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
    except (Irregular, IndexError, struct.error) as cause:
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
