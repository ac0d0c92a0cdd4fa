"""LocalStream: one stream-partition of this node, as the tasks of mirrors change and read it.
Its worker makes every change, so that pushes, pulls and truncations see it (`stream_service.workers.stream`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from stream_node.fleet.mirror.errors import MirrorError
from stream_service.mirror_operations import AnyChange, StreamChange, load_history
from stream_service.mirror_rows import MirrorRow
from stream_service.names import stream_address
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.stream import StreamWorker
from stream_storage.contract import Do, Operation, Session
from stream_storage.history import History

T = TypeVar("T")
Made = TypeVar("Made", bound=Operation)

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

    async def change(
        self, work: Callable[[Session, AnyChange], T], look: Callable[[], None] = lambda: None
    ) -> StreamChange[T]:
        """Makes one change, and returns its operation. Raises StorageError, MirrorError; then it may have been made.
        work: makes the change. look: called right before the change begins."""
        made: list[StreamChange[T]] = []
        ended = trio.Event()

        def then(operation: StreamChange[T]) -> None:
            made.append(operation)
            ended.set()

        # 1. Begin, as soon as the worker does nothing else.
        deadline_s = trio.current_time() + PATIENCE_S
        while True:
            worker = self.get_worker()
            look()
            if worker.change(work, then):
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

    async def write(self, work: Callable[[Session], T]) -> T:
        """Does what writes, but does not change this stream. Raises StorageError."""
        return await do(self.directory.storage.submit_write, work)

    async def read(self, work: Callable[[Session], T]) -> T:
        return await do(self.directory.storage.submit_read, work)

    async def get_history(self) -> History:
        bounds = self.get_worker().bounds
        if not bounds.history:
            return bounds.learn_history(await self.write(partial(load_history, stream_id=bounds.stream_id)))
        return bounds.history


async def do(submit: Callable[[Operation], None], work: Callable[[Session], T]) -> T:
    """Calls a function in a transaction of its own, and returns its result. Raises StorageError."""
    return (await completed(lambda done: submit(Do(work, done)))).result


async def completed(begin: Callable[[Callable[[Made], None]], None]) -> Made:
    """Waits until an operation is completed. Raises its StorageError.
    begin: submits the operation, whose `on_done` is the argument."""
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
