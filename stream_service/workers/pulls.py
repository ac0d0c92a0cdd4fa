"""The pulls of one stream: gathered, read together on a reading thread, answered in order. It never writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import structlog
import trio

from ockam.message import Message, reply_to
from ockam.protocol import error_payload
from ockam.worker import Worker
from storage.contract import Record
from storage.errors import StorageError
from stream_service.extensions import RICH_PULL, FromEnd, FromIndex, FromTime, RichMessage, RichPage, RichPull
from stream_service.operations import Page, ReadPages, size_of
from stream_service.protocol import PULL, PullRequest, PullResponse, StreamMessage
from stream_service.stored import decode_beside
from stream_service.workers.held_back import HeldPulls
from stream_service.workers.needs import StreamServices
from stream_service.workers.parked import ParkedPulls
from stream_service.workers.tail_machine import Tail

ANSWER_OVERHEAD_BYTES = 128
"""Protocol name, sizes, request id, bounds and count of an answer, and the frame around it; about 80 at most."""
MESSAGE_OVERHEAD_BYTES = 30
"""Index, time and sizes of one message in an answer: 24 at most, beside its data, key and headers."""
HOP_OVERHEAD_BYTES = 16
"""Type and size of one address of a route, in either framing; about 6 at most."""
PULLS_WAITING_MAX = 10_000
"""With this many pulls waiting the stream takes no more messages from its mailbox, and so from its peers."""
PULLS_PER_READ_MAX = 256
"""How many pulls one read serves at most; it ends sooner when it has `pull_bytes_max` of data."""
PARKED_MAX = 10_000
"""How many pulls of one stream may wait for a message; more are answered at once."""

logger = structlog.get_logger(__name__)


class StreamEnd:
    """Where a stream is stored and where it begins and ends, as its worker knows it; shared with its pull queue."""

    __slots__ = ("first_index", "next_index", "stream_id")

    def __init__(self, stream_id: int, first_index: int, next_index: int) -> None:
        self.stream_id = stream_id
        self.first_index = first_index
        self.next_index = next_index


class Pull:
    """One pull that has not been answered. deadline_s: until when it may wait for a message (trio's clock)."""

    __slots__ = ("deadline_s", "message", "page", "request")

    def __init__(self, message: Message, request: PullRequest | RichPull, page: Page, deadline_s: float) -> None:
        self.message = message
        self.request = request
        self.page = page
        self.deadline_s = deadline_s


class PullQueue:
    """Answers pulls on behalf of a stream worker.

    A page is bounded by what the way back can carry: the framing's frame, and how much already waits to be sent there,
    so that a consumer who asks faster than it reads waits and does not get all memory. One message is always sent,
    unless no frame of that framing can hold it: a plain pull passes over such messages; a rich pull, and one whose
    return route fills the frame, is answered with an error that says so. A read ends when it has the data of one full
    page, so that the answers of a thousand pulls are never in memory together. A rich pull that finds
    nothing may be parked until there is a message or its time is up. What the tail has is not read at all.
    Invariant: at most one read is under way, and its pulls are older than all that wait; none begins while pushes that
    came before a waiting pull are not on disk (`hold`).
    """

    def __init__(
        self, worker: Worker, end: StreamEnd, tail: Tail, services: StreamServices, on_room: Callable[[], None]
    ) -> None:
        """on_room: called after each read that leaves fewer pulls waiting than `full` means."""
        self._worker = worker
        self._end = end
        self._tail = tail
        self._storage = services.storage
        self._limits = services.limits
        self._counters = services.counters
        self._on_room = on_room
        self._waiting: deque[Pull] = deque()
        self._parked = ParkedPulls(worker, self._give_up)
        self._held_back = HeldPulls(self._caught_up)
        self._takes_held = False
        self._closed = False
        self._reading = False
        self._resting = False
        self._on_hold = False
        self._told_index = 0

    @property
    def full(self) -> bool:
        # Not those held back: else whoever takes no answers would keep all others from the stream.
        return len(self._waiting) >= PULLS_WAITING_MAX

    def add(self, message: Message, request: PullRequest) -> None:
        """Note a pull; `answer` serves it."""
        limit = min(request.limit, self._limits.pull_messages_max)
        self._waiting.append(Pull(message, request, Page(FromIndex(request.index), limit, rich=False), 0.0))

    def add_rich(self, message: Message, request: RichPull) -> None:
        """Note a rich pull; `answer` serves it."""
        limit = min(request.limit, self._limits.rich_pull_messages_max)
        wait_s = min(request.wait_ms / 1000, self._limits.pull_wait_s_max)
        deadline_s = trio.current_time() + wait_s if wait_s and limit else 0.0
        self._waiting.append(Pull(message, request, Page(request.start, limit, rich=True), deadline_s))

    def wake(self) -> None:
        """The stream has more messages: what is parked can be answered."""
        self._waiting += self._parked.take_all()

    def refuse(self, reason: str) -> None:
        """Answer all pulls that wait with `error`: there will be nothing to read."""
        waiting = [*self._waiting, *self._parked.take_all(), *self._held_back.take_all()]
        self._waiting.clear()
        address = self._worker.context.address
        self._worker.context.send_run([reply_to(pull.message, address, error_payload(reason)) for pull in waiting])

    def hold(self) -> None:
        """Pushes are on their way to the disk: answer nothing until `answer`, since pulls may have come after them.

        Answers of an earlier read that come meanwhile are still sent.
        """
        self._on_hold = True

    def answer(self) -> None:
        """All pushes so far are on disk or refused: answer all pulls noted so far, and end `hold`."""
        self._on_hold = False
        self._answer()

    def _answer(self) -> None:
        """Answer pulls: at once where they lie beyond the end or in the tail, else when they have been read."""
        if self._closed:
            # A read that was under way when the worker stopped has ended: nobody would take what is begun now.
            return
        while (self._waiting or self._held_back.is_ready) and not (self._reading or self._resting or self._on_hold):
            pulls = self._take()
            known = self._find_known(pulls)
            if known:
                self._put_back(pulls[known:])
                self._answer_or_park(pulls[:known])
            elif pulls:
                self._read(pulls)

    def _find_known(self, pulls: Sequence[Pull]) -> int:
        """How many of the oldest need no read; their pages are found. Fewer, where they have a page's data together:
        then the rest waits until that is on its way, as after a read."""
        found_bytes = 0
        for known, pull in enumerate(pulls):
            if known and found_bytes >= self._limits.pull_bytes_max:
                self._resting = True
                self._worker.context.call_later(0.0, self._rested)
                return known
            if not self._finds_nothing(pull.page):
                found = self._find_in_tail(pull)
                if not found:
                    return known
                pull.page.found = found
                found_bytes += sum(len(record[1]) for record in found)
        return len(pulls)

    def _find_in_tail(self, pull: Pull) -> list[Record] | None:
        """What a read would find, where that is in the tail; None or nothing where it is to be read."""
        page, end = pull.page, self._end
        if self._tail.next_index != end.next_index or isinstance(page.start, FromTime):
            return None
        if isinstance(page.start, FromIndex):
            page.index = page.start.index
        else:
            page.index = max(end.first_index, end.next_index - page.start.messages)
        self._bound(pull)
        first = max(page.index, end.first_index)
        found = self._tail.find_page(first, page.limit, page.bytes_max, page.first_bytes_max)
        if found and page.rich and size_of(found[0]) > page.first_bytes_max:
            return None
        return found

    def _rested(self) -> None:
        self._resting = False
        self._answer()
        if not self.full:
            self._on_room()

    def _take(self) -> list[Pull]:
        """The oldest pulls, and those held back whose peers have caught up, in turn. Pulls of peers that have not taken
        their earlier answers are held back instead."""
        pulls: list[Pull] = []
        while len(pulls) < PULLS_PER_READ_MAX:
            # A read ends when it has one full page, so it must not be always the same side that is first.
            self._takes_held = not self._takes_held
            pull = self._held_back.take() if self._takes_held else None
            if pull is None:
                pull = self._take_waiting() or self._held_back.take()
            if pull is None:
                break
            pulls.append(pull)
        return pulls

    def _take_waiting(self) -> Pull | None:
        while self._waiting:
            pull = self._waiting.popleft()
            if not self._held_back.holds(pull):
                return pull
            self._held_back.hold(pull)
        return None

    def _put_back(self, pulls: Sequence[Pull]) -> None:
        """These were taken and found no room: they are again the oldest, each before the other pulls of its peer."""
        for pull in reversed(pulls):
            if not self._held_back.put_back(pull):
                self._waiting.appendleft(pull)

    def _caught_up(self) -> None:
        """A peer has taken its answers. The connection that tells so is amid a send: answer in the next turn."""
        self._worker.context.call_later(0.0, self._wake_held)

    def _wake_held(self) -> None:
        self._answer()
        if not self.full:
            self._on_room()

    def _read(self, pulls: Sequence[Pull]) -> None:
        self._reading = True
        for pull in pulls:
            self._bound(pull)
        answered = self._worker.context.guard(lambda read: self._answered(read, pulls))
        pages, bytes_max = [pull.page for pull in pulls], self._limits.pull_bytes_max
        self._storage.submit_read(ReadPages(self._end.stream_id, pages, bytes_max, on_done=answered))

    def _answered(self, read: ReadPages, pulls: Sequence[Pull]) -> None:
        """Send what was read; the pulls that it did not come to are again the oldest that wait."""
        self._reading = False
        count = read.read
        if read.error is not None:
            count = len(pulls)
            for pull in pulls:
                pull.page.found = read.error
        self._put_back(pulls[count:])
        self._answer_or_park(pulls[:count])
        self._answer()
        if not self.full:
            self._on_room()

    def _bound(self, pull: Pull) -> None:
        """What the page may hold, as things are with the way back right now."""
        page, message = pull.page, pull.message
        page.first_bytes_max = max(0, payload_bytes_max(message) - ANSWER_OVERHEAD_BYTES - MESSAGE_OVERHEAD_BYTES)
        # A consumer of the plain protocol can do nothing about a large message, and about a long return route it can.
        page.passes_over = not page.rich and 2 * page.first_bytes_max > message.origin.frame_bytes_max
        room_bytes = max(0, self._limits.pull_bytes_max - message.origin.backlog_bytes())
        page.bytes_max = min(room_bytes, page.first_bytes_max)

    def _finds_nothing(self, page: Page) -> bool:
        """Whether a page is known to be empty without reading; then its index is set."""
        if isinstance(page.start, FromIndex):
            page.index = page.start.index
        elif isinstance(page.start, FromEnd) and not page.start.messages:
            page.index = self._end.next_index
        elif page.limit:
            return False
        return not page.limit or page.index >= self._end.next_index

    def _answer_or_park(self, pulls: Sequence[Pull]) -> None:
        answers = []
        now_s = trio.current_time()
        for pull in pulls:
            if pull.page.found or pull.deadline_s <= now_s or len(self._parked) >= PARKED_MAX or self._closed:
                answers.append(self._answer_to(pull))
            else:
                pull.page.start = FromIndex(pull.page.index)
                self._parked.park(pull)
        self._worker.context.send_run(answers)

    def _give_up(self, pulls: Sequence[Pull]) -> None:
        """Answer pulls that have been parked for as long as they may."""
        self._worker.context.send_run([self._answer_to(pull) for pull in pulls])

    def close(self) -> None:
        """The worker has stopped: nothing waits here any more, and nothing is kept."""
        self._closed = True
        self._tail.close()
        self._parked.take_all()
        self._held_back.take_all()

    def _answer_to(self, pull: Pull) -> Message:
        address = self._worker.context.address
        return Message(pull.message.return_route, (address,), self._payload(pull))

    def _payload(self, pull: Pull) -> bytes:
        found, request = pull.page.found, pull.request
        if isinstance(found, StorageError):
            address = str(self._worker.context.address)
            self._counters.pulls_failed += 1
            logger.error("pull_failed", address=address, index=pull.page.index, reason=str(found))
            return error_payload(f"the stream cannot be read at index {pull.page.index}: {found}")
        _fit(found, payload_bytes_max(pull.message) - ANSWER_OVERHEAD_BYTES, pull.page.rich)
        if isinstance(request, PullRequest):
            if pull.page.passed_over:
                self._tell_passed_over(pull)
            messages = [StreamMessage(record[0], record[1]) for record in found]
            return PULL.encode_response(PullResponse(request.request_id, messages))
        resume_index = found[-1][0] + 1 if found else pull.page.index
        rich = [
            RichMessage(index, time_us, key, decode_beside(headers).headers, data)
            for index, data, time_us, key, headers in found
        ]
        end = self._end
        # A read may see pushes that are on disk before this worker has heard that they are.
        next_index = max(end.next_index, resume_index) if found else end.next_index
        return RICH_PULL.encode_response(RichPage(request.request_id, end.first_index, next_index, resume_index, rich))

    def _tell_passed_over(self, pull: Pull) -> None:
        """Count and log what a plain pull leaves out; once, however often its asker comes back to the same index."""
        left_out = range(max(pull.page.passed_over.start, self._told_index), pull.page.passed_over.stop)
        if left_out:
            self._told_index = left_out.stop
            self._counters.messages_passed_over += len(left_out)
            logger.warning(
                "messages_passed_over",
                address=str(self._worker.context.address),
                peer=pull.message.origin.peer,
                first_index=left_out.start,
                last_index=left_out.stop - 1,
                bytes_max=pull.page.first_bytes_max,
                do="let this consumer use the head framing, or push smaller messages",
            )


def payload_bytes_max(message: Message) -> int:
    """The largest payload that an answer along this message's return route can have."""
    hops = message.return_route
    return message.origin.frame_bytes_max - sum(len(hop.value) + HOP_OVERHEAD_BYTES for hop in hops)


def _fit(page: list[Record], bytes_max: int, rich: bool) -> None:
    """Take messages off the end of a page until it fits, whatever their indexes and sizes cost to write."""
    sizes = [(size_of(record) if rich else len(record[1])) + MESSAGE_OVERHEAD_BYTES for record in page]
    size_bytes = sum(sizes)
    while size_bytes > bytes_max and len(page) > 1:
        size_bytes -= sizes.pop()
        page.pop()
