"""The trio side of a runner: what was submitted, what came back, who waits for it. For one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from storage.contract import Operation
from storage.errors import StorageClosed

Deliver = Callable[[list[Operation]], None]

logger = structlog.get_logger(__name__)


class Delivery:
    """Counts operations in, hands them back, counts them out.

    deliver: called with the operations of one batch, each done or with its error; by default it calls each `on_done`.
    An exception from either is a mistake of theirs: it is logged and counted, and everybody else is still told.
    Invariant: outstanding is the number of operations counted in and not yet handed back.
    """

    def __init__(self, deliver: Deliver | None) -> None:
        self.outstanding = 0
        self.failed = 0
        self.callback_failures = 0
        self.closed = False
        self._abandoned = False
        self._deliver = deliver
        self._idle: trio.Event | None = None

    def count_in(self) -> None:
        """Raises StorageClosed."""
        if self.closed:
            raise StorageClosed("the storage is closed; start the node again")
        self.outstanding += 1

    def hand_back(self, operations: list[Operation]) -> None:
        self.failed += sum(operation.error is not None for operation in operations)
        try:
            if self._deliver is None:
                self._call_each(operations)
            else:
                self._deliver(operations)
        except Exception:
            self.callback_failures += 1
            logger.exception("deliver_failed", operations=len(operations))
        if not self._abandoned:
            self.outstanding -= len(operations)
            if not self.outstanding:
                self._wake_idle()

    def abandon(self) -> None:
        """What is outstanding will never come back; nobody waits for it any more, and nobody is told."""
        self._abandoned = True
        self.closed = True
        self.outstanding = 0
        self._wake_idle()

    async def wait_idle(self) -> None:
        """Until nothing is outstanding."""
        while self.outstanding:
            if self._idle is None:
                self._idle = trio.Event()
            await self._idle.wait()

    def _call_each(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if self._abandoned:
                return
            try:
                operation.on_done(operation)
            except Exception:
                self.callback_failures += 1
                logger.exception("callback_failed", operation=type(operation).__name__)

    def _wake_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None
