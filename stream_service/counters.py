"""StreamCounters: counts events of all streams of a node, reserves disk space for pushes, and answers
refused requests."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

import structlog

from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.log_rate import LogRate
from ockam.protocol import error_payload
from stream_storage.histogram import SECONDS, Histogram

COPIES = 2
"""The number of times that each message is written to disk: once to the write-ahead log, and once to the database."""
MESSAGE_BYTES = 128
"""The disk space that each copy of a message takes in addition to its data, in bytes: its row, its index entry, and
unused space in pages."""
APPEND_BYTES = 24 * 1024
"""The disk space reserved for each append in addition to its messages, in bytes. An append also changes existing pages
of the database, and each changed page is written again as a whole."""

NO_ROOM = "the disk is nearly full: free_disk_bytes_min and the ballast would not stay free; make room and push again"

logger = structlog.get_logger(__name__)


class StreamCounters:
    """The counters of all streams of a node since its start. They survive crashes of the workers.

    refused: the number of requests that were answered with `error` because they are not valid or not allowed.
    pushes_failed, pulls_failed, creates_failed: the numbers of requests that failed with a storage error.
    messages_passed_over: the number of messages that plain pulls skipped because the messages do not fit into any frame
    of the connection.
    pushes: the number of stored pushes.
    push_bytes: the size of the data of all pushes and copies for which disk space was reserved.
    confirm_seconds: the times from the arrival of the first push of an append to its confirm, once for each push.
    pages: the number of answered pulls.
    pulled: the number of messages in these answers.
    pulled_bytes: the size of these answers.
    retaining: by stream id, since when messages beyond a retention are being deleted, in seconds of `time.monotonic`.
    room_bytes: the number of bytes that pushes may still write before the node measures the free disk space again;
    infinite before the first measurement.
    write_failure: the reason why the last push was not stored; None after a push has succeeded.
    growth: the number of messages that each stream got since the last call of `take_growth`. closed: the streams of
    which a worker has stopped since then.
    stored_s, unstored_s: when the last push was stored, and when one was last not stored, in seconds of
    `time.monotonic`. unstored_bytes: the size of the pushes that were not stored last; 0 after a push has succeeded.
    """

    def __init__(self) -> None:
        self.messages_passed_over = 0
        self.refused = self.pushes_failed = self.pulls_failed = self.creates_failed = 0
        self.pushes = self.push_bytes = self.pages = self.pulled = self.pulled_bytes = 0
        self.confirm_seconds = Histogram(SECONDS)
        self.retaining: dict[int, float] = {}
        self.write_failure: str | None = None
        self.growth: Counter[str] = Counter()
        self.closed: set[str] = set()
        self.stored_s = self.unstored_s = -math.inf
        self.unstored_bytes = 0
        self.room_bytes = math.inf
        self._lines = LogRate()

    def find_no_room(self, data: Sequence[bytes]) -> str | None:
        """Reserves disk space for one append. Returns None, or the reason as text if the disk is nearly full.

        In that case nothing is reserved.
        data: the data of the messages to append.
        """
        data_bytes = sum(map(len, data))
        if not self.has_room(data_bytes, len(data)):
            return NO_ROOM
        self.room_bytes -= _needed_bytes(data_bytes, len(data))
        self.push_bytes += data_bytes
        return None

    def has_room(self, data_bytes: int, messages: int = 1) -> bool:
        """Whether there is disk space for an append of this size."""
        return _needed_bytes(data_bytes, messages) <= self.room_bytes

    def stored(self, pushes: int, confirm_s: float) -> None:
        """Counts the pushes of one stored append. confirm_s: the time from their arrival to their confirm."""
        self.write_failure = None
        self.stored_s, self.unstored_bytes = time.monotonic(), 0
        self.pushes += pushes
        self.confirm_seconds.add(confirm_s, pushes)

    def take_growth(self) -> tuple[Counter[str], set[str]]:
        """Returns `growth` and `closed`, and begins both anew. Streams that did not change cost nothing."""
        taken = self.growth, self.closed
        self.growth, self.closed = Counter(), set()
        return taken

    def not_stored(self, pushes: int, data_bytes: int, reason: str) -> None:
        """Counts pushes that were not stored. data_bytes: the size of their data."""
        self.pushes_failed += pushes
        self.write_failure = reason
        self.unstored_s, self.unstored_bytes = time.monotonic(), data_bytes

    def retention_lag_s(self) -> float:
        """Returns for how long some stream has had messages beyond its retention that are still being deleted."""
        return time.monotonic() - min(self.retaining.values()) if self.retaining else 0.0

    def refuse(self, worker: Worker, message: Message, reason: str, answer: bytes | None = None) -> None:
        """Counts, logs and answers a request that is refused.

        answer: the payload of the answer; None sends an `error` with the reason.
        """
        self.refused += 1
        address = str(message.onward_route[0])
        self._lines.log(logger.info, "request_refused", **message.origin.who, address=address, reason=reason)
        worker.reply(message, error_payload(reason) if answer is None else answer)


def _needed_bytes(data_bytes: int, messages: int) -> int:
    return APPEND_BYTES + COPIES * (data_bytes + MESSAGE_BYTES * messages)
