"""The interface between the trio thread of a node and its storage, and the code that all runners share:
`stream_storage.thread_runner` for a node, `MemoryRunner` for a node in memory,
`tests/support/storage/inline_runner.py` for simulations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

import msgspec
import structlog
import trio

from stream_storage.commit import apply_read, commit_batch, fail_all
from stream_storage.contract import Do, Operation, Session
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.sqlite.bulk.arrow_thread import ArrowRead, ArrowUnavailable

logger = structlog.get_logger(__name__)

T = TypeVar("T")
Made = TypeVar("Made", bound=Operation)


class RunnerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a runner since its start. Times are in seconds."""

    commits: int = 0  # committed transactions, each with at least one sync
    operations: int = 0  # committed operations
    rows: int = 0  # messages in these operations
    reads: int = 0  # finished read operations, including failed ones
    bulk_pages: int = 0  # pages that bulk reads returned
    bulk_rows: int = 0  # messages in these pages
    failed: int = 0  # reads and writes that ended with an error
    callback_failures: int = 0  # `on_done` calls that raised
    writes_waiting: int = 0
    reads_waiting: int = 0
    outstanding: int = 0  # submitted operations whose `on_done` was not called yet
    commit_s_last: float = 0.0
    commit_s_total: float = 0.0
    commit_s_max: float = 0.0
    checkpoints: int = 0
    checkpoint_failures: int = 0
    checkpoint_s_last: float = 0.0
    wal_pages: int = 0  # pages in the write-ahead log at the last checkpoint
    failure: str | None = None  # why the runner does not write any more; None if it writes


class Runner(Protocol):
    """The interface of a runner, which does operations and completes them: calls their `on_done` in the trio thread.

    Writes are done and completed in the order of submission. Reads are done in any order, and see every write that was
    completed before they were submitted. An operation is done and completed even if the task that submitted it was
    cancelled. The `submit_…` methods raise StorageClosed."""

    def submit_write(self, operation: Operation) -> None: ...

    def submit_read(self, operation: Operation) -> None: ...

    def submit_bulk(self, operation: ArrowRead) -> None:
        """Makes a child process read one page as Arrow, or fails the read with ArrowUnavailable."""

    async def wait_idle(self) -> None: ...

    async def aclose(self) -> None:
        """Completes every submitted operation, then closes the runner, uninterrupted by cancellation. Safe to
        repeat."""

    def statistics(self) -> RunnerStatistics: ...


class Batches(Protocol):
    """The interface of a node (`ockam.actors.node.Node`) for batches: inside one, the node collects messages, and at
    its end, each worker handles all of its messages in one run."""

    def batch(self) -> AbstractContextManager[None]: ...

    def at_batch_end(self, function: Callable[[], None]) -> None:
        """Calls the function after the open batch has ended, or at once if no batch is open."""


class NoBatches:
    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def at_batch_end(self, function: Callable[[], None]) -> None:
        function()


class Completions:
    """Counts the outstanding operations of a runner, and completes them. For the trio thread only.

    Invariant: `outstanding` is the number of operations for which `admit` was called and whose `on_done` has not
        returned."""

    def __init__(self, batches: Batches) -> None:
        self.outstanding = 0
        self.failed = 0
        self.callback_failures = 0
        self.closed = False
        self._batches = batches
        self._idle: trio.Event | None = None

    def admit(self) -> None:
        """Counts one more outstanding operation. Raises StorageClosed if the runner is closed."""
        if self.closed:
            raise StorageClosed("the storage is closed; start the node again")
        self.outstanding += 1

    def complete(self, operations: list[Operation]) -> None:
        """Calls `on_done` of each operation, which is done or has an `error`."""
        self.failed += sum(operation.error is not None for operation in operations)
        # An `on_done` that raises is a mistake of its author. It is logged and counted, and the others are still
        # called.
        try:
            # One batch for all of them: a connection that gets the answers of many operations sends them as one piece.
            with self._batches.batch():
                for operation in operations:
                    try:
                        operation.on_done(operation)
                    except Exception:
                        self._note_failure(operation)
        except Exception:
            # A worker of the node raised: the workers run at the end of the batch.
            self._note_failure(operations[0])
        # Count after the calls, so that every `on_done` has been called when `wait_idle` returns.
        self.outstanding -= len(operations)
        if not self.outstanding:
            self.wake_idle()

    async def wait_idle(self) -> None:
        while self.outstanding:
            if self._idle is None:
                self._idle = trio.Event()
            await self._idle.wait()

    def _note_failure(self, operation: Operation) -> None:
        self.callback_failures += 1
        logger.exception("callback_failed", operation=type(operation).__name__)

    def wake_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None


async def do(submit: Callable[[Operation], None], work: Callable[[Session], T]) -> T:
    return (await completed(lambda done: submit(Do(work, done)))).result


async def completed(begin: Callable[[Callable[[Made], None]], None]) -> Made:
    """Waits until an operation is completed. Raises its error. begin: takes a callback, and submits the operation."""
    found: list[Made] = []
    ended = trio.Event()

    def done(operation: Made) -> None:
        found.append(operation)
        ended.set()

    begin(done)
    await ended.wait()
    if found[0].error is not None:
        raise found[0].error
    return found[0]


class MemoryRunner:
    """A `stream_storage.runner.Runner` that does all operations in the trio thread, with one session. Like another
    thread, it completes no operation before its submission returns."""

    def __init__(self, session: Session, batches: Batches) -> None:
        self._session = session
        self._completions = Completions(batches)
        self._soon = trio.lowlevel.current_trio_token().run_sync_soon
        self._writes: list[Operation] = []
        self._failure: StorageError | None = None

    def submit_write(self, operation: Operation) -> None:
        self._completions.admit()
        # All writes that are submitted until `_write` runs become one transaction.
        if not self._writes:
            self._soon(self._write)
        self._writes.append(operation)

    def submit_read(self, operation: Operation) -> None:
        self._completions.admit()
        self._soon(self._read, operation)

    def submit_bulk(self, operation: ArrowRead) -> None:
        self._completions.admit()
        operation.error = ArrowUnavailable("this node has no database file that another process could read")
        refused: list[Operation] = [operation]
        self._soon(self._completions.complete, refused)

    async def wait_idle(self) -> None:
        await self._completions.wait_idle()

    async def aclose(self) -> None:
        self._completions.closed = True
        with trio.CancelScope(shield=True):
            await self.wait_idle()
        self._session.close()

    def statistics(self) -> RunnerStatistics:
        completions = self._completions
        return RunnerStatistics(failed=completions.failed, outstanding=completions.outstanding)

    def _write(self) -> None:
        batch, self._writes = self._writes, []
        if self._failure is None:
            self._failure = commit_batch(self._session, batch)
        if self._failure is not None:
            fail_all(batch, self._failure)
        self._completions.complete(batch)

    def _read(self, operation: Operation) -> None:
        apply_read(self._session, operation)
        self._completions.complete([operation])
