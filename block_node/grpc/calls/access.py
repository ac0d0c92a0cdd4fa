"""`getBlock`: sends one stored block, part by part, so that a block of any size is sent in bounded memory."""

from __future__ import annotations

import structlog

from block_node.grpc.http2.connection import GrpcCall, SingleRequest, guarded
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import NO_BLOCK, block_prefix, read_message, write_message
from block_node.persist.errors import BlockNumberUnknown
from block_node.persist.operations import ReadBlocks
from block_node.persist.store import ChainStore
from block_node.protocol_reading import GetStatus
from block_node.read.feed import READ_BYTES
from stream_storage.errors import DatabaseCorrupt, StorageClosed

logger = structlog.get_logger(__name__)


class AccessCall(SingleRequest):
    """One request for a block.

    Invariant: at most one read is in progress. `_part` is the next part of block `_number` to be read.
    """

    def __init__(self, call: GrpcCall, store: ChainStore, counted: dict[str, int]) -> None:
        self._call = call
        self._store = store
        self._counted = counted
        self._number: int | None = None
        self._part = 0
        self._is_over = self._is_reading = False
        self._has_read = guarded(call, self._note_read, lambda: self.ended(""))

    def answer(self, message: bytes) -> None:
        self._counted["get_block_requests"] += 1
        request = read_message("BlockRequest", message)
        available, asked = self._store.available, request.get("block_number")
        if asked is None and not request.get("retrieve_latest"):
            self._answer(GetStatus.INVALID_REQUEST, "ask for a block_number, or retrieve_latest")
            return
        number = available.last if asked is None or asked == NO_BLOCK else asked
        if number is None or number not in available:
            has = "no blocks" if available.first is None else f"blocks {available.first} to {available.last}"
            self._answer(GetStatus.NOT_AVAILABLE, f"this block is not here; the node has {has}")
        else:
            self._number = number
            self._read()

    def room(self) -> None:
        if not self._is_reading and not self._is_over:
            self._read()

    def ended(self, reason: str) -> None:
        self._is_over = True

    def _read(self) -> None:
        assert self._number is not None, "a block was asked for"
        self._is_reading = True
        try:
            self._store.read(self._number, self._part, READ_BYTES, self._has_read)
        except StorageClosed:
            self._is_over = True
            self._call.abort(GrpcStatus.UNAVAILABLE, "the node stops; try again")

    def _note_read(self, operation: ReadBlocks) -> None:
        self._is_reading = False
        if self._is_over:
            return
        error = operation.error
        if error is not None:
            self._refuse(error)
            return
        found = operation.found[0]
        # The place of the block names the size of the whole message, so the message begins before the rest is read.
        if self._part == 0:
            prefix = block_prefix(GetStatus.SUCCESS, found.place.size_bytes)
            if found.is_last:
                has_room = self._call.send(prefix, *found.parts)
            else:
                has_room = self._call.begin_message(len(prefix) + found.place.size_bytes, prefix, *found.parts)
        else:
            has_room = self._call.send_part(*found.parts)
        self._part = found.next_part
        if found.is_last:
            self._is_over = True
            self._counted["get_block_requests_success"] += 1
            self._call.finish()
        elif has_room:
            self._read()

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, BlockNumberUnknown):
            logger.error("block_not_read", block=self._number, reason=str(error))
        if self._part:
            # A part of the message was sent, so the status in the message cannot change.
            self._is_over = True
            self._call.abort(GrpcStatus.DATA_LOSS, f"block {self._number} cannot be read: {error}")
        elif isinstance(error, BlockNumberUnknown):
            self._answer(GetStatus.NOT_AVAILABLE, str(error))
        else:
            self._answer(GetStatus.NOT_FOUND if isinstance(error, DatabaseCorrupt) else GetStatus.ERROR, str(error))

    def _answer(self, status: GetStatus, reason: str) -> None:
        self._is_over = True
        self._counted["get_block_requests_not_available"] += status is GetStatus.NOT_AVAILABLE
        self._counted["get_block_requests_not_found"] += status is GetStatus.NOT_FOUND
        self._call.send(write_message("BlockResponse", {"status": int(status)}))
        # The message has no field for the reason.
        self._call.finish(GrpcStatus.OK, reason)
