"""LocalStream: one stream-partition of this node, as the tasks of mirrors change and read it.
Its worker makes every change, so that pushes, pulls and truncations see it (`stream_service.workers.stream`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from stream_node.fleet.mirror.errors import MirrorError
from stream_service.mirror_operations import LoadHistory, StreamChange
from stream_service.mirror_rows import MirrorRow
from stream_service.names import stream_address
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.stream import StreamWorker
from stream_storage.contract import Operation
from stream_storage.history import History

Made = TypeVar("Made", bound=Operation)
Change = TypeVar("Change", bound=StreamChange)
Done = Callable[[Any], None]

BUSY_RETRY_S = 0.005
"""The pause before a change is tried again while the worker does something else."""
LOOK_S = 1.0
PATIENCE_S = 30.0
"""The longest wait until the worker is ready for a change."""


class LocalStream:
    def __init__(self, directory: StreamDirectory, identity: tuple[str, int]) -> None:
        self.directory = directory
        self.identity = identity
        self.address = stream_address(*identity)

    def get_worker(self) -> StreamWorker:
        """Returns the worker of the stream. Raises MirrorError if there is none that a mirror can have."""
        worker = self.directory.node.find_worker(self.address)
        if not isinstance(worker, StreamWorker) or worker.identity != self.identity:
            raise MirrorError(f"this node has no stream {self.identity[0]!r} that can be a mirror")
        return worker

    @property
    def next_index(self) -> int:
        return self.get_worker().bounds.next_index

    @property
    def first_index(self) -> int:
        return self.get_worker().bounds.first_index

    @property
    def row(self) -> MirrorRow | None:
        return self.get_worker().bounds.mirror

    async def change(self, make: Callable[[int, Done], Change]) -> Change:
        """Makes one change, and returns its operation. Raises StorageError, MirrorError; then it may have been made.
        make: returns the operation, from the id of the stream and the callback of the operation."""
        made: list[Change] = []
        ended = trio.Event()

        def make_once(done: Done) -> Change:
            made.append(make(worker.bounds.stream_id, done))
            return made[0]

        # 1. Begin, as soon as the worker does nothing else.
        deadline_s = trio.current_time() + PATIENCE_S
        while True:
            worker = self.get_worker()
            if worker.change(make_once, lambda _: ended.set()):
                break
            if trio.current_time() > deadline_s:
                raise MirrorError(f"the stream {self.identity[0]!r} is busy with something else for {PATIENCE_S:g} s")
            await trio.sleep(BUSY_RETRY_S)
        # 2. Wait. A worker that crashed meanwhile calls nothing.
        while not ended.is_set():
            with trio.move_on_after(LOOK_S):
                await ended.wait()
            if not ended.is_set() and self.directory.node.find_worker(self.address) is not worker:
                raise MirrorError(f"the worker of {self.identity[0]!r} has stopped during a change")
        (operation,) = made
        if operation.error is not None:
            raise operation.error
        return operation

    async def write(self, make: Callable[[Done], Made]) -> Made:
        """Does an operation that writes, but does not change this stream. Raises StorageError."""
        return await completed(self.directory.storage.submit_write, make)

    async def read(self, make: Callable[[Done], Made]) -> Made:
        return await completed(self.directory.storage.submit_read, make)

    async def get_history(self) -> History:
        bounds = self.get_worker().bounds
        if not bounds.history:
            loaded = await self.write(lambda done: LoadHistory(bounds.stream_id, done))
            return bounds.learn_history(loaded.history)
        return bounds.history


async def completed(submit: Callable[[Operation], None], make: Callable[[Done], Made]) -> Made:
    """Submits an operation and waits until it is completed. Raises its StorageError."""
    ended = trio.Event()
    operation = make(lambda _: ended.set())
    submit(operation)
    await ended.wait()
    if operation.error is not None:
        raise operation.error
    return operation
