"""RetentionWorker: makes every stream delete the messages that exceed its retention, then shrinks the database file. It
also ends the workers of streams that nobody has needed for long.

It works in small steps with pauses, so that it never delays pushes. `workers.admin` decides what one stream deletes.
"""

from __future__ import annotations

from contextlib import suppress

import structlog

from ockam.actors.address import Address, local
from ockam.actors.worker import Worker
from stream_service.workers.directory import StreamDirectory
from stream_storage.contract import DoLittle
from stream_storage.errors import StorageClosed

SLICE_STREAMS = 1_000
PAUSE_S = 0.02
"""The pause between two steps, in seconds."""
RECLAIM_PAGES = 256
"""The number of free pages (of 8 KiB) that one transaction gives back to the file system, in some milliseconds."""
FREE_PAGES_KEPT = 128
"""The number of free database pages that stay in the file for the next messages."""

ADDRESS = local("node_retention")

logger = structlog.get_logger(__name__)


class RetentionWorker(Worker):
    """Applies the retention of all streams again and again. interval_s: the pause between two passes, in seconds."""

    def __init__(self, directory: StreamDirectory, interval_s: float) -> None:
        self._directory = directory
        self._interval_s = interval_s
        self._left: list[Address] = []

    def started(self) -> None:
        self.context.call_later(self._interval_s, self._begin_round)

    def _begin_round(self) -> None:
        # Reading the clock notices jumps and small corrections even if no message is pushed for long.
        self._directory.clock.time_us()
        self._left = self._directory.addresses_to_tend()
        self._next_slice()

    def _next_slice(self) -> None:
        now, self._left = self._left[:SLICE_STREAMS], self._left[SLICE_STREAMS:]
        try:
            for address in now:
                self._directory.tend(address)
        except StorageClosed:
            # The node is stopping. The other streams follow after its next start.
            return
        if self._left:
            self.context.call_later(PAUSE_S, self._next_slice)
        else:
            self._reclaim()

    def _reclaim(self) -> None:
        def reclaimed(operation: DoLittle[int]) -> None:
            if operation.error is not None:
                logger.error("reclaim_failed", reason=str(operation.error))
            if operation.error is None and operation.result > FREE_PAGES_KEPT:
                self._reclaim()
            else:
                self.context.call_later(self._interval_s, self._begin_round)

        reclaim = DoLittle(
            lambda session: session.reclaim(RECLAIM_PAGES, FREE_PAGES_KEPT), self.context.guard(reclaimed)
        )
        with suppress(StorageClosed):
            self._directory.storage.submit_write(reclaim)


def register_retention(directory: StreamDirectory, interval_s: float) -> None:
    directory.node.register([ADDRESS], lambda: RetentionWorker(directory, interval_s))
