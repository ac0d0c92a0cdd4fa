"""Cell: one worker of a node, with its addresses and its mailbox. A cell restarts its worker after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import ParamSpec, Protocol

import structlog
import trio

from ockam.actors.address import Address
from ockam.actors.mailbox import Life, Mailbox
from ockam.actors.message import Message, reply_to
from ockam.actors.worker import WorkerFactory

RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 10.0
STABLE_AFTER_S = 60.0
"""If a worker ran this long without a crash, its restart delay begins with RESTART_DELAY_S_MIN again."""

logger = structlog.get_logger(__name__)

P = ParamSpec("P")


class Dispatcher(Protocol):
    def send(self, message: Message) -> bool: ...

    def send_run(self, messages: Iterable[Message]) -> None: ...

    def batch(self) -> AbstractContextManager[None]: ...

    def queue(self, cell: Cell) -> None: ...

    def unregister(self, address: Address) -> None: ...

    def crash(self, cell: Cell, failed: Sequence[Message], error: BaseException) -> None: ...

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None: ...

    def count_drop(self, reason: str) -> None: ...


class Cell:
    """One worker of a node, with its addresses and its mailbox. After a crash, the cell creates a new worker.

    queued: whether the cell is in the node's queue of workers to run.
    paused: True while the worker gets no messages, because it has called `pause` or is not running."""

    __slots__ = (
        "_crashed_at_s",
        "_crashes",
        "_dispatcher",
        "_factory",
        "_restarts",
        "addresses",
        "context",
        "life",
        "mailbox",
        "paused",
        "queued",
        "worker",
    )

    def __init__(
        self, dispatcher: Dispatcher, addresses: tuple[Address, ...], factory: WorkerFactory, *, restarts: bool = True
    ) -> None:
        self._dispatcher = dispatcher
        self._factory = factory
        self._restarts = restarts
        self.addresses = addresses
        self.mailbox = Mailbox()
        self.life = Life.STOPPED
        self.queued = False
        self.paused = True
        self._crashes = 0
        self._crashed_at_s = 0.0
        self.worker = factory()
        self.context = CellContext(dispatcher, self)

    def start(self) -> None:
        # Each worker object gets a new context. That of a crashed worker has ended, and calls no function that waits.
        self.context = CellContext(self._dispatcher, self)
        self.worker.context = self.context
        self.life = Life.RUNNING
        self.paused = False
        self.worker.started()
        self.make_ready()

    def stop(self) -> None:
        self._end(Life.STOPPED)
        self.mailbox.release()

    def make_ready(self) -> None:
        if not self.queued and not self.paused and len(self.mailbox):
            self.queued = True
            self._dispatcher.queue(self)

    def crash(self, failed: Sequence[Message], error: BaseException) -> None:
        """Answers the senders of the failed messages, and restarts the worker. The delay doubles with each crash."""
        # A worker that must not restart, because its state cannot be made again, is gone with its addresses.
        if not self._restarts:
            logger.error("worker_crashed", address=str(self.addresses[0]), exc_info=error)
            self.fail(failed, "the worker failed; it is not restarted")
            self._dispatcher.unregister(self.addresses[0])
            return
        # After a long time without a crash, the delays begin with the shortest one again.
        now_s = trio.current_time()
        if now_s - self._crashed_at_s > STABLE_AFTER_S:
            self._crashes = 0
        self._crashed_at_s = now_s
        delay_s = min(RESTART_DELAY_S_MIN * 2**self._crashes, RESTART_DELAY_S_MAX)
        self._crashes += 1
        logger.error("worker_crashed", address=str(self.addresses[0]), restart_in_s=delay_s, exc_info=error)
        # The failed worker encodes the answers and needs its context for this. So the context ends after the answers.
        self.fail(failed, "the worker failed; it is restarted")
        self._end(Life.RESTARTING)
        self._dispatcher.call_later(delay_s, self._restart)

    def fail(self, messages: Sequence[Message], reason: str) -> None:
        for message in messages:
            self._dispatcher.count_drop("failed")
            # The failed worker itself makes the answer, and can fail again.
            try:
                payload = self.worker.failure_payload(message, reason)
            except Exception as error:
                logger.error("failure_reply_failed", address=str(self.addresses[0]), exc_info=error)
                continue
            if payload is not None and message.return_route:
                self._dispatcher.send(reply_to(message, message.onward_route[0], payload))

    def _end(self, life: Life) -> None:
        self.context.end()
        self.life = life
        self.paused = True
        try:
            self.worker.stopped()
        except Exception as error:
            logger.error("worker_stop_failed", address=str(self.addresses[0]), exc_info=error)

    def _restart(self) -> None:
        if self.life is not Life.RESTARTING:
            return
        try:
            self.worker = self._factory()
            self.start()
        except Exception as error:
            self.crash((), error)


class CellContext:
    """The context of one worker object (`ockam.actors.worker.Context`). After its end, `pause` and `resume` do nothing,
    and functions that wait in `call_later` are not called."""

    __slots__ = ("_cell", "_dispatcher", "_ended", "send", "send_run")

    def __init__(self, dispatcher: Dispatcher, cell: Cell) -> None:
        self._dispatcher = dispatcher
        # The node's own methods, because all answers pass here.
        self.send = dispatcher.send
        self.send_run = dispatcher.send_run
        self._cell = cell
        self._ended = False

    @property
    def address(self) -> Address:
        return self._cell.addresses[0]

    def end(self) -> None:
        self._ended = True

    def pause(self) -> None:
        if not self._ended:
            self._cell.paused = True

    def resume(self) -> None:
        if not self._ended:
            cell = self._cell
            cell.paused = False
            if not cell.queued and len(cell.mailbox):
                with self._dispatcher.batch():
                    cell.make_ready()

    def guard(self, function: Callable[P, None]) -> Callable[P, None]:
        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:
                # An error in a late callback of an ended worker must not restart its successor.
                if self._ended:
                    logger.error("late_call_failed", address=str(self.address), exc_info=error)
                else:
                    self._dispatcher.crash(self._cell, (), error)

        return call

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        guarded = self.guard(function)
        self._dispatcher.call_later(delay_s, lambda: None if self._ended else guarded())
