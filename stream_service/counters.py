"""What the workers of a node's streams count, and how a request is refused. It outlives their crashes."""

from __future__ import annotations

import structlog

from ockam.message import Message
from ockam.protocol import error_payload
from ockam.worker import Worker

logger = structlog.get_logger(__name__)


class StreamCounters:
    """Counters since the start.

    refused: requests answered with `error`, because of what they ask.
    pushes_failed, pulls_failed, creates_failed: requests that storage could not carry out.
    push_refusal: why no push is stored at the moment (the disk is nearly full); None usually.
    write_failure: why the last push was not stored; None once one has been stored again.
    """

    def __init__(self) -> None:
        self.refused = self.pushes_failed = self.pulls_failed = self.creates_failed = 0
        self.write_failure: str | None = None
        self.push_refusal: str | None = None

    def refuse(self, worker: Worker, message: Message, reason: str, answer: bytes | None = None) -> None:
        """Answer a request that is not to be served, log it and count it. answer: in place of an `error`."""
        self.refused += 1
        address = str(message.onward_route[0])
        logger.info("request_refused", address=address, peer=message.origin.peer, reason=reason)
        worker.reply(message, error_payload(reason) if answer is None else answer)
