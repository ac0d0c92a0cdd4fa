"""The index worker: keeps, per consumer, stream and partition, the highest index ever saved, and tells it.

What cannot be read gets no answer, as at the real service; it is counted. A save is never answered either. A get is
answered only when the record that it may create is on disk. It has no link to the streams: a name need not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog

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
from index_service.storage import INDEX_MAX, IndexRequests, Key
from ockam.address import local
from ockam.message import Message, reply_to
from ockam.node import Node
from ockam.protocol import ProtocolError
from ockam.worker import Worker
from storage.runner import Runner

SERVICE_ADDRESSES = ("stream_index_service", "stream_index", "stream_kafka_index")
"""The specification's address, and those under which the real clients look for the service."""
TEXT_BYTES_MAX = 1024
"""Of a client id and of a stream name, in UTF-8."""
PARTITION_MAX = 2**31 - 1

logger = structlog.get_logger(__name__)


class IndexStatistics(msgspec.Struct, frozen=True):
    """Counters since the start. ignored: requests that could not be read or kept; failed: lost to a storage error."""

    gets: int
    saves: int
    ignored: int
    failed: int


class IndexService:
    """What the index worker needs and what it counts; outlives the worker's crashes."""

    def __init__(self, storage: Runner, now_us: Callable[[], int]) -> None:
        self.storage = storage
        self.now_us = now_us
        self.gets = self.saves = self.ignored = self.failed = 0

    def register(self, node: Node, addresses: Sequence[str] = SERVICE_ADDRESSES) -> None:
        """Start the worker under its addresses."""
        node.register([local(address) for address in addresses], lambda: IndexWorker(self))

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(self.gets, self.saves, self.ignored, self.failed)


class IndexWorker(Worker):
    """Hands each run of requests to the writing thread as one operation, which keeps their order."""

    def __init__(self, service: IndexService) -> None:
        self._service = service

    def receive(self, run: Sequence[Message]) -> None:
        asked: list[tuple[Message, Request]] = []
        requests: list[tuple[Key, int | None]] = []
        for message in run:
            try:
                request = decode_request(message.payload)
                requests.append(_checked(request))
            except ProtocolError as error:
                self._service.ignored += 1
                logger.info("index_request_ignored", peer=message.origin.peer, reason=str(error))
            else:
                asked.append((message, request))
        if requests:
            done = self.context.guard(lambda operation: self._done(operation, asked))
            self._service.storage.submit_write(IndexRequests(requests, self._service.now_us(), on_done=done))

    def _done(self, operation: IndexRequests, asked: Sequence[tuple[Message, Request]]) -> None:
        if operation.error is not None:
            self._service.failed += len(asked)
            logger.error("index_requests_failed", requests=len(asked), reason=str(operation.error))
            return
        answers = []
        for (message, request), index in zip(asked, operation.indexes, strict=True):
            if index is None:
                self._service.saves += 1
            else:
                self._service.gets += 1
                answers.append(reply_to(message, message.onward_route[0], _answer(message, request, index)))
        self.context.send_run(answers)


def _checked(request: Request) -> tuple[Key, int | None]:
    """Key and index (None for a get) of a request whose values we can keep. Raises ProtocolError."""
    for text in (request.client_id, request.stream_name):
        if len(text.encode()) > TEXT_BYTES_MAX:
            raise ProtocolError(f"a client id or stream name above {TEXT_BYTES_MAX} bytes")
    partition = 0 if isinstance(request, GetIndex | SaveIndex) else request.partition
    if partition > PARTITION_MAX:
        raise ProtocolError(f"partition {partition}; at most {PARTITION_MAX}")
    index = request.index if isinstance(request, SaveIndex | SavePartitionIndex) else None
    if index is not None and index > INDEX_MAX:
        raise ProtocolError(f"index {index}; no stream goes beyond {INDEX_MAX}")
    return (request.client_id, request.stream_name, partition), index


def _answer(message: Message, request: Request, index: int) -> bytes:
    """The answer under the name and in the form that was asked."""
    if isinstance(request, GetIndex | SaveIndex):
        return INDEX.encode_response(Index(request.client_id, request.stream_name, index))
    response = PartitionIndex(request.client_id, request.stream_name, request.partition, index)
    under = INDEX_PARTITIONED if INDEX_PARTITIONED.is_in(message.payload) else PARTITIONED_BODY
    return under.encode_response(response)
