"""Helpers of the tests of the runners: a runner of either kind, a database with streams, operations to watch."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from stream_storage.contract import Append, Operation, Session
from stream_storage.runner import Batches, Runner
from stream_storage.sqlite.database import Database
from stream_storage.thread_runner import ThreadRunner
from tests.stream_storage.storage_samples import Call, writing
from tests.support.storage.inline_runner import InlineRunner


@asynccontextmanager
async def open_runner(kind: str, database: Database, batches: Batches | None = None) -> AsyncIterator[Runner]:
    """A runner of the kind "thread" or "inline", closed at the end."""
    if kind == "thread":
        async with ThreadRunner(database, batches=batches) as runner:
            yield runner
        return
    async with trio.open_nursery() as nursery:
        inline = InlineRunner(database, nursery, batches=batches)
        yield inline
        await inline.aclose()


class Bench:
    """A database with some streams, and a list of the completed operations, in order."""

    def __init__(self, directory: Path, streams: int = 1) -> None:
        self.directory = directory
        self.database = Database.open(directory)
        with writing(self.database) as session:
            ensure = session.log.ensure_stream
            self.ids = [ensure("s", number, 1).stream_id for number in range(streams)]
        self.done: list[Operation] = []

    def close(self) -> None:
        self.database.close()

    def append(self, first_index: int, *data: bytes, stream: int = 0) -> Append:
        return Append(self.ids[stream], first_index, 5, data, on_done=self.done.append)

    def call(self, function: Callable[[Session], Any]) -> Call:
        return Call(function, self.done.append)

    def errors(self) -> list[type[Exception] | None]:
        return [None if operation.error is None else type(operation.error) for operation in self.done]


class ManualBatches:
    """The batches of a node, ended by the test.

    later: the calls that wait for the end of a batch. completed: for each batch that the runner opened, by how much the
    result of `count` grew inside it.
    """

    def __init__(self, count: Callable[[], int] = lambda: 0) -> None:
        self.later: list[Callable[[], None]] = []
        self.completed: list[int] = []
        self._count = count

    @contextmanager
    def batch(self) -> Iterator[None]:
        before = self._count()
        yield
        self.completed.append(self._count() - before)

    def at_batch_end(self, function: Callable[[], None]) -> None:
        self.later.append(function)

    def end(self) -> None:
        """End the batch: make the one call that waits for it."""
        (function,) = self.later
        self.later.clear()
        function()


class Gate:
    """An operation's function that keeps its storage thread busy until `release`."""

    def __init__(self) -> None:
        self._entered = threading.Event()
        self._released = threading.Event()

    def __call__(self, session: Session) -> None:
        self._entered.set()
        assert self._released.wait(30)

    async def wait_entered(self) -> None:
        assert await trio.to_thread.run_sync(self._entered.wait, 30)

    def release(self) -> None:
        self._released.set()
