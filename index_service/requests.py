"""Decodes and checks the requests to the index service, and encodes the answers. It reads no table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import msgspec

from index_service.accesses import Access, PositionMark, PositionRow
from index_service.extensions import (
    FENCED_SAVE,
    LEASE,
    LOAD_PARTITIONS_MAX,
    LOAD_POSITIONS,
    MARKED_POSITIONS,
    MARKED_SAVE,
    POSITIONS,
    SET_POSITION,
    WAITING_LEASE,
    FencedSave,
    LeaseRequest,
    LoadRequest,
    MarkedPosition,
    MarkedPositions,
    MarkedResponse,
    MarkedSave,
    PositionsRequest,
    PositionsResponse,
    SavedPosition,
    SaveResponse,
    SaveStatus,
    SetRequest,
)
from index_service.fences import FENCES, FencesRequest
from index_service.limits import CREATED_US_MAX, INDEX_MAX, PAGE_BYTES_MAX, PARTITION_MAX, TEXT_BYTES_MAX
from index_service.protocol import (
    INDEX,
    INDEX_PARTITIONED,
    PARTITIONED_BODY,
    GetIndex,
    Index,
    PartitionIndex,
    Request,
    SaveIndex,
    SavePartitionIndex,
    decode_request,
)
from ockam.actors.message import Message
from ockam.protocol import ProtocolError, find_name

Extension: TypeAlias = FencedSave | LoadRequest | PositionsRequest | SetRequest | LeaseRequest | FencesRequest
EXTENSIONS_PREFIX = "node/"
_EXTENSIONS = (
    *(MARKED_SAVE, FENCED_SAVE, LOAD_POSITIONS, MARKED_POSITIONS, POSITIONS, SET_POSITION),
    *(WAITING_LEASE, LEASE, FENCES),
)
ROW_OVERHEAD_BYTES = 80
"""The space that a listed position takes in addition to its texts, in bytes: lengths, numbers and times."""
HOP_OVERHEAD_BYTES = 16
"""The space in a frame that an address of a route takes in addition to its text, in bytes."""

Row = TypeVar("Row", PositionRow, SavedPosition)


class BeyondLimit(ProtocolError):
    """Error: a request can be decoded, but a number or text in it is larger than any that this service keeps."""


def is_extension(payload: bytes) -> bool:
    """Whether a payload has the name of one of our own protocols, known or not. Its sender expects an `error`."""
    name = find_name(payload)
    return name is not None and name.startswith(EXTENSIONS_PREFIX)


def read_plain(payload: bytes) -> tuple[Request, Access]:
    """Decodes a request of the specification's protocols. Returns the request, and the get or save for which it asks.
    Raises ProtocolError if the request is not valid, and BeyondLimit if it exceeds a limit."""
    request = decode_request(payload)
    partition = 0 if isinstance(request, GetIndex | SaveIndex) else request.partition
    index = request.index if isinstance(request, SaveIndex | SavePartitionIndex) else None
    _check_key(request.client_id, request.stream_name, partition)
    _check_index(index)
    return request, Access((request.client_id, request.stream_name, partition), index)


def read_extension(payload: bytes, lease_partitions_max: int) -> Extension:
    """Decodes a request of our own protocols. Raises ProtocolError if it is not valid or exceeds a limit, such as
    `lease_partitions_max` partitions in a lease request."""
    for protocol in _EXTENSIONS:
        if protocol.is_in(payload):
            request: Extension = protocol.decode_request(payload)
            break
    else:
        raise ProtocolError(f"{find_name(payload)} is not served here")
    # Keys and numbers beyond the columns of the tables are refused here, before they reach the database.
    if isinstance(request, FencedSave):
        _check_key(request.client_id, request.stream_name, request.partition)
        _check_index(request.index)
        if isinstance(request, MarkedSave) and request.created_us > CREATED_US_MAX:
            raise ProtocolError(f"a stream made at {request.created_us}; at most {CREATED_US_MAX}")
    elif isinstance(request, LoadRequest):
        if len(request.partitions) > LOAD_PARTITIONS_MAX:
            raise ProtocolError(f"{len(request.partitions)} partitions; at most {LOAD_PARTITIONS_MAX}")
        for partition in request.partitions or [0]:
            _check_key(request.client_id, request.stream_name, partition)
    elif isinstance(request, SetRequest):
        _check_key(request.key.client_id, request.key.stream_name, request.key.partition)
        _check_index(request.index)
    elif isinstance(request, PositionsRequest | FencesRequest):
        client_id = request.client_id if isinstance(request, PositionsRequest) else None
        _check_texts(client_id or "", request.stream_name or "")
        if request.after is not None:
            _check_key(request.after.client_id, request.after.stream_name, request.after.partition)
    else:
        _check_lease(request, lease_partitions_max)
    return request


def access_of(request: FencedSave) -> Access:
    mark = PositionMark(request.created_us, request.generation) if isinstance(request, MarkedSave) else None
    key = (request.client_id, request.stream_name, request.partition)
    return Access(key, request.index, True, request.fence, mark)


def _check_lease(request: LeaseRequest, partitions_max: int) -> None:
    _check_texts(request.client_id, request.stream_name, request.member_id)
    if not request.member_id:
        raise ProtocolError("a member id is empty")
    if not 1 <= request.partitions <= partitions_max:
        raise ProtocolError(f"{request.partitions} partitions; 1 to {partitions_max} can be shared")
    named = {lease.partition for lease in request.holding}
    if len(named) != len(request.holding):
        raise ProtocolError("a partition is held twice")
    if max(named, default=0) >= request.partitions:
        raise ProtocolError(f"partition {max(named)} is held, of {request.partitions}")


def _check_key(client_id: str, stream_name: str, partition: int) -> None:
    _check_texts(client_id, stream_name)
    if partition > PARTITION_MAX:
        raise BeyondLimit(f"partition {partition}; at most {PARTITION_MAX}")


def _check_texts(*texts: str) -> None:
    for text in texts:
        if len(text.encode()) > TEXT_BYTES_MAX:
            raise BeyondLimit(f"a client id, stream name or member id above {TEXT_BYTES_MAX} bytes")


def _check_index(index: int | None) -> None:
    if index is not None and index > INDEX_MAX:
        raise BeyondLimit(f"index {index}; no stream goes beyond {INDEX_MAX}")


def list_payload(message: Message, request_id: int, positions: Sequence[SavedPosition], more: bool) -> bytes:
    if MARKED_POSITIONS.is_in(message.payload):
        marked = [each for each in positions if isinstance(each, MarkedPosition)]
        return MARKED_POSITIONS.encode_response(MarkedPositions(request_id, marked, more))
    plain = [SavedPosition(*msgspec.structs.astuple(each)[:6]) for each in positions]
    return POSITIONS.encode_response(PositionsResponse(request_id, plain, more))


def access_payload(
    message: Message, request: Request | FencedSave, index: int, status: SaveStatus, generation: int
) -> bytes:
    if isinstance(request, MarkedSave):
        return MARKED_SAVE.encode_response(MarkedResponse(request.request_id, status, index, generation))
    if isinstance(request, FencedSave):
        return FENCED_SAVE.encode_response(SaveResponse(request.request_id, status, index))
    if isinstance(request, GetIndex | SaveIndex):
        return INDEX.encode_response(Index(request.client_id, request.stream_name, index))
    response = PartitionIndex(request.client_id, request.stream_name, request.partition, index)
    under = INDEX_PARTITIONED if INDEX_PARTITIONED.is_in(message.payload) else PARTITIONED_BODY
    return under.encode_response(response)


def page_bytes_max(message: Message) -> int:
    """Returns the size of the largest page, in bytes, that fits into one frame to the sender of this message."""
    hops = sum(len(hop.value) + HOP_OVERHEAD_BYTES for hop in (*message.return_route, message.onward_route[0]))
    return min(PAGE_BYTES_MAX, message.origin.frame_bytes_max - hops - ROW_OVERHEAD_BYTES)


def fitting(rows: list[Row], bytes_max: int) -> list[Row]:
    """Returns the first rows that fit into a page of `bytes_max` bytes, but at least one. A row has 3 KiB at most."""
    size_bytes = 0
    for count, row in enumerate(rows):
        texts = (row.client_id, row.stream_name, row.holder or "")
        size_bytes += ROW_OVERHEAD_BYTES + sum(len(text.encode()) for text in texts)
        if size_bytes > bytes_max and count:
            return rows[:count]
    return rows
