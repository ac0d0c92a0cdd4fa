"""StreamCounters: counts events of all streams of a node, reserves disk space for pushes, and answers
refused requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog

from ockam.log_rate import LogRate
from ockam.message import Message
from ockam.protocol import error_payload
from ockam.worker import Worker

COPIES = 2
"""The number of times that each message is written to disk: once to the write-ahead log, and once to the database."""
MESSAGE_BYTES = 128
"""The disk space that each copy of a message takes in addition to its data, in bytes: its row, its index entry, and
unused space in pages."""
APPEND_BYTES = 24 * 1024
"""The disk space reserved for each append in addition to its messages, in bytes. An append also changes existing pages
of the database, and each changed page is written again as a whole."""

logger = structlog.get_logger(__name__)


class StreamCounters:
    """The counters of all streams of a node since its start. They survive crashes of the workers.

    refused: the number of requests that were answered with `error` because they are not valid or not allowed.
    pushes_failed, pulls_failed, creates_failed: the numbers of requests that failed with a storage error.
    messages_passed_over: the number of messages that plain pulls skipped because the messages do not fit into any frame
    of the connection.
    room_bytes: the number of bytes that pushes may still write before the node measures the free disk space again;
    infinite before the first measurement.
    write_failure: the reason why the last push was not stored; None after a push has succeeded.
    """

    def __init__(self) -> None:
        self.messages_passed_over = 0
        self.refused = self.pushes_failed = self.pulls_failed = self.creates_failed = 0
        self.write_failure: str | None = None
        self.room_bytes = math.inf
        self._lines = LogRate()

    def find_no_room(self, data: Sequence[bytes]) -> str | None:
        """Reserves disk space for one append. Returns None, or the reason as text if the disk is nearly full.

        In that case nothing is reserved.
        data: the data of the messages to append.
        """
        needed_bytes = APPEND_BYTES + COPIES * (sum(map(len, data)) + MESSAGE_BYTES * len(data))
        if needed_bytes > self.room_bytes:
            return "the disk is nearly full: free_disk_bytes_min would not stay free; make room and push again"
        self.room_bytes -= needed_bytes
        return None

    def refuse(self, worker: Worker, message: Message, reason: str, answer: bytes | None = None) -> None:
        """Counts, logs and answers a request that is refused.

        answer: the payload of the answer; None sends an `error` with the reason.
        """
        self.refused += 1
        address = str(message.onward_route[0])
        self._lines.log(logger.info, "request_refused", peer=message.origin.peer, address=address, reason=reason)
        worker.reply(message, error_payload(reason) if answer is None else answer)
