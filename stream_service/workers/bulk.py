"""BulkReads: serves the bulk reads of one stream, one page at a time.

Another process reads the pages (`stream_storage.sqlite.bulk.arrow_thread`), so they delay neither pushes nor pulls.
"""

from __future__ import annotations

import structlog

from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.protocol import ProtocolError, error_payload
from stream_service.bulk import BULK, BulkPage, BulkRead, page_payload
from stream_service.workers.pull_pages import payload_bytes_max
from stream_service.workers.pulls import BACKLOG_BYTES_MAX
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_services import StreamServices
from stream_storage.sqlite.bulk.arrow_thread import ArrowRead, ArrowUnavailable
from stream_storage.sqlite.bulk.child_main import BESIDE, CHECKSUM, DATA

READS_WAITING_MAX = 1_000
"""The largest number of bulk reads of one stream that may wait. A client sends only a few at a time."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
"""The largest size of a page in bytes, whatever is asked for. Several copies of it are in memory for a moment."""
PAGE_OVERHEAD_BYTES = 8 * 1024
"""The most bytes of a page beside its columns: envelope, bounds and Arrow schema. About 2 KiB are needed."""

BACKLOG_RETRY_S = 0.02
"""The delay before looking again whether a slow peer has taken its pages, in seconds."""

logger = structlog.get_logger(__name__)


class BulkReads:
    """The bulk reads of one stream. Each peer is answered in the order of its requests. Invariant: at most one read is
    under way."""

    def __init__(self, worker: Worker, bounds: StreamBounds, services: StreamServices) -> None:
        self._worker = worker
        self._bounds = bounds
        self._services = services
        self._waiting: list[tuple[Message, BulkRead]] = []
        self._reading = False
        self._resting = False

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._reading

    def receive(self, message: Message) -> None:
        """Takes a request, which is answered later. Raises ProtocolError if it is not valid, or too many wait."""
        request = BULK.decode_request(message.payload)
        if request.end <= request.start or request.end > self._bounds.next_index:
            raise ProtocolError(
                f"a range from {request.start} to {request.end}; this stream ends at {self._bounds.next_index}"
            )
        if len(self._waiting) >= READS_WAITING_MAX:
            raise ProtocolError(f"{READS_WAITING_MAX} bulk reads of this stream wait already")
        self._waiting.append((message, request))
        self._next()

    def _next(self) -> None:
        """Begins the oldest waiting read of a peer that has taken its earlier pages, unless a read is under way."""
        if self._reading or self._resting or not self._waiting:
            return
        behind = (message.origin.is_behind(BACKLOG_BYTES_MAX) for message, _ in self._waiting)
        # The first request in the queue whose peer has taken its pages is next, so a slow peer delays no other.
        position = next((position for position, is_behind in enumerate(behind) if not is_behind), None)
        # All peers are slow. This object is not notified when a peer has taken its pages, so a timer checks again.
        if position is None:
            self._resting = True
            self._worker.context.call_later(BACKLOG_RETRY_S, self._rested)
            return
        message, request = self._waiting[position]
        del self._waiting[position]
        self._reading = True
        # The answer must fit one frame of the peer's connection. A page has at least one message.
        room_bytes = payload_bytes_max(message) - PAGE_OVERHEAD_BYTES
        bytes_max = max(1, min(request.size_bytes, PAGE_BYTES_MAX, room_bytes))
        read = self._worker.context.guard(lambda done: self._read(done, message, request))
        columns = DATA * request.data | BESIDE * request.beside | CHECKSUM * request.checksum
        self._services.storage.submit_bulk(
            ArrowRead(self._bounds.stream_id, request.start, request.end, bytes_max, read, columns=columns)
        )

    def _rested(self) -> None:
        self._resting = False
        self._next()

    def _read(self, done: ArrowRead, message: Message, request: BulkRead) -> None:
        self._reading = False
        self._worker.reply(message, self._payload(done, message, request))
        self._next()

    def _payload(self, done: ArrowRead, message: Message, request: BulkRead) -> bytes:
        if done.answer is None:
            reason = str(done.error)
            if not isinstance(done.error, ArrowUnavailable):
                self._services.counters.pulls_failed += 1
                logger.error("bulk_read_failed", address=str(self._worker.context.address), reason=reason)
            return error_payload(f"the stream cannot be read in bulk at index {request.start}: {reason}")
        page = done.answer
        bounds = (page.created_us, page.first_index, page.next_index, page.start, page.rows)
        payload = page_payload(BulkPage(request.request_id, self._bounds.stream_id, *bounds, b""), page.body)
        if len(payload) > payload_bytes_max(message):
            reason = f"the message at index {page.start} needs {len(payload)} bytes, more than this framing carries"
            return error_payload(f"{reason}; pull it")
        self._services.counters.pages += 1
        self._services.counters.pulled += page.rows
        self._services.counters.pulled_bytes += len(payload)
        return payload
