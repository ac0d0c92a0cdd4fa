"""StreamCounters: counts events of all streams of a node, and reserves disk space for pushes."""

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
"""Each message is written to disk twice: to the write-ahead log, and to the database."""
MESSAGE_BYTES = 128
"""The size of each copy of a message beside its data, in bytes: its row, its index entry, unused space in pages."""
APPEND_BYTES = 24 * 1024
"""The bytes that each append writes beside its messages: it changes pages, and each page is written as a whole."""

NO_ROOM = "the disk is nearly full: free_disk_bytes_min and the ballast would not stay free; make room and push again"

logger = structlog.get_logger(__name__)


class StreamCounters:
    """The counters of all streams of a node since its start. They survive crashes of the workers.

    refused: the requests that were refused because they are not valid or not allowed.
    pushes_failed, pulls_failed, creates_failed: the requests that failed with a storage error, or because the disk is
        nearly full.
    pages, pulled, pulled_bytes: the number of answered pulls and bulk reads, and the messages and the bytes of these
        answers.
    stored_s, unstored_s: when a push was last stored, and when a push last failed, in seconds of `time.monotonic`.
    """

    def __init__(self) -> None:
        self.messages_passed_over = 0  # left out of plain pulls, because no frame of the connection has room for them
        self.refused = self.pushes_failed = self.pulls_failed = self.creates_failed = 0
        self.pushes = self.push_bytes = self.pages = self.pulled = self.pulled_bytes = 0
        # of each push: the time from the arrival of the first push of its append to the confirms of the append
        self.confirm_seconds = Histogram(SECONDS)
        # by stream id, since when messages beyond a retention are being deleted (`time.monotonic`)
        self.retaining: dict[int, float] = {}
        self.write_failure: str | None = None  # why the last push was not stored; None after a push has succeeded
        self.tells_growth = True  # False: nobody calls `take_growth`, so nothing is gathered for it
        self.growth: Counter[str] = Counter()  # by stream, the number of new messages since `take_growth`
        self.closed: set[str] = set()  # the streams of which a worker has stopped since `take_growth`
        self.stored_s = self.unstored_s = -math.inf
        self.unstored_bytes = 0  # the size of the append that has failed last; 0 after a push has succeeded
        # how many bytes may be written before the free disk space is measured again; infinite at first
        self.room_bytes = math.inf
        self._lines = LogRate()

    def find_no_room(self, data: Sequence[bytes]) -> str | None:
        """Reserves disk space for one append of these messages, or returns the reason why the disk is too full."""
        data_bytes = sum(map(len, data))
        left_bytes = self.room_bytes - _needed_bytes(data_bytes, len(data))
        if left_bytes < 0:
            return NO_ROOM
        self.room_bytes = left_bytes
        self.push_bytes += data_bytes
        return None

    def has_room(self, data_bytes: int) -> bool:
        return _needed_bytes(data_bytes, 1) <= self.room_bytes

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
        self.pushes_failed += pushes
        self.write_failure = reason
        self.unstored_s, self.unstored_bytes = time.monotonic(), data_bytes

    def retention_lag_s(self) -> float:
        """Returns for how long the oldest unfinished deletion by retention has run, in seconds; 0 without one."""
        return time.monotonic() - min(self.retaining.values()) if self.retaining else 0.0

    def refuse(self, worker: Worker, message: Message, reason: str, answer: bytes | None = None) -> None:
        """Counts, logs and answers a request that is refused. answer: the payload; None: an `error`."""
        self.refused += 1
        address = str(message.onward_route[0])
        self._lines.log(logger.info, "request_refused", **message.origin.who, address=address, reason=reason)
        worker.reply(message, error_payload(reason) if answer is None else answer)


def _needed_bytes(data_bytes: int, messages: int) -> int:
    return APPEND_BYTES + COPIES * (data_bytes + MESSAGE_BYTES * messages)
