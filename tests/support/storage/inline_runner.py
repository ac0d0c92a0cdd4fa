"""A storage runner without threads, for tests and for simulations of a whole node. Operations take simulated time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from stream_storage.commit import apply_read, commit_batch, fail_all
from stream_storage.contract import Operation, SessionSource
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.runner import Batches, Completions, NoBatches, RunnerStatistics
from stream_storage.sqlite.bulk.arrow_thread import ArrowRead, ArrowUnavailable

Delay = Callable[[], Awaitable[None]]


class KilledCompletions(Completions):
    """Completions that can be abandoned: then no `on_done` is called any more, as if the process were killed."""

    _abandoned = False

    def complete(self, operations: list[Operation]) -> None:
        for operation in operations:
            operation.on_done = partial(self._call, operation.on_done)
        super().complete(operations)
        if self._abandoned:
            self.abandon()

    def abandon(self) -> None:
        self._abandoned = self.closed = True
        self.outstanding = 0
        self.wake_idle()

    def _call(self, on_done: Callable[[Operation], None], operation: Operation) -> None:
        if not self._abandoned:
            on_done(operation)


class InlineRunner:
    """A `stream_storage.runner.Runner` without threads. All waiting writes become one batch: it awaits a delay, commits
    the batch, awaits a second delay, and then calls each `on_done`.

    delay: an async function; None: a `trio.lowlevel.checkpoint`, in which other tasks run but no simulated time passes.
    """

    def __init__(
        self,
        source: SessionSource,
        nursery: trio.Nursery,
        delay: Delay | None = None,
        *,
        batches: Batches | None = None,
    ) -> None:
        self._nursery = nursery
        self._delay: Delay = trio.lowlevel.checkpoint if delay is None else delay
        self._completions = KilledCompletions(NoBatches() if batches is None else batches)
        self._session = source.session()
        self._read_session = source.read_session()
        self._writes: list[Operation] = []
        self._writing = False
        self._failure: StorageError | None = None
        self._ended = False
        self._commits = 0
        self._operations = 0
        self._rows = 0
        self._reads = 0
        self._reading = 0

    def submit_write(self, operation: Operation) -> None:
        self._completions.admit()
        self._writes.append(operation)
        if not self._writing:
            self._writing = True
            self._nursery.start_soon(self._write_waiting)

    def submit_read(self, operation: Operation) -> None:
        self._completions.admit()
        self._reading += 1
        self._nursery.start_soon(self._read, operation)

    def submit_bulk(self, operation: ArrowRead) -> None:
        """Refuses a bulk read with ArrowUnavailable: it needs a child process, and a simulation has none."""
        self._completions.admit()
        operation.error = ArrowUnavailable("this node has no process for bulk reads")
        self._nursery.start_soon(self._refuse, operation)

    async def wait_idle(self) -> None:
        await self._completions.wait_idle()

    async def aclose(self) -> None:
        self._completions.closed = True
        with trio.CancelScope(shield=True):
            await self.wait_idle()
        self._end()

    def crash(self) -> None:
        """Ends the runner as if the process were killed: what is committed stays, and no `on_done` is called any
        more."""
        self._completions.abandon()
        self._writes.clear()
        self._end()

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(
            commits=self._commits,
            operations=self._operations,
            rows=self._rows,
            reads=self._reads,
            failed=self._completions.failed,
            callback_failures=self._completions.callback_failures,
            writes_waiting=len(self._writes),
            reads_waiting=self._reading,
            outstanding=self._completions.outstanding,
            failure=None if self._failure is None else str(self._failure),
        )

    async def _write_waiting(self) -> None:
        try:
            while self._writes:
                batch, self._writes = self._writes, []
                await self._delay()
                if self._ended:
                    return
                self.commit(batch)
                await self._delay()
                if self._ended:
                    return
                self._completions.complete(batch)
            self._writing = False
        except trio.Cancelled:
            self.crash()
            raise

    def commit(self, batch: list[Operation]) -> None:
        if self._failure is None:
            self._failure = commit_batch(self._session, batch)
        if self._failure is not None:
            fail_all(batch, StorageClosed(f"nothing is written any more, since {self._failure}"))
        done = [operation for operation in batch if operation.error is None]
        self._commits += bool(done)
        self._operations += len(done)
        self._rows += sum(operation.row_count() for operation in done)

    async def _read(self, operation: Operation) -> None:
        try:
            await self._delay()
            if self._ended:
                return
            apply_read(self._read_session, operation)
            self._reads += 1
            self._reading -= 1
            await self._delay()
            if self._ended:
                return
            self._completions.complete([operation])
        except trio.Cancelled:
            self.crash()
            raise

    async def _refuse(self, operation: Operation) -> None:
        await self._delay()
        if not self._ended:
            self._completions.complete([operation])

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._read_session.close()
            self._session.close()
