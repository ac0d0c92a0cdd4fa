"""The pulls of one stream: gathered, read together on a reading thread, answered in order. It never writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import structlog

from ockam.message import Message
from ockam.protocol import error_payload
from ockam.worker import Worker
from storage.contract import Record
from storage.errors import StorageError
from storage.runner import Runner
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.operations import ReadPages
from stream_service.protocol import PULL, PullRequest, PullResponse, StreamMessage

INDEX_MAX = 2**63 - 1
"""No stored index is above this: SQLite's integers end here."""
ANSWER_OVERHEAD_BYTES = 64
"""Protocol name, sizes, request id and count of an answer, and the frame around it; about 45 at most."""
MESSAGE_OVERHEAD_BYTES = 15
"""Index and size of one message in an answer: a uint of up to 10 bytes and one of up to 5."""
HOP_OVERHEAD_BYTES = 16
"""Type and size of one address of a route, in either framing; about 6 at most."""

PULLS_WAITING_MAX = 10_000
"""With this many pulls waiting the stream takes no more messages from its mailbox, and so from its peers."""
PULLS_PER_READ_MAX = 256
"""How many pulls one read serves at most; it ends sooner when it has `pull_bytes_max` of data."""

logger = structlog.get_logger(__name__)


class StreamEnd:
    """Where a stream is stored and where it ends, as its worker knows it; shared with the worker's pull queue."""

    __slots__ = ("next_index", "stream_id")

    def __init__(self, stream_id: int, next_index: int) -> None:
        self.stream_id = stream_id
        self.next_index = next_index


class PullQueue:
    """Answers pulls on behalf of a stream worker.

    A page is bounded by what the way back can carry: the framing's frame, and how much already waits to be sent there,
    so that a consumer who asks faster than it reads gets small pages and not all memory. One message is always sent,
    unless no frame of that framing can hold it; then the answer is an error that says so. A read ends when it has the
    data of one full page, so that the answers of a thousand pulls are never in memory together.
    Invariant: at most one read is under way, and its pulls are older than all that wait.
    """

    def __init__(
        self,
        worker: Worker,
        end: StreamEnd,
        storage: Runner,
        limits: StreamLimits,
        counters: StreamCounters,
        on_room: Callable[[], None],
    ) -> None:
        """on_room: called after each read that leaves fewer pulls waiting than `full` means."""
        self._worker = worker
        self._end = end
        self._storage = storage
        self._limits = limits
        self._counters = counters
        self._on_room = on_room
        self._waiting: deque[tuple[Message, PullRequest]] = deque()
        self._reading = False

    @property
    def full(self) -> bool:
        return len(self._waiting) >= PULLS_WAITING_MAX

    def add(self, message: Message, request: PullRequest) -> None:
        """Note a pull; `answer` serves it."""
        self._waiting.append((message, request))

    def answer(self) -> None:
        """Answer all pulls noted so far: at once where they lie beyond the end, else when they have been read."""
        while self._waiting and not self._reading:
            pulls = [self._waiting.popleft() for _ in range(min(len(self._waiting), PULLS_PER_READ_MAX))]
            if all(request.index >= self._end.next_index or not request.limit for _, request in pulls):
                self._send(pulls, [[]] * len(pulls))
            else:
                self._read(pulls)

    def _read(self, pulls: Sequence[tuple[Message, PullRequest]]) -> None:
        self._reading = True
        asked = [self._bounds(message, request) for message, request in pulls]
        answered = self._worker.context.guard(lambda read: self._answered(read, pulls))
        bytes_max = self._limits.pull_bytes_max
        self._storage.submit_read(ReadPages(self._end.stream_id, asked, bytes_max, on_done=answered))

    def _answered(self, read: ReadPages, pulls: Sequence[tuple[Message, PullRequest]]) -> None:
        """Send what was read; the pulls that it did not come to are again the oldest that wait."""
        self._reading = False
        pages = read.pages if read.error is None else [read.error] * len(pulls)
        self._waiting.extendleft(reversed(pulls[len(pages) :]))
        self._send(pulls[: len(pages)], pages)
        self.answer()
        if not self.full:
            self._on_room()

    def _bounds(self, message: Message, request: PullRequest) -> tuple[int, int, int, int]:
        """Start, limit, bytes of data, and bytes of the first message, of one page."""
        limit = min(request.limit, self._limits.pull_messages_max)
        first_bytes_max = max(0, _payload_bytes_max(message) - ANSWER_OVERHEAD_BYTES - MESSAGE_OVERHEAD_BYTES)
        room_bytes = max(0, self._limits.pull_bytes_max - message.origin.backlog_bytes())
        return min(request.index, INDEX_MAX), limit, min(room_bytes, first_bytes_max), first_bytes_max

    def _send(self, pulls: Sequence[tuple[Message, PullRequest]], pages: Sequence[list[Record] | StorageError]) -> None:
        route = (self._worker.context.address,)
        self._worker.context.send_run(
            Message(message.return_route, route, self._payload(message, request, page))
            for (message, request), page in zip(pulls, pages, strict=True)
        )

    def _payload(self, message: Message, request: PullRequest, page: list[Record] | StorageError) -> bytes:
        if isinstance(page, StorageError):
            self._counters.pulls_failed += 1
            logger.error("pull_failed", address=str(self._worker.context.address), reason=str(page))
            return error_payload(f"the stream cannot be read at index {request.index}: {page}")
        _fit(page, _payload_bytes_max(message) - ANSWER_OVERHEAD_BYTES)
        messages = [StreamMessage(record[0], record[1]) for record in page]
        return PULL.encode_response(PullResponse(request.request_id, messages))


def _payload_bytes_max(message: Message) -> int:
    """The largest payload that an answer along this message's return route can have."""
    hops = message.return_route
    return message.origin.frame_bytes_max - sum(len(hop.value) + HOP_OVERHEAD_BYTES for hop in hops) - 64


def _fit(page: list[Record], bytes_max: int) -> None:
    """Take messages off the end of a page until it fits, whatever their indexes and sizes cost to write."""
    size_bytes = sum(len(record[1]) for record in page) + MESSAGE_OVERHEAD_BYTES * len(page)
    while size_bytes > bytes_max and len(page) > 1:
        size_bytes -= len(page.pop()[1]) + MESSAGE_OVERHEAD_BYTES
