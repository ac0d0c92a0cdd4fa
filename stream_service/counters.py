"""The counters of a node's streams, and the refusal of requests. The counters outlive crashes of the workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog

from ockam.message import Message
from ockam.protocol import error_payload
from ockam.worker import Worker

COPIES = 2
"""A message is written twice: to the write-ahead log, and to the database."""
MESSAGE_BYTES = 128
"""What a message takes in each copy beside its data: its row, its place in the index, and unused space of pages."""
APPEND_BYTES = 24 * 1024
"""What an append writes again of pages that it changes."""

logger = structlog.get_logger(__name__)


class StreamCounters:
    """Counters since the start.

    refused: requests answered with `error`, because of what they ask.
    pushes_failed, pulls_failed, creates_failed: requests that storage could not carry out.
    messages_passed_over: messages that plain pulls left out, since no frame of their connection can carry them.
    room_bytes: how much more may be pushed until somebody looks at the disk again.
    write_failure: why the last push was not stored; None once one has been stored again.
    """

    def __init__(self) -> None:
        self.messages_passed_over = 0
        self.refused = self.pushes_failed = self.pulls_failed = self.creates_failed = 0
        self.write_failure: str | None = None
        self.room_bytes = math.inf

    def find_no_room(self, data: Sequence[bytes]) -> str | None:
        """The reason not to store these messages, where the disk is nearly full; None reserves their room."""
        needed_bytes = APPEND_BYTES + COPIES * (sum(map(len, data)) + MESSAGE_BYTES * len(data))
        if needed_bytes > self.room_bytes:
            return "the disk is nearly full: free_disk_bytes_min would not stay free; make room and push again"
        self.room_bytes -= needed_bytes
        return None

    def refuse(self, worker: Worker, message: Message, reason: str, answer: bytes | None = None) -> None:
        """Answer a request that is not to be served, log it and count it. answer: in place of an `error`."""
        self.refused += 1
        address = str(message.onward_route[0])
        logger.info("request_refused", address=address, peer=message.origin.peer, reason=reason)
        worker.reply(message, error_payload(reason) if answer is None else answer)
