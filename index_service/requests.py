"""Decodes the requests to the index service, and checks their keys and limits. It encodes no answers."""

from __future__ import annotations

from typing import TypeAlias

from index_service.accesses import Access, PositionMark
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
    MarkedSave,
    PositionsRequest,
    SetRequest,
)
from index_service.fences import FENCES, FencesRequest
from index_service.limits import CREATED_US_MAX, INDEX_MAX, PARTITION_MAX, TEXT_BYTES_MAX
from index_service.protocol import GetIndex, Request, SaveIndex, SavePartitionIndex, decode_request
from ockam.protocol import ProtocolError, find_name

Extension: TypeAlias = FencedSave | LoadRequest | PositionsRequest | SetRequest | LeaseRequest | FencesRequest
EXTENSIONS_PREFIX = "node/"
_EXTENSIONS = (
    *(MARKED_SAVE, FENCED_SAVE, LOAD_POSITIONS, MARKED_POSITIONS, POSITIONS, SET_POSITION),
    *(WAITING_LEASE, LEASE, FENCES),
)


class BeyondLimit(ProtocolError):
    """Error: a request can be decoded, but a number or text in it is larger than any that this service keeps."""


def is_extension(payload: bytes) -> bool:
    """Whether a payload has the name of one of our own protocols, known or not. Its sender expects an `error`."""
    name = find_name(payload)
    return name is not None and name.startswith(EXTENSIONS_PREFIX)


def read_plain(payload: bytes) -> tuple[Request, Access]:
    """Decodes a request of the specification's protocols. Returns it, and the get or save of a position that it
    asks for. Raises ProtocolError if the request is not valid, and BeyondLimit if it exceeds a limit."""
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
    elif isinstance(request, PositionsRequest):
        _check_texts(request.client_id or "", request.stream_name or "")
        if request.after is not None:
            _check_key(request.after.client_id, request.after.stream_name, request.after.partition)
    elif isinstance(request, FencesRequest):
        _check_texts(request.stream_name)
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
