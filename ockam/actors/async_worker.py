"""AsyncWorker: the base class of actors that await. Each actor has a trio task, which ends and restarts with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache

import structlog
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from ockam.actors.address import Route
from ockam.actors.cell import Cell
from ockam.actors.mailbox import Life
from ockam.actors.message import Message
from ockam.actors.worker import ASK_TIMEOUT_S, Ended, Worker
from ockam.errors import CallbackExpected
from ockam.protocol import ERROR, error_payload, failed_payload

RUN_MESSAGES_MAX = 64
"""The most messages that a worker takes out of its mailbox at once. Other tasks run before it takes the next ones."""
CALLED = ("started", "stopped", "receive", "handle", "failure_payload", "denied_payload", "child_ended", "demand")
AWAITED = ("run", "handle")

logger = structlog.get_logger(__name__)


class AsyncWorker(Worker):
    """A worker with a task of its own, which handles one message after another. Override `handle`, which gets each
    message, or `run`, which takes the messages by `next_message`.

    If `handle` or `run` raises an exception, the worker has crashed: the sender of the message that it was handling
    gets an `error`. Its `Restarts` say whether it is started again after a crash or the return of `run`, with the
    messages that still wait. When the worker is stopped, its task is cancelled after its children have ended, and the
    senders of all its messages get an `error`. A full mailbox refuses further messages with an `error`."""

    awaits = True
    _unread: list[Message] | None = None
    _handled: Message | None = None
    _task: Task | None = None

    async def run(self) -> None:
        """Handles messages until the worker ends. Override it to acquire what is needed, then call `super().run()`."""
        while True:
            await self.handle(await self.next_message())

    async def handle(self, message: Message) -> None:
        """Handles one message. The default answers with an `error`: any peer can send messages to any worker."""
        self.reply(message, error_payload("nobody here takes messages"))

    async def next_message(self) -> Message:
        """Waits for and returns the next message. The message before it then counts as handled.

        Only one task of the worker may wait at a time; otherwise raises `trio.BusyResourceError`."""
        if self._handled is not None:
            self._handled = None
            self.context.handled()
        while not self._unread:
            if self._task is not None:
                raise trio.BusyResourceError("another task of this worker waits for its next message")
            # If messages wait in the mailbox, the node calls `receive` before `resume` returns.
            self.context.resume()
            if self._unread:
                await trio.lowlevel.checkpoint()
                continue
            self._task = current_task()
            await wait_task_rescheduled(self._cancelled)
        self._handled = self._unread.pop()
        return self._handled

    async def ask(self, route: Route, payload: bytes, timeout_s: float = ASK_TIMEOUT_S) -> Message:
        """Sends a request and returns its answer. Meanwhile this worker takes no other message.

        Raises AskRefused if the answer is an `error` or nobody takes the request, and AskTimedOut."""
        return await self.context.ask(route, payload, timeout_s)

    def send(self, route: Route, payload: bytes) -> bool:
        """Sends a message whose return route is this worker. Returns False if no worker or transport takes it."""
        return self.context.send(Message(route, (self.context.address,), payload))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        # Two workers that fail on every message must not answer each other's errors without end.
        return None if ERROR.is_in(message.payload) else failed_payload(reason)

    def receive(self, run: Sequence[Message]) -> None:
        """Takes messages for the task. The node calls it again only when all of them are handled."""
        self.context.pause()
        self._unread = list(reversed(run))
        if self._task is not None:
            reschedule(self._task)
            self._task = None

    def _cancelled(self, _: object) -> Abort:
        # The cancelled task runs only later. A message that comes before that must not wake it a second time.
        self._task = None
        return Abort.SUCCEEDED


class TaskCell(Cell):
    """The cell of an AsyncWorker: it runs the worker's task.

    Invariant: `_scope` is set while a task runs for the worker, and `_then` is not called before that task has ended.
    """

    __slots__ = ("_scope",)

    run_messages_max = RUN_MESSAGES_MAX

    def start(self) -> None:
        self.mailbox.refuses = True
        # A worker that cannot even start has no task.
        self._scope: trio.CancelScope | None = None
        super().start()
        # A worker that has stopped itself in `started` gets no task, because nobody would end the task.
        if self.life is Life.RUNNING:
            self._scope = trio.CancelScope()
            self._dispatcher.start_task(self._serve)

    @property
    def taken(self) -> int:
        assert isinstance(self.worker, AsyncWorker)
        return len(self.worker._unread or ())

    async def _serve(self) -> None:
        worker, scope = self.worker, self._scope
        assert isinstance(worker, AsyncWorker)
        assert scope is not None
        failure: Exception | None = None
        try:
            with scope:
                # A worker can be stopped before its task has begun.
                if not scope.cancel_called:
                    await worker.run()
        except Exception as error:
            failure = error
        self._scope = None
        handled, worker._handled = worker._handled, None
        self.take_back()
        self.mailbox.handled()
        # The task was told to end, or `run` has returned, or the task has crashed.
        if self._then is not None:
            if failure is not None:
                logger.error("worker_stop_failed", address=str(self.addresses[0]), exc_info=failure)
            if handled is not None:
                self.fail([handled], STOPPED)
            self.go_on()
        elif failure is None:
            self.finish("its run() has returned")
        else:
            self.crash([] if handled is None else [handled], failure)

    def _end(self, life: Life, then: Callable[[], None]) -> None:
        # The worker gets no message any more, though its task goes on until its children have ended. The next worker of
        # this cell gets the messages that this one has not begun to handle.
        self.take_back()
        super()._end(life, then)

    def take_back(self) -> None:
        worker = self.worker
        assert isinstance(worker, AsyncWorker)
        if worker._unread:
            self.mailbox.put_back(worker._unread[::-1])
            worker._unread = None

    def _end_worker(self) -> bool:
        if self._scope is None:
            return super()._end_worker()
        self._scope.cancel()
        return False

    def _gone(self, end: Ended | None) -> None:
        while run := self.mailbox.take_run():
            self.fail(run, STOPPED)
        super()._gone(end)


STOPPED = "the worker has stopped"


@lru_cache(maxsize=256)
def check_functions(kind: type) -> None:
    """Raises CallbackExpected for an async method that the node only calls, or for a plain one that the node awaits."""
    awaited = AWAITED if issubclass(kind, AsyncWorker) else ()
    for name in {*CALLED, *awaited}:
        function = getattr(kind, name, None)
        if function is not None and inspect.iscoroutinefunction(function) != (name in awaited):
            what = "must be an `async def`" if name in awaited else "is an `async def`, which nobody awaits"
            raise CallbackExpected(f"{kind.__qualname__}.{name} {what}; a worker that awaits derives from AsyncWorker")
