"""How operations get from trio to the database and back: the seam between the node and its storage.

`ThreadRunner` serves a node; `storage.inline_runner.InlineRunner` does the same without threads, for a
simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self

import msgspec
import structlog
import trio

from storage.arrow_thread import ArrowRead, ArrowThread
from storage.contract import Operation
from storage.database import Database
from storage.delivery import Deliver, Delivery
from storage.session import SqliteSession
from storage.thread_runner import ReadingThread, WritingThread

READERS = 2
"""Reading threads: one more than a long page of one consumer can keep busy."""

logger = structlog.get_logger(__name__)


class RunnerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner did since it started. Times in seconds.

    commits: transactions, each with at least one sync; operations: those committed; rows: messages in them.
    reads: operations that read, done or failed. bulk_pages, bulk_rows: read in bulk, and the messages in them.
    failed: operations handed back with an error, of either kind; callback_failures: `on_done` that raised.
    writes_waiting, reads_waiting: in the queues now; outstanding: submitted and not yet handed back.
    wal_pages: in the write-ahead log at the last checkpoint.
    failure: why nothing is written any more, or None.
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
    """Takes operations in the trio thread and calls their `on_done` there, after the commit or the failure.

    Writes are done in the order of submission, and their `on_done` are called in that order. A read sees
    every write whose `on_done` was called before it was submitted; among themselves reads have no order.
    An operation is done and handed back whatever becomes of the task that submitted it.
    """

    def submit_write(self, operation: Operation) -> None:
        """Raises StorageClosed."""
        ...

    def submit_read(self, operation: Operation) -> None:
        """Raises StorageClosed."""
        ...

    def submit_bulk(self, operation: ArrowRead) -> None:
        """A read like any other, done beside them; where that is not possible its error is ArrowUnavailable.

        Raises StorageClosed.
        """
        ...

    async def wait_idle(self) -> None:
        """Until everything submitted has been handed back."""
        ...

    async def aclose(self) -> None:
        """Do and hand back what was submitted, then close. Safe to repeat; cancellation does not stop it."""
        ...

    def statistics(self) -> RunnerStatistics: ...


class ThreadRunner:
    """A Runner on one writing thread and `readers` reading threads.

    Made and used in the trio thread. It leaves the database open when it is closed. Close it with `aclose`,
    or use it as an async context manager; where a trio run ends without, the threads do what was submitted
    and end too.
    """

    def __init__(
        self,
        database: Database,
        *,
        deliver: Deliver | None = None,
        soon: Callable[[Callable[[], None]], None] | None = None,
        readers: int = READERS,
    ) -> None:
        """deliver: see `Delivery`. soon: calls a function when nothing more is to be submitted just now, so that all
        that was is one transaction; without it the writing thread is woken by each submission. So it is by what the
        `on_done` of a lone operation submits: the answers made after that need not be waited for.

        Raises StorageError where a connection cannot be made.
        """
        assert readers > 0, "somebody has to read"
        self._soon = soon
        self._waking = False
        self._lone = False
        self._database = database
        self._delivery = Delivery(deliver)
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._reads: SimpleQueue[Operation | None] = SimpleQueue()
        sessions: list[SqliteSession] = []
        try:
            sessions.append(database.session())
            sessions += [database.read_session() for _ in range(readers)]
        except BaseException:
            for session in sessions:
                session.close()
            raise
        self._writer = WritingThread(sessions[0], self._hand_over)
        self._readers = [
            ReadingThread(number, session, self._reads, self._hand_over)
            for number, session in enumerate(sessions[1:], 1)
        ]
        self._arrow: ArrowThread | None = None
        for thread in (self._writer, *self._readers):
            thread.start()
        trio.lowlevel.spawn_system_task(self._end_with_trio)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def submit_write(self, operation: Operation) -> None:
        self._delivery.count_in()
        self._writer.submit(operation)
        if self._soon is None or self._lone:
            self._writer.wake_up()
        elif not self._waking:
            self._waking = True
            self._soon(self._wake_writer)

    def submit_read(self, operation: Operation) -> None:
        self._delivery.count_in()
        self._reads.put(operation)

    def submit_bulk(self, operation: ArrowRead) -> None:
        self._delivery.count_in()
        if self._arrow is None:
            self._arrow = ArrowThread(self._database.path, self._hand_over, lambda: self._writer.rows)
            self._arrow.start()
        self._arrow.submit(operation)

    def save_room(self, tight: bool) -> None:
        """Keep the write-ahead log short, and copied into the file, while the disk has little room left."""
        self._writer.save_room(tight)

    async def wait_idle(self) -> None:
        await self._delivery.wait_idle()

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            if self._delivery.closed:
                await self._ended.wait()
                return
            self._delivery.closed = True
            await self.wait_idle()
            self._stop_reading()
            for reader in (*self._readers, *((self._arrow,) if self._arrow else ())):
                await trio.to_thread.run_sync(reader.join)
            self._writer.stop()
            await trio.to_thread.run_sync(self._writer.join)
            if self._writer.failure is not None:
                self._database.distrust()
            self._ended.set()

    def statistics(self) -> RunnerStatistics:
        writer, delivery = self._writer, self._delivery
        return RunnerStatistics(
            commits=writer.commits,
            operations=writer.operations,
            rows=writer.rows,
            reads=sum(reader.operations for reader in self._readers),
            bulk_pages=self._arrow.pages if self._arrow else 0,
            bulk_rows=self._arrow.rows if self._arrow else 0,
            failed=delivery.failed,
            callback_failures=delivery.callback_failures,
            writes_waiting=writer.waiting,
            reads_waiting=self._reads.qsize(),
            outstanding=delivery.outstanding,
            commit_s_last=writer.commit_s_last,
            commit_s_total=writer.commit_s_total,
            commit_s_max=writer.commit_s_max,
            checkpoints=writer.checkpoints,
            checkpoint_failures=writer.checkpoint_failures,
            checkpoint_s_last=writer.checkpoint_s_last,
            wal_pages=writer.wal_pages,
            failure=None if writer.failure is None else str(writer.failure),
        )

    def _wake_writer(self) -> None:
        self._waking = False
        self._writer.wake_up()

    def _hand_over(self, operations: list[Operation]) -> None:
        """In a storage thread: have the trio thread hand them back. After the run nobody is left to tell."""
        try:
            self._token.run_sync_soon(self._hand_back, operations)
        except trio.RunFinishedError:
            logger.warning("nobody_to_tell", operations=len(operations))

    def _hand_back(self, operations: list[Operation]) -> None:
        self._lone = len(operations) == 1
        try:
            self._delivery.hand_back(operations)
        finally:
            self._lone = False

    async def _end_with_trio(self) -> None:
        """Where nobody closes this runner, end its threads with the trio run, so that the process can end."""
        try:
            await self._ended.wait()
        finally:
            if not self._delivery.closed:
                self._delivery.closed = True
                self._stop_reading()
                self._writer.stop()

    def _stop_reading(self) -> None:
        for _ in self._readers:
            self._reads.put(None)
        if self._arrow is not None:
            self._arrow.stop()
