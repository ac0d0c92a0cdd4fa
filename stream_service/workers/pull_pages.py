"""PullPages: limits the size of the pages that answer pulls, finds pages in memory, and encodes the answers."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import structlog
import trio

from ockam.actors.message import Message, Origin
from ockam.protocol import error_payload
from stream_service.extensions import (
    CUT_PULL,
    MARKED_PULL,
    PACKED_PULL,
    RICH_PULL,
    CutMessage,
    CutPage,
    CutPull,
    FromEnd,
    FromIndex,
    FromTime,
    MarkedPage,
    MarkedPull,
    PackedPull,
    RichMessage,
    RichPage,
    RichPull,
    decode_extras,
)
from stream_service.mirroring import MirrorPull, MirrorStatus, SourceRole, encode_mirror_page, has_parted
from stream_service.operations import PullPage, data_bytes, size_of
from stream_service.page_codec import encode_packed_page, encode_page, encode_rich_page
from stream_service.protocol import PullRequest
from stream_storage.contract import Record
from stream_storage.errors import StorageError

if TYPE_CHECKING:
    from ockam.actors.address import Address
    from stream_service.workers.stream_bounds import StreamBounds
    from stream_service.workers.stream_services import StreamServices
    from stream_service.workers.tail_machine import Tail

ANSWER_OVERHEAD_BYTES = 128
"""The bytes of an answer beside its messages: protocol name, request id, bounds, count, frame. About 80 are needed."""
MESSAGE_OVERHEAD_BYTES = 30
"""The bytes of a message beside its data, key and headers: index, time and sizes. At most 24 are needed."""
HOP_OVERHEAD_BYTES = 16
"""The bytes of an address of a route beside its text, in either framing. About 6 are needed."""

NO_MORE = b"\0"
"""The last byte of the last part of a page."""

logger = structlog.get_logger(__name__)


class Pull:
    """A pull that is not answered yet.

    page: the requested page, and later its messages.
    wait_s: for how long the pull may wait for a message; 0: it must not wait.
    deadline_s: until when it may wait, on trio's clock, or 0.
    goes_on: whether a further part of the page can follow the next answer. Then `page` is the rest of the page.
    """

    __slots__ = ("consumer", "deadline_s", "goes_on", "message", "page", "payload_bytes_max", "request", "wait_s")

    def __init__(
        self,
        message: Message,
        request: PullRequest | RichPull | MirrorPull,
        page: PullPage,
        wait_s: float,
    ) -> None:
        self.message = message
        self.consumer: Origin = message.origin
        self.request = request
        self.page = page
        self.wait_s = wait_s
        self.deadline_s = trio.current_time() + wait_s if wait_s else 0.0
        self.goes_on = isinstance(request, PackedPull) and wait_s > 0
        self.payload_bytes_max = payload_bytes_max(message)

    def rest(self) -> Message:
        """Returns a request for the rest of the page, without the parts that were sent."""
        asked, page, message = self.request, self.page, self.message
        if not isinstance(asked, PackedPull) or page.start is asked.start:
            return message
        left = PackedPull(asked.request_id, page.start, page.limit, asked.wait_ms, asked.created_us)
        return Message(message.onward_route, message.return_route, PACKED_PULL.encode_request(left), message.origin)


class SharedPart(NamedTuple):
    """A part of a page, for all waiting pulls with one index and request id: the new messages up to the stream's end.

    payload: says that another part follows. size_bytes: the size of the data.
    """

    payload: bytes
    messages: int
    size_bytes: int


class PullPages:
    """Limits, finds and encodes the pages of one stream's pulls.

    A page fits the largest frame of the consumer's connection, and shrinks with the bytes that already wait to be sent
    there: a consumer that asks faster than it reads gets shorter pages, and cannot fill the node's memory.

    If the first message does not fit into a frame of the consumer's connection, a plain pull skips the message, because
    its consumer could never continue after it. A rich pull gets an error. Any other first message is in the page.
    """

    def __init__(self, address: Address, bounds: StreamBounds, tail: Tail, services: StreamServices) -> None:
        self._address = address
        self._bounds = bounds
        self._tail = tail
        self._services = services
        self._counters = services.counters
        self._own_route = (address,)
        self._logged_index = 0

    def bound(self, pull: Pull) -> None:
        """Sets the size limits of a pull's page, as they are now."""
        page, origin = pull.page, pull.consumer
        page.first_bytes_max = max(0, pull.payload_bytes_max - ANSWER_OVERHEAD_BYTES - MESSAGE_OVERHEAD_BYTES)
        # If the return route takes more than half of the frame, the consumer has to change its route: it gets the
        # error.
        page.passes_over = not page.rich and 2 * page.first_bytes_max > origin.frame_bytes_max
        room_bytes = max(0, self._services.limits.pull_bytes_max - origin.backlog_bytes())
        page.bytes_max = min(room_bytes, page.first_bytes_max)
        if page.size_bytes is not None:
            page.bytes_max = min(page.bytes_max, page.size_bytes)

    def find(self, pull: Pull) -> list[Record] | None:
        """Finds the messages of a pull's page in memory. Returns None if the page must be read from the disk."""
        if self._is_empty(pull.page):
            return []
        found = self._find_in_tail(pull)
        if not found:
            return None
        pull.page.found = found
        return found

    def answer(self, pull: Pull) -> Message:
        payload = self._payload(pull)
        found = pull.page.found
        return self._answer(pull, payload, None if isinstance(found, StorageError) else len(found))

    def find_part(self, index: int, request_id: int) -> SharedPart | None:
        """Encodes the messages from `index` to the end of the stream. Returns None if they are not in memory, or are
        more than a page."""
        bounds, limits = self._bounds, self._services.limits
        if self._tail.next_index != bounds.next_index:
            return None
        found = self._tail.find_page(index, limits.rich_pull_messages_max, limits.pull_bytes_max, limits.pull_bytes_max)
        if not found or found[-1][0] + 1 != bounds.next_index:
            return None
        head = (request_id, bounds.first_index, bounds.next_index, bounds.next_index, bounds.created_us)
        return SharedPart(encode_packed_page(*head, found, more=True), len(found), data_bytes(found))

    def answer_part(self, pull: Pull, part: SharedPart) -> Message | None:
        """Returns the answer to a pull with a shared part; None if the part is larger than the pull allows."""
        page, payload = pull.page, part.payload
        assert page.size_bytes is not None, "a page in parts has a size"
        if part.messages > page.limit or part.size_bytes > page.size_bytes or len(payload) > pull.payload_bytes_max:
            return None
        if not self._take_part(pull, part.messages, part.size_bytes, self._bounds.next_index):
            payload = payload[:-1] + NO_MORE
        return self._answer(pull, payload, part.messages)

    def _answer(self, pull: Pull, payload: bytes, messages: int | None) -> Message:
        """Counts and returns an answer. messages: None for an `error`."""
        if messages is not None:
            self._counters.pages += 1
            self._counters.pulled += messages
            self._counters.pulled_bytes += len(payload)
        return Message(pull.message.return_route, self._own_route, payload)

    def _take_part(self, pull: Pull, messages: int, size_bytes: int, resume_index: int) -> bool:
        """Takes a part off the rest of a pull's page. Returns whether another part can follow: only if the page is at
        the end of the stream and has room left, and the consumer is within its limits."""
        page, now_s = pull.page, trio.current_time()
        page.limit -= messages
        page.size_bytes = (page.size_bytes or 0) - size_bytes
        page.start, page.index = FromIndex(resume_index), resume_index
        pull.deadline_s = now_s + pull.wait_s
        pull.goes_on = (
            pull.goes_on
            and messages > 0
            and page.limit > 0
            and page.size_bytes > 0
            and resume_index >= self._bounds.next_index
            and pull.consumer.usage.take_turn(now_s)
        )
        return pull.goes_on

    def _is_empty(self, page: PullPage) -> bool:
        """Whether the page certainly has no messages. Sets `page.index`, unless only a read can resolve the start."""
        start = page.start
        if isinstance(start, FromIndex):
            page.index = start.index
        elif isinstance(start, FromEnd):
            page.index = max(self._bounds.first_index, self._bounds.next_index - start.messages)
        else:
            return False
        return not page.limit or page.index >= self._bounds.next_index

    def _find_in_tail(self, pull: Pull) -> list[Record] | None:
        """Returns the messages of a page from the tail; empty or None if the page must be read from the disk."""
        page, bounds = pull.page, self._bounds
        # The tail helps only if it reaches the end of the stream. It cannot search by time.
        if self._tail.next_index != bounds.next_index or isinstance(page.start, FromTime):
            return None
        self.bound(pull)
        first = max(page.index, bounds.first_index)
        found = self._tail.find_page(first, page.limit, page.bytes_max, page.first_bytes_max)
        # The tail counts only data. If the first message does not fit with its key and headers, the read raises the
        # error.
        if found and page.rich and size_of(found[0]) > page.first_bytes_max:
            return None
        return found

    def _payload(self, pull: Pull) -> bytes:
        found, request = pull.page.found, pull.request
        if isinstance(found, StorageError):
            self._counters.pulls_failed += 1
            pull.goes_on = False
            logger.error("pull_failed", address=str(self._address), index=pull.page.index, reason=str(found))
            return error_payload(f"the stream cannot be read at index {pull.page.index}: {found}")
        # Only the data was counted so far. Indexes, sizes, keys and headers take room too, so the page may get shorter
        # here.
        _fit(found, pull.payload_bytes_max - ANSWER_OVERHEAD_BYTES, pull.page.rich)
        if isinstance(request, PullRequest):
            if pull.page.passed_over:
                self._log_passed_over(pull)
            return encode_page(request.request_id, found)
        if isinstance(request, PackedPull) and found and found[-1][0] - found[0][0] >= len(found):
            # Only the first index is sent, but a damaged database can have lost messages in the middle of a stream.
            del found[next(at for at, record in enumerate(found) if record[0] - at != found[0][0]) :]
        bounds = self._bounds
        if isinstance(request, MirrorPull):
            # The history of messages that were just committed (see below) may not be known here yet.
            del found[bisect_left(found, bounds.next_index, key=itemgetter(0)) :]
        resume_index = found[-1][0] + 1 if found else pull.page.index
        # A read may find messages that were just committed, before the stream's worker gets the result of that append.
        next_index = max(bounds.next_index, resume_index) if found else bounds.next_index
        if isinstance(request, MirrorPull):
            known = (SourceRole(bounds.source_role), bounds.history, bounds.first_index, next_index)
            # The stream may have got another history, and other messages, while the request waited.
            ours = (bounds.history, next_index, bounds.is_mirror)
            if has_parted(*ours, request.entry_id, request.start):
                return encode_mirror_page(request.request_id, MirrorStatus.PARTED, *known, next_index, [])
            start = found[0][0] if found else pull.page.index
            return encode_mirror_page(request.request_id, MirrorStatus.OK, *known, start, found)
        if isinstance(request, CutPull):
            cut = [
                CutMessage(
                    index, time_us, key, decode_extras(headers).headers, len(data), data[: request.data_bytes_max]
                )
                for index, data, time_us, key, headers in found
            ]
            return CUT_PULL.encode_response(
                CutPage(request.request_id, bounds.first_index, next_index, resume_index, cut)
            )
        head = (request.request_id, bounds.first_index, next_index, resume_index)
        if isinstance(request, PackedPull):
            more = self._take_part(pull, len(found), data_bytes(found), resume_index)
            return encode_packed_page(*head, bounds.created_us, found, more=more)
        created_us = bounds.created_us if isinstance(request, MarkedPull) else None
        usual = encode_rich_page(*head, found, created_us)
        if usual is not None:
            return usual
        rich = [
            RichMessage(index, time_us, key, decode_extras(headers).headers, data)
            for index, data, time_us, key, headers in found
        ]
        if created_us is not None:
            return MARKED_PULL.encode_response(MarkedPage(*head, rich, created_us))
        return RICH_PULL.encode_response(RichPage(*head, rich))

    def _log_passed_over(self, pull: Pull) -> None:
        """Counts and logs, once each, the messages that a plain pull skipped."""
        left_out = range(max(pull.page.passed_over.start, self._logged_index), pull.page.passed_over.stop)
        if left_out:
            self._logged_index = left_out.stop
            self._counters.messages_passed_over += len(left_out)
            logger.warning(
                "messages_passed_over",
                address=str(self._address),
                peer=pull.consumer.peer,
                first_index=left_out.start,
                last_index=left_out.stop - 1,
                bytes_max=pull.page.first_bytes_max,
                do="let this consumer use the head framing, or push smaller messages",
            )


def payload_bytes_max(message: Message) -> int:
    """Returns the largest payload, in bytes, that an answer along this message's return route can have."""
    size_bytes = message.origin.frame_bytes_max
    for hop in message.return_route:
        size_bytes -= len(hop.value) + HOP_OVERHEAD_BYTES
    return size_bytes


def _fit(page: list[Record], bytes_max: int, rich: bool) -> None:
    """Removes messages from the end of a page until the answer fits. The first message always stays."""
    # A fast upper bound first: it counts the data of messages with a key or headers twice, but there are few of them.
    beside = [record for record in page if record[3] is not None or record[4] is not None] if rich else ()
    size_bytes = data_bytes(page) + MESSAGE_OVERHEAD_BYTES * len(page) + sum(map(size_of, beside))
    if size_bytes <= bytes_max:
        return
    sizes = [(size_of(record) if rich else len(record[1])) + MESSAGE_OVERHEAD_BYTES for record in page]
    size_bytes = sum(sizes)
    while size_bytes > bytes_max and len(page) > 1:
        size_bytes -= sizes.pop()
        page.pop()
