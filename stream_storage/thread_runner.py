"""The storage runner of a node. One thread writes, a few threads read, and the trio thread never waits for the disk.

The path of a write, from the worker that submits it to the confirm:

    trio thread                                   writing thread
    1. submit_write: append to the queue
    2. _wake_writer: once, at the end    ──────▶  3. run: take everything that waits
       of the node's batch                        4. commit_batch: one transaction, one sync
    6. Completions.complete: open a      ◀──────  5. _post: hand over the whole batch
       batch, call each `on_done`
    7. `on_done` makes the confirms, which are sent when the batch ends

A read takes the same path through a reading thread, but alone, without steps 2 and 4. On a fast disk, a short write
that is alone needs no other thread: at step 2 the trio thread lets all other tasks have their turn, and then does steps
4 and 6 itself (`_commit_short_ones`). One commit of more than a millisecond ends that, until enough short ones have
followed each other (`ShortCommits`).

No timer delays a commit. While the writing thread commits, new operations collect in the queue. Together they become
the next transaction, so a slower disk leads to larger transactions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import structlog
import trio

from stream_storage.contract import Engine, Operation, Session
from stream_storage.errors import ReadLate, StorageError
from stream_storage.runner import Batches, Completions, NoBatches, RunnerStatistics
from stream_storage.sqlite.bulk.arrow_thread import ArrowRead, ArrowThread, ArrowUnavailable
from stream_storage.storage_threads import ReadingThread, WritingThread

READING_THREADS = 2
"""If a long page of one consumer keeps one thread busy, the other thread serves all other reads."""
READ_S_MAX = 4.0
"""The longest wait for a read of the node's own reports. Monitoring programs wait for ten seconds."""

COMMIT_S_MAX = 0.001
"""A commit that takes longer is a long one. The trio thread serves no connection while it commits."""
SHORT_COMMITS_MIN = 16
"""The number of consecutive short commits after which the trio thread commits by itself."""

OperationT = TypeVar("OperationT", bound=Operation)

logger = structlog.get_logger(__name__)


class ShortCommits:
    """Judges whether the disk is fast enough for the trio thread to wait for its commits. Invariant: `_short` is the
    number of short commits since the last long one."""

    __slots__ = ("_short",)

    def __init__(self) -> None:
        self._short = 0

    @property
    def are_usual(self) -> bool:
        return self._short >= SHORT_COMMITS_MIN

    def note(self, seconds: float) -> None:
        self._short = self._short + 1 if seconds <= COMMIT_S_MAX else 0


class ThreadRunner(trio.abc.AsyncResource):
    """A `stream_storage.runner.Runner` with one writing thread and several reading threads, for the trio thread.

    Close it with `aclose`, or use it as an async context manager; the database stays open. If the trio run ends first,
    the threads still do all submitted operations before they end.

    tell_no_room: called when the ballast, a file that reserves room for deletes, was emptied; it must refuse pushes.

    Invariant: while `_wake_planned` is true, the open batch calls `_wake_writer` at its end. `_writes` is the number of
        writes that are submitted and not completed. The trio thread commits only if it is 1, so operations are
        completed in the order of submission."""

    def __init__(
        self,
        database: Engine,
        *,
        batches: Batches | None = None,
        reading_threads: int = READING_THREADS,
        times_appends: bool = False,
    ) -> None:
        """Opens the sessions and starts the threads. batches: the node that submits the operations. times_appends:
        whether to time the commits of appends. Raises StorageError if a connection cannot be opened or a thread cannot
        be started."""
        assert reading_threads > 0, "a runner needs a thread that reads"
        self._batches: Batches = NoBatches() if batches is None else batches
        self._completions = Completions(self._batches)
        self._wake_planned = False
        self._completes_one = False
        self.tell_no_room: Callable[[], None] = lambda: None
        self._writes = 0
        self._short = ShortCommits()
        self._short_wanted = False
        self._short_parking = trio.lowlevel.ParkingLot()
        self._short_scope = trio.CancelScope()
        self._database = database
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._reads: SimpleQueue[Operation | None] = SimpleQueue()
        self._late: set[Operation] = set()
        # All sessions are opened before any thread starts: if one cannot be opened, no thread has to be stopped.
        sessions: list[Session] = []
        try:
            sessions.append(database.session())
            sessions += [database.read_session() for _ in range(reading_threads)]
        except BaseException:
            for session in sessions:
                session.close()
            raise
        post_written = partial(self._post, complete=self._complete_written)
        self.writer = WritingThread(sessions[0], database.upkeep(sessions[0]), post_written, times_appends)
        self._readers = [
            ReadingThread(number, session, self._reads, self._post) for number, session in enumerate(sessions[1:], 1)
        ]
        self._arrow: ArrowThread | None = None
        threads = (self.writer, *self._readers)
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:
            # Threads that run would keep the process from ending.
            self._stop_reading()
            self.writer.stop()
            for thread, session in zip(threads, sessions, strict=True):
                if thread.ident is not None:
                    thread.join()
                session.close()
            raise StorageError(
                f"no thread for the storage: {error}; raise the limit on threads, then start again"
            ) from error
        # System tasks live as long as the trio run, whatever happens to the task that made this runner.
        trio.lowlevel.spawn_system_task(self._end_with_trio)
        trio.lowlevel.spawn_system_task(self._commit_short_ones)

    def submit_write(self, operation: Operation) -> None:
        self._completions.admit()
        self._writes += 1
        self.writer.submit(operation)
        if self._completes_one and not self._is_for_here(operation):
            # This operation was submitted by the `on_done` of an operation that was alone in its transaction, so no
            # other operations are likely to join it. The writing thread commits it while the trio thread makes the
            # answers to the operation before.
            self.writer.wake_up()
        elif not self._wake_planned:
            # The rest of the batch may submit more operations, for other streams. All of them should become one
            # transaction.
            self._wake_planned = True
            self._batches.at_batch_end(self._wake_writer)

    def submit_read(self, operation: Operation) -> None:
        self._completions.admit()
        self._reads.put(operation)

    async def read(self, make: Callable[[Callable[[Any], None]], OperationT]) -> OperationT:
        """Runs a read on the reading thread, and returns it when it is done. make: returns the operation; its
        argument is the `on_done`. Raises StorageError, and its subclass ReadLate if the read takes longer than
        READ_S_MAX seconds. While an earlier read is late, it raises ReadLate at once."""
        if self._late:
            raise ReadLate(READ_S_MAX)
        ended = trio.Event()

        def done(operation: OperationT) -> None:
            self._late.discard(operation)
            ended.set()

        operation = make(done)
        self.submit_read(operation)
        with trio.move_on_after(READ_S_MAX):
            await ended.wait()
        # The operation cannot be called back. Until it ends, no further read is made to wait behind it.
        if not ended.is_set():
            self._late.add(operation)
            raise ReadLate(READ_S_MAX)
        if operation.error is not None:
            raise operation.error
        return operation

    def submit_bulk(self, operation: ArrowRead) -> None:
        self._completions.admit()
        if self._database.path is None:
            operation.error = ArrowUnavailable("this node has no database file that another process could read")
            self._post([operation])
            return
        if self._arrow is None:
            arrow = ArrowThread(self._database.path, self._post, lambda: self.writer.rows)
            try:
                arrow.start()
            except RuntimeError as error:
                # A process may have no room for one more thread now. The next read tries again.
                operation.error = StorageError(f"no thread for bulk reads: {error}; ask again, or pull")
                self._post([operation])
                return
            self._arrow = arrow
        self._arrow.submit(operation)

    async def wait_idle(self) -> None:
        await self._completions.wait_idle()

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            if self._completions.closed:
                # Another task is closing the runner already. Both tasks return when the threads have ended.
                await self._ended.wait()
                return
            self._completions.closed = True
            await self.wait_idle()
            # End the reading threads first: the writing thread empties the log when it ends, and an open reader would
            # prevent that.
            self._stop_reading()
            for reader in (*self._readers, *((self._arrow,) if self._arrow else ())):
                await _wait_ended(reader)
            self.writer.stop()
            await _wait_ended(self.writer)
            if self.writer.failure is not None:
                # After a fatal error the next open must check the file, as after a crash.
                self._database.distrust()
            self._short_scope.cancel()
            self._ended.set()

    @property
    def is_writing(self) -> bool:
        return self.writer.is_alive() and self.writer.failure is None

    def statistics(self) -> RunnerStatistics:
        writer, completions, upkeep = self.writer, self._completions, self.writer.upkeep
        return RunnerStatistics(
            commits=writer.commits,
            operations=writer.operations,
            rows=writer.rows,
            reads=sum(reader.operations for reader in self._readers),
            bulk_pages=self._arrow.pages if self._arrow else 0,
            bulk_rows=self._arrow.rows if self._arrow else 0,
            failed=completions.failed,
            callback_failures=completions.callback_failures,
            writes_waiting=writer.waiting,
            reads_waiting=self._reads.qsize(),
            outstanding=completions.outstanding,
            commit_s_last=writer.commit_s_last,
            commit_s_total=writer.commit_s_total,
            commit_s_max=writer.commit_s_max,
            checkpoints=upkeep.checkpoints,
            checkpoint_failures=upkeep.checkpoint_failures,
            checkpoint_s_last=upkeep.checkpoint_s_last,
            wal_pages=upkeep.wal_pages,
            failure=None if writer.failure is None else str(writer.failure),
        )

    def _is_for_here(self, operation: Operation) -> bool:
        """Whether the trio thread commits this operation: passing a short one to another thread takes longer."""
        return self._writes == 1 and self._database.is_local and self._short.are_usual and operation.is_short()

    def _wake_writer(self) -> None:
        self._wake_planned = False
        # The batch has ended, so the queue has everything that can be one transaction.
        alone = self.writer.first_waiting
        if alone is not None and self._is_for_here(alone):
            self._short_wanted = True
            self._short_parking.unpark()
        else:
            self.writer.wake_up()

    async def _commit_short_ones(self) -> None:
        with self._short_scope:
            while True:
                if self._short_wanted:
                    # The completion of the operation before has submitted this one.
                    # Every other task that is ready has its turn first.
                    await trio.lowlevel.checkpoint()
                else:
                    await self._short_parking.park()
                self._short_wanted = False
                # If another task has submitted an operation, the writing thread commits both together. It may also be
                # at work still, with an operation that this one must not overtake.
                written = self.writer.commit_here() if self._writes == 1 else None
                if written is None:
                    self.writer.wake_up()
                elif written:
                    self._complete_written(written)

    def _complete_written(self, operations: list[Operation]) -> None:
        self._short.note(self.writer.commit_s_last)
        # Pushes are refused before the answers go out: their senders must not take the room that was just given up.
        if self.writer.gave_up_ballast:
            self.writer.gave_up_ballast = False
            self.tell_no_room()
        # Writes are counted before the calls of `on_done`. A write that such a call submits is committed here if alone.
        self._writes -= len(operations)
        self._complete(operations)

    def _post(self, operations: list[Operation], complete: Callable[[list[Operation]], None] | None = None) -> None:
        try:
            self._token.run_sync_soon(complete or self._complete, operations)
        except trio.RunFinishedError:
            # The trio run ended before the runner was closed: no task is left that waits for these operations.
            logger.warning("nobody_to_tell", operations=len(operations))

    def _complete(self, operations: list[Operation]) -> None:
        self._completes_one = len(operations) == 1
        try:
            self._completions.complete(operations)
        finally:
            self._completes_one = False

    async def _end_with_trio(self) -> None:
        """Ends the threads if the trio run ends before the runner is closed: else the process could not end."""
        try:
            await self._ended.wait()
        finally:
            if not self._completions.closed:
                self._completions.closed = True
                self._stop_reading()
                self.writer.stop()

    def _stop_reading(self) -> None:
        for _ in self._readers:
            self._reads.put(None)
        if self._arrow is not None:
            self._arrow.stop()


async def _wait_ended(thread: Thread) -> None:
    try:
        await trio.to_thread.run_sync(thread.join)
    except RuntimeError:
        # There is no room for a thread that waits. No operation is outstanding, so this call is over soon.
        thread.join()
