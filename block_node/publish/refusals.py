"""Counts the blocks that failed verification, and keeps the last ones with their reasons."""

from __future__ import annotations

from collections import deque

from block_node.blocks.errors import FailureKind
from block_node.protocol import PublishStatus
from block_node.publish.effects import LogLine
from block_node.publish.statistics import BlockRefusal

KEPT_MAX = 20


class Refusals:
    """The number of refused blocks, and the last KEPT_MAX of them, the latest at the end."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[BlockRefusal] = deque(maxlen=KEPT_MAX)

    def add(self, block_number: int, failure: str | None, reason: str) -> LogLine:
        self.count += 1
        self.last.append(BlockRefusal(block_number, failure or "", reason))
        return LogLine("block_refused", {"block": block_number, "failure": failure, "reason": reason}, is_warning=True)


def status_of(failure: str | None) -> PublishStatus:
    too_large = failure == FailureKind.LIMIT_EXCEEDED.value
    return PublishStatus.INVALID_REQUEST if too_large else PublishStatus.BAD_BLOCK_PROOF
