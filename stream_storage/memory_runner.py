"""A storage runner without threads, for a database in memory. Simulations have one whose operations take time
(`tests/support/storage/inline_runner.py`)."""

from __future__ import annotations

import trio

from stream_storage.commit import apply_read, commit_batch, fail_all
from stream_storage.contract import Operation, Session
from stream_storage.errors import StorageError
from stream_storage.runner import Batches, Completions, RunnerStatistics
from stream_storage.sqlite.bulk.arrow_thread import ArrowRead, ArrowUnavailable


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
