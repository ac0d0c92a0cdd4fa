"""Cell: one worker of a node, with its addresses and its mailbox. A cell restarts its worker after a crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import ParamSpec, Protocol

import msgspec
import structlog
import trio

from ockam.actors.address import Address, Route
from ockam.actors.mailbox import RUN_MESSAGES_MAX, Life, Mailbox
from ockam.actors.message import HERE, Message, Origin, reply_to, signed
from ockam.actors.worker import ASK_TIMEOUT_S, Ended, Restarts, Worker, WorkerFactory
from ockam.errors import CallbackExpected, WorkerEnded

RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 10.0
STABLE_AFTER_S = 60.0
"""If a worker ran this long without a crash, its restart delay begins with RESTART_DELAY_S_MIN again."""

FAILED = "the worker failed; it is restarted"
FAILED_FOR_GOOD = "the worker failed; it is not restarted"

logger = structlog.get_logger(__name__)

P = ParamSpec("P")


class Dispatcher(Protocol):
    """The part of a node that its cells and its requests use."""

    def deliver(self, message: Message) -> Mailbox | None: ...

    def is_registered(self, address: Address) -> bool: ...

    async def give_way(self) -> None: ...

    def send(self, message: Message) -> bool: ...

    def send_run(self, messages: Iterable[Message]) -> None: ...

    async def ask(
        self, route: Route, payload: bytes, timeout_s: float = ASK_TIMEOUT_S, origin: Origin = HERE
    ) -> Message: ...

    def batch(self) -> AbstractContextManager[None]: ...

    def queue(self, cell: Cell) -> None: ...

    def start_cell(
        self, addresses: Sequence[Address], factory: WorkerFactory, restarts: Restarts, parent: Cell | None
    ) -> Address: ...

    def end_cell(self, cell: Cell, end: Ended | None = None) -> None: ...

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None: ...

    def at_batch_end(self, function: Callable[[], None]) -> None: ...

    def start_task(self, function: Callable[[], Awaitable[object]]) -> None: ...

    def count_drop(self, reason: str) -> None: ...

    def count(self, what: str) -> None: ...


class WorkerState(msgspec.Struct, frozen=True):
    """A worker as the node sees it, with its children.

    kind: the name of its class. state: "running"; "restarting" (it waits for its next start); or "stopped" (it waits
    until its children and its task have ended). waiting: how many messages it has not begun to handle.
    restarts: how often it was started again. reason: why it has ended last; "" if it never has."""

    address: Address
    kind: str
    state: str
    waiting: int
    restarts: int
    reason: str
    children: tuple[WorkerState, ...]


class Cell:
    """One worker of a node, with its addresses, its mailbox and its children. It decides by its `Restarts` what follows
    the end of the worker: a new worker in the same cell, or the end of the cell.

    queued: whether the cell is in the node's queue of workers to run.
    paused: True while the worker gets no messages, because it has called `pause` or is not running.
    refuses: whether messages are refused while the mailbox is at its limit.
    parent: the cell that has started this one. children: the cells that this one has started and that have not ended.
    restarts: how often the worker was started again. reason: why it ended last.

    Invariant: `_then` is set from the order to end the worker until its children and the worker have ended, and is
    called after that. `_is_started` says whether there is a worker object to end."""

    __slots__ = (
        "_crashed_at_s",
        "_crashes",
        "_dispatcher",
        "_factory",
        "_is_started",
        "_restarted_at_s",
        "_restarts",
        "_then",
        "addresses",
        "children",
        "context",
        "life",
        "mailbox",
        "parent",
        "paused",
        "queued",
        "reason",
        "refuses",
        "restarts",
        "worker",
    )

    run_messages_max = RUN_MESSAGES_MAX

    def __init__(
        self,
        dispatcher: Dispatcher,
        addresses: tuple[Address, ...],
        factory: WorkerFactory,
        worker: Worker,
        restarts: Restarts,
        parent: Cell | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._factory = factory
        self._restarts = restarts
        self.addresses = addresses
        self.mailbox = Mailbox()
        self.life = Life.STOPPED
        self.queued = self.refuses = self._is_started = False
        self.paused = True
        self._crashes = self.restarts = 0
        self._crashed_at_s = 0.0
        self._restarted_at_s: list[float] | None = None
        self._then: Callable[[], None] | None = None
        self.reason = ""
        self.parent = parent
        self.children: dict[Cell, None] | None = None
        self.worker = worker
        self.context = CellContext(dispatcher, self)

    def start(self) -> None:
        # If the parent's messages have the origin of somebody else, the child's messages have the same origin.
        if self.parent is not None and self.worker.origin is HERE and self.parent.worker.origin is not HERE:
            self.worker.origin = self.parent.worker.origin
        # Each worker object gets a new context. That of a crashed worker has ended, so its timers call nothing.
        self.context = CellContext(self._dispatcher, self)
        self.worker.context = self.context
        self.life = Life.RUNNING
        self.refuses = self.mailbox.refuses
        self.paused = False
        self._is_started = True
        self.worker.started()
        self.make_ready()

    def stop(self, end: Ended | None = None) -> None:
        """Ends the worker, after its children. end: passed to the parent's `child_ended`; None: that is not called."""
        self._end(Life.STOPPED, lambda: self._gone(end))

    @property
    def taken(self) -> int:
        """The number of messages that the worker has taken and not begun to handle."""
        return 0

    def take_back(self) -> None:
        """Puts the messages that the worker has taken and not begun to handle back into its mailbox."""

    def state(self) -> WorkerState:
        children = tuple(child.state() for child in self.children or ())
        kind, waiting = type(self.worker).__name__, len(self.mailbox) + self.taken
        return WorkerState(self.addresses[0], kind, self.life.value, waiting, self.restarts, self.reason, children)

    def make_ready(self) -> None:
        if not self.queued and not self.paused and len(self.mailbox):
            self.queued = True
            self._dispatcher.queue(self)

    def crash(self, failed: Sequence[Message], error: BaseException) -> None:
        """Answers the senders of the failed messages, and restarts the worker. The delay doubles with each crash."""
        self._dispatcher.count("crashes")
        # A worker that has ended already, by an earlier failure in the same call or because it has freed its address,
        # must not end once more: each end would start it again.
        if self.context.has_ended:
            logger.error("late_call_failed", address=str(self.addresses[0]), exc_info=error)
            self.fail(failed, FAILED if self.life is Life.RESTARTING else FAILED_FOR_GOOD)
            return
        delay_s = self._restart_delay_s(error)
        logger.error("worker_crashed", address=str(self.addresses[0]), restart_in_s=delay_s, exc_info=error)
        # The failed worker encodes the answers and needs its context for this. So the context ends after the answers.
        self.fail(failed, FAILED if delay_s is not None else FAILED_FOR_GOOD)
        self._conclude(delay_s, repr(error), error)

    def finish(self, reason: str) -> None:
        """Ends the worker, which has asked for its end."""
        self._conclude(self._restart_delay_s(None), reason, None)

    def fail(self, messages: Sequence[Message], reason: str) -> None:
        for message in messages:
            self._dispatcher.count_drop("failed")
            # The failed worker itself makes the answer, and can fail again.
            try:
                payload = self.worker.failure_payload(message, reason)
                if payload is not None and message.return_route:
                    self._dispatcher.send(reply_to(message, message.onward_route[0], payload))
            except Exception as error:
                logger.error("failure_reply_failed", address=str(self.addresses[0]), exc_info=error)

    def _is_restarted_after(self, error: BaseException | None) -> bool:
        return self._restarts.when == "always" or (self._restarts.when == "on_crash" and error is not None)

    def _restart_delay_s(self, error: BaseException | None) -> float | None:
        """Returns the time after which the worker is started again; None: it is not started again."""
        if not self._is_restarted_after(error):
            return None
        now_s = trio.current_time()
        # Only a worker with a limit needs the times of its restarts, and no more of them than the limit.
        if self._restarts.most is not None:
            begin_s = now_s - self._restarts.within_s
            recent = [at_s for at_s in self._restarted_at_s or () if at_s > begin_s]
            if len(recent) >= self._restarts.most:
                return None
            self._restarted_at_s = [*recent, now_s]
        # After a long time without a crash, the delays begin with the shortest one again.
        if now_s - self._crashed_at_s > STABLE_AFTER_S:
            self._crashes = 0
        self._crashed_at_s = now_s
        self._crashes += 1
        return float(min(RESTART_DELAY_S_MIN * 2 ** (self._crashes - 1), RESTART_DELAY_S_MAX))

    def _conclude(self, delay_s: float | None, reason: str, error: BaseException | None) -> None:
        """Starts the worker again after the delay. If `delay_s` is None, ends the cell."""
        self.reason = reason
        if delay_s is not None:
            self._end(Life.RESTARTING, lambda: self._dispatcher.call_later(delay_s, self._restart))
            return
        gave_up = self._is_restarted_after(error)
        if gave_up:
            logger.error("worker_given_up", address=str(self.addresses[0]), restarts=self.restarts, reason=reason)
            self._dispatcher.count("given_up")
        self._dispatcher.end_cell(self, Ended(self.addresses[0], reason, error, gave_up))

    def _end(self, life: Life, then: Callable[[], None]) -> None:
        """Ends the children, then the worker, and then calls `then`: at once, unless a task has to end first."""
        self.context.has_ended = True
        self.life = life
        self.refuses = True
        self.paused = True
        self._then = then
        for child in reversed(list(self.children or ())):
            self._dispatcher.end_cell(child)
        self.go_on()

    def go_on(self) -> None:
        """Ends the worker if so ordered and its children have ended. Called when a child or the task has ended."""
        if self._then is None or self.children or (self._is_started and not self._end_worker()):
            return
        # A worker that frees its own address in `stopped` has ended the cell, and is not started again.
        then, self._then = self._then, None
        if then is not None:
            then()

    def _end_worker(self) -> bool:
        """Ends the worker object. Returns False if its task must end first; the task then calls `go_on`."""
        self._is_started = False
        try:
            self.worker.stopped()
        except Exception as error:
            logger.error("worker_stop_failed", address=str(self.addresses[0]), exc_info=error)
        return True

    def _gone(self, end: Ended | None) -> None:
        self.mailbox.release()
        parent = self.parent
        if parent is None or parent.children is None:
            return
        del parent.children[self]
        if parent.life is Life.RUNNING and end is not None:
            parent.context.guard(parent.worker.child_ended)(end)
        else:
            parent.go_on()

    def _restart(self) -> None:
        if self.life is not Life.RESTARTING:
            return
        self.restarts += 1
        self._dispatcher.count("restarts")
        # A factory that fails counts as a crash of the worker that it should have made.
        self.context = CellContext(self._dispatcher, self)
        try:
            worker = self._factory()
            if worker.awaits is not self.worker.awaits:
                raise CallbackExpected("the factory makes now a Worker, now an AsyncWorker")
            self.worker = worker
            self.start()
        except Exception as error:
            self.crash((), error)


class CellContext:
    """The context of one worker object (`ockam.actors.worker.Context`). After its end, `pause` and `resume` do nothing,
    and functions that wait in `call_later` are not called."""

    __slots__ = ("_cell", "_dispatcher", "ask", "has_ended", "send", "send_run")

    def __init__(self, dispatcher: Dispatcher, cell: Cell) -> None:
        self._dispatcher = dispatcher
        # The node's own methods are used without a wrapper, because all answers pass here.
        self.send = dispatcher.send
        self.send_run = dispatcher.send_run
        self.ask = dispatcher.ask
        origin = cell.worker.origin
        if origin is not HERE:
            self.send = lambda message: dispatcher.send(signed(message, origin))
            self.send_run = lambda messages: dispatcher.send_run([signed(each, origin) for each in messages])
            self.ask = partial(dispatcher.ask, origin=origin)
        self._cell = cell
        self.has_ended = False

    @property
    def address(self) -> Address:
        return self._cell.addresses[0]

    @property
    def children(self) -> list[Address]:
        return [child.addresses[0] for child in self._cell.children or ()]

    def pause(self) -> None:
        if not self.has_ended:
            self._cell.paused = True

    def resume(self) -> None:
        if not self.has_ended:
            cell = self._cell
            cell.paused = False
            if not cell.queued and len(cell.mailbox):
                with self._dispatcher.batch():
                    cell.make_ready()

    def handled(self) -> None:
        # The messages that the gate has refused count as handled together with the last message.
        self._cell.mailbox.handled(1 if self._cell.taken else None)

    def guard(self, function: Callable[P, None]) -> Callable[P, None]:
        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:
                # An error in a late callback of an ended worker must not restart its successor.
                if self.has_ended:
                    logger.error("late_call_failed", address=str(self.address), exc_info=error)
                else:
                    self._cell.crash((), error)

        return call

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        guarded = self.guard(function)
        self._dispatcher.call_later(delay_s, lambda: None if self.has_ended else guarded())

    def start_child(self, addresses: Sequence[Address], factory: WorkerFactory, restarts: Restarts) -> Address:
        if self.has_ended:
            raise WorkerEnded(f"{self.address} has ended, and starts no child")
        return self._dispatcher.start_cell(addresses, factory, restarts, self._cell)

    def stop_child(self, address: Address) -> None:
        for child in list(self._cell.children or ()):
            if address in child.addresses:
                self._dispatcher.end_cell(child)

    def stop(self, reason: str) -> None:
        # A worker is not ended in the middle of a list of messages: it is still handling the others.
        self.pause()
        self._dispatcher.at_batch_end(lambda: None if self.has_ended else self._cell.finish(reason))
