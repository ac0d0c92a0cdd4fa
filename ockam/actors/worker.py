"""Worker: the base class of actors. The node calls a worker with a list of its messages, called a run.

A worker never blocks and never awaits. For work that takes time, it passes a callback, and may `pause` its mailbox
until the callback is called. So a thousand workers can share one commit, and the whole node can run in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Protocol

import msgspec

from ockam.actors.address import Address, Route
from ockam.actors.message import HERE, Message, Origin, reply_to
from ockam.errors import ChildFailed
from ockam.protocol import ProtocolError, error_payload

if TYPE_CHECKING:
    import trio

P = ParamSpec("P")

ASK_TIMEOUT_S = 10.0
"""How long a request waits for its answer if its sender says nothing else."""
TASKS_MAX = 100
"""The most tasks of one `TaskAnsweringWorker`. A task can last for seconds if it waits for something that hangs."""


class Restarts(msgspec.Struct, frozen=True):
    """When the node starts an ended worker again. The restarted worker has the same addresses and the same mailbox.

    when: "always"; "on_crash" (not after it has stopped by itself); or "never".
    most, within_s: a worker that ends again after `most` restarts within `within_s` seconds is given up: it is
        not started again, and its parent is told (`Worker.child_ended`). None: no limit.

    The first restart comes after 0.1 s; each further one after twice the time, at most 10 s. A worker that has run for
    a minute begins with 0.1 s again."""

    when: Literal["always", "on_crash", "never"] = "always"
    most: int | None = None
    within_s: float = 60.0


ALWAYS = Restarts()
NEVER = Restarts("never")
FEW = Restarts(most=3, within_s=5.0)
"""The default of children: three restarts within five seconds, as in Ockam's and Elixir's supervisors."""


class Ended(msgspec.Struct, frozen=True):
    """The end of a child. address: its first address. reason: why it ended, as text. error: the exception of its crash,
    if it has crashed. gave_up: True if it is not started again because of the limit of its `Restarts`."""

    address: Address
    reason: str
    error: BaseException | None
    gave_up: bool


class Context(Protocol):
    """The interface through which a worker calls its node, until the worker stops."""

    @property
    def address(self) -> Address: ...

    @property
    def children(self) -> list[Address]:
        """The first addresses of the children that have not ended, in the order of their start."""

    def send(self, message: Message) -> bool:
        """Sends a message. Returns False if no worker or transport took the message."""

    def send_run(self, messages: Iterable[Message]) -> None:
        """Sends many messages. A worker that gets several of these messages gets them in one call."""

    def pause(self) -> None:
        """Stops the delivery of messages until `resume` is called. Until then, they stay in the worker's mailbox."""

    def resume(self) -> None:
        """Starts the delivery of messages to this worker again, after `pause`."""

    def handled(self) -> None:
        """Reports that the oldest message taken by an AsyncWorker is handled. It no longer counts for its sender."""

    def guard(self, function: Callable[P, None]) -> Callable[P, None]:
        """Returns a callback that calls the function. An exception of the function counts as a crash of this worker."""

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Calls the function once after the delay, unless the worker has stopped or crashed before."""

    # `Worker` and `AsyncWorker` explain the next methods, under the same names.

    async def ask(self, route: Route, payload: bytes, timeout_s: float = ASK_TIMEOUT_S) -> Message: ...

    def start_child(self, addresses: Sequence[Address], factory: WorkerFactory, restarts: Restarts) -> Address: ...

    def stop_child(self, address: Address) -> None: ...

    def stop(self, reason: str) -> None: ...


class Worker:
    """The base class of all workers. Override `handle` for single messages, or `receive` for lists of messages.

    origin: the origin of the messages that the worker makes; HERE means that they are the node's own. A message that
    the worker only passes on keeps its origin."""

    context: Context
    awaits: ClassVar[bool] = False
    origin: Origin = HERE

    def started(self) -> None:
        """Runs when the worker starts, before its first message. `context` is already set."""

    def stopped(self) -> None:
        """Runs when the worker stops or has crashed. Override it to free the worker's resources."""

    def receive(self, run: Sequence[Message]) -> None:
        """Handles a list of messages, oldest first. If this method raises an exception, the worker has crashed."""
        for position, message in enumerate(run):
            try:
                self.handle(message)
            except Exception as error:
                raise HandlingFailed(position) from error

    def handle(self, message: Message) -> Any:
        """Handles one message; what it returns is not used. The default answers with an `error`, because any peer can
        send messages to any worker."""
        self.reply(message, error_payload("nobody here takes messages"))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        """Returns the answer to a message on which this worker has failed. None means that no answer is sent."""
        return None

    def denied_payload(self, message: Message, reason: str) -> bytes | None:
        """Returns the answer to a message that the gate has refused (`ockam.identity.gate.Gate`). None means no answer.
        Raises ProtocolError if the message is not valid; then no answer is sent."""
        return error_payload(reason)

    def reply(self, message: Message, payload: bytes) -> None:
        """Sends an answer to a message. Its return route is the worker's address to which the message was sent."""
        self.context.send(reply_to(message, message.onward_route[0], payload))

    def start_child(self, addresses: Sequence[Address], factory: WorkerFactory, restarts: Restarts = FEW) -> Address:
        """Starts a child, which ends before this worker when this worker stops or crashes. Returns its first address.

        Call it in `started`, so that a restart of this worker starts its children. Raises AddressInUse, WorkerEnded."""
        return self.context.start_child(addresses, factory, restarts)

    def stop_child(self, address: Address) -> None:
        """Stops a child, without a restart. `child_ended` is not called. Safe to repeat."""
        self.context.stop_child(address)

    def stop(self, reason: str = "stopped by itself") -> None:
        """Stops this worker; its `Restarts` say whether it is started again. reason: for the parent and the status."""
        self.context.stop(reason)

    def child_ended(self, end: Ended) -> None:
        """Runs when a child has ended by itself and is not started again. The default raises ChildFailed for a child
        that was given up, so that this worker crashes, too, and its own parent decides what happens to it."""
        if end.gave_up:
            raise ChildFailed(f"{end.address} was given up: {end.reason}") from end.error


class AnsweringWorker(Worker):
    """A worker that answers every refused request with an `error`. Override `answer`."""

    def answer(self, message: Message) -> None:
        """Answers one request, now or later. Raises ProtocolError if it is not valid or is refused."""
        raise NotImplementedError

    def handle(self, message: Message) -> None:
        try:
            self.answer(message)
        except ProtocolError as error:
            self.reply(message, error_payload(str(error)))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)


class TaskAnsweringWorker(AnsweringWorker):
    """An AnsweringWorker that answers in tasks of a nursery, at most TASKS_MAX at the same time."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._tasks = 0

    def start_task(self, answer: Callable[[], Awaitable[None]]) -> None:
        """Begins a task that answers one request. Raises ProtocolError if too many tasks run."""
        if self._tasks >= TASKS_MAX:
            raise ProtocolError(f"{TASKS_MAX} such requests are being answered; ask again later")
        self._tasks += 1
        self._nursery.start_soon(self._run_task, answer)

    async def _run_task(self, answer: Callable[[], Awaitable[None]]) -> None:
        try:
            await answer()
        finally:
            self._tasks -= 1


class HandlingFailed(Exception):
    """Error: a worker failed on one message of a list, so the later messages were not handled. position: from 0."""

    def __init__(self, position: int) -> None:
        super().__init__(f"message {position} of the run")
        self.position = position


WorkerFactory = Callable[[], Worker]
"""Creates a worker, at its start and at each restart. State that must survive a restart is stored elsewhere."""
