"""Encodes the answers of the index service, in the protocol and the form of each request. It reads no table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from index_service.extensions import (
    FENCED_SAVE,
    MARKED_POSITIONS,
    MARKED_SAVE,
    POSITIONS,
    FencedSave,
    MarkedPosition,
    MarkedPositions,
    MarkedResponse,
    MarkedSave,
    PositionsRequest,
    PositionsResponse,
    SavedPosition,
    SaveResponse,
    SaveStatus,
)
from index_service.limits import PAGE_BYTES_MAX
from index_service.listing import PositionRow
from index_service.protocol import (
    INDEX,
    INDEX_PARTITIONED,
    PARTITIONED_BODY,
    GetIndex,
    Index,
    PartitionIndex,
    Request,
    SaveIndex,
)
from ockam.actors.message import Message
from ockam.protocol import Protocol

ROW_OVERHEAD_BYTES = 80
"""The space that a listed position takes in addition to its texts, in bytes: lengths, numbers and times."""
HOP_OVERHEAD_BYTES = 16
"""The space in a frame that an address of a route takes in addition to its text, in bytes."""

Row = TypeVar("Row", PositionRow, SavedPosition)


def protocol_of_list(message: Message) -> Protocol[PositionsRequest, Any]:
    return MARKED_POSITIONS if MARKED_POSITIONS.is_in(message.payload) else POSITIONS


def list_payload(message: Message, request_id: int, positions: Sequence[SavedPosition], more: bool) -> bytes:
    if MARKED_POSITIONS.is_in(message.payload):
        marked = [each for each in positions if isinstance(each, MarkedPosition)]
        return MARKED_POSITIONS.encode_response(MarkedPositions(request_id, marked, more))
    plain = [
        SavedPosition(each.client_id, each.stream_name, each.partition, each.index, each.saved_us, each.holder)
        for each in positions
    ]
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
