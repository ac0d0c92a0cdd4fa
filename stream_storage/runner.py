"""The interface between the trio thread of a node and its storage, and the code that all runners share.

`stream_storage.thread_runner.ThreadRunner` serves a node. `stream_storage.inline_runner.InlineRunner` serves a
simulation: it behaves the same, but has no threads. This module starts no threads and knows no SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec
import structlog
import trio

from stream_storage.contract import Operation
from stream_storage.errors import StorageClosed
from stream_storage.sqlite.bulk.arrow_thread import ArrowRead

logger = structlog.get_logger(__name__)


class RunnerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a runner since its start. Times are in seconds.

    commits: the number of committed transactions, each with at least one sync.
    operations: the number of committed operations.
    rows: the number of messages in these operations.
    reads: the number of finished read operations, including failed ones.
    bulk_pages: the number of pages that bulk reads returned.
    bulk_rows: the number of messages in these pages.
    failed: the number of reads and writes that ended with an error.
    callback_failures: the number of `on_done` calls that raised.
    writes_waiting, reads_waiting: the number of operations in the queues.
    outstanding: the number of submitted operations whose `on_done` was not called yet.
    commit_s_last, commit_s_total, commit_s_max: the duration of the last commit, of all commits, and of the longest.
    wal_pages: the number of pages in the write-ahead log at the last checkpoint.
    failure: the reason why the runner does not write any more, or None if it writes.
    """

    commits: int
    operations: int
    rows: int
    reads: int
    bulk_pages: int
    bulk_rows: int
    failed: int
    callback_failures: int
    writes_waiting: int
    reads_waiting: int
    outstanding: int
    commit_s_last: float
    commit_s_total: float
    commit_s_max: float
    checkpoints: int
    checkpoint_failures: int
    checkpoint_s_last: float
    wal_pages: int
    failure: str | None


class Runner(Protocol):
    """The interface of a runner, which does operations (reads and writes) and completes them in the trio thread. To
    complete an operation means to call its `on_done`, after the commit or the failure.

    Writes are done and completed in the order of submission. A read sees every write that was completed before the read
    was submitted. Reads are done in any order. An operation is done and completed even if the task that submitted it
    was cancelled.
    """

    def submit_write(self, operation: Operation) -> None:
        """Submit an operation that writes. Raises StorageClosed."""
        ...

    def submit_read(self, operation: Operation) -> None:
        """Submit an operation that only reads. Raises StorageClosed."""
        ...

    def submit_bulk(self, operation: ArrowRead) -> None:
        """Submit a bulk read: a child process reads one page as Arrow. If this runner cannot do bulk reads, the read
        fails with ArrowUnavailable.

        Raises StorageClosed.
        """
        ...

    async def wait_idle(self) -> None:
        """Wait until every submitted operation is completed."""
        ...

    async def aclose(self) -> None:
        """Complete every submitted operation, then close the runner. Safe to repeat. A cancellation does not interrupt
        this method."""
        ...

    def statistics(self) -> RunnerStatistics: ...


class Batches(Protocol):
    """The interface through which a runner uses the batches of a node. `ockam.actors.node.Node` implements it.

    Inside a batch, the node collects messages for its workers. When the batch ends, each worker handles all its
    messages in one run.
    """

    def batch(self) -> AbstractContextManager[None]:
        """Opens a batch, a context manager: all workers that get messages inside the batch run once, when the
        batch ends."""
        ...

    def at_batch_end(self, function: Callable[[], None]) -> None:
        """Call the function after the open batch has ended. If no batch is open, call the function at once."""
        ...


class NoBatches:
    """The implementation of `Batches` for a runner without a node: `at_batch_end` calls each function at once."""

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def at_batch_end(self, function: Callable[[], None]) -> None:
        function()


class Completions:
    """Counts the outstanding operations of a runner, and completes operations by calling their `on_done`.

    An operation is outstanding from its submission until its `on_done` has returned. Must be used in the trio
    thread only.

    `on_done` must not raise. If it raises, the code that submitted the operation has a mistake: the exception is logged
    and counted in `callback_failures`, and the other operations of the batch are still completed.
    Invariant: `outstanding` is the number of operations for which `admit` was called and that are not yet completed.
    """

    def __init__(self, batches: Batches) -> None:
        self.outstanding = 0
        self.failed = 0
        self.callback_failures = 0
        self.closed = False
        self._abandoned = False
        self._batches = batches
        self._idle: trio.Event | None = None

    def admit(self) -> None:
        """Count one more outstanding operation. Raises StorageClosed if the runner is closed."""
        if self.closed:
            raise StorageClosed("the storage is closed; start the node again")
        self.outstanding += 1

    def complete(self, operations: list[Operation]) -> None:
        """Call `on_done` of each operation, and count the operations as completed.

        operations: operations that are done or have an `error`.
        """
        self.failed += sum(operation.error is not None for operation in operations)
        try:
            # One batch for all of them: a connection that gets the answers of many operations sends them as one piece.
            with self._batches.batch():
                for operation in operations:
                    if self._abandoned:
                        break
                    try:
                        operation.on_done(operation)
                    except Exception:
                        self._note_failure(operation)
        except Exception:
            # A worker of the node raised: the workers run at the end of the batch.
            self._note_failure(operations[0])
        # Count after the calls, so that every `on_done` has been called when `wait_idle` returns.
        if not self._abandoned:
            self.outstanding -= len(operations)
            if not self.outstanding:
                self._wake_idle()

    def abandon(self) -> None:
        """Forget all outstanding operations, as if the process were killed: after this call, no `on_done` is called."""
        self._abandoned = True
        self.closed = True
        self.outstanding = 0
        self._wake_idle()

    async def wait_idle(self) -> None:
        """Wait until no operation is outstanding."""
        while self.outstanding:
            if self._idle is None:
                self._idle = trio.Event()
            await self._idle.wait()

    def _note_failure(self, operation: Operation) -> None:
        self.callback_failures += 1
        logger.exception("callback_failed", operation=type(operation).__name__)

    def _wake_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None
