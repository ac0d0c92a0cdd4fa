"""Worker: the base class of actors. The node calls a worker with its messages, one run of messages at a time.

A worker never blocks and never awaits. It starts work that takes time (a commit, a read, a timer) and is called back
when the work has ended; until then it may `pause` its mailbox. So a worker needs no task, a thousand workers can share
one commit, and the whole node can run in virtual time. A worker does not know over which transport its messages
come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, Protocol

from ockam.address import Address
from ockam.message import Message, reply_to
from ockam.protocol import error_payload

P = ParamSpec("P")


class Context(Protocol):
    """The interface through which a worker calls its node. It is valid until the worker stops."""

    @property
    def address(self) -> Address:
        """The worker's first address, which is the return route of its messages."""
        ...

    def send(self, message: Message) -> bool:
        """Sends a message. Returns False if no worker or transport took it; the node counts such messages."""
        ...

    def send_run(self, messages: Iterable[Message]) -> None:
        """Sends many messages. The messages for one worker arrive there as one run."""
        ...

    def pause(self) -> None:
        """Stops the delivery of messages until `resume` is called. They stay in the mailbox."""
        ...

    def resume(self) -> None:
        """Starts the delivery of messages again."""
        ...

    def guard(self, function: Callable[P, None]) -> Callable[P, None]:
        """Wraps a function for use as a callback: if it raises an exception, that counts as a crash of this worker."""
        ...

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Calls the function once after the delay, unless the worker has stopped by then."""
        ...


class Worker:
    """The base class of all workers. Override `handle` to handle single messages, or `receive` to handle whole runs."""

    context: Context

    def started(self) -> None:
        """Called when `context` is set, before the first message."""

    def stopped(self) -> None:
        """Called when the worker gets no more messages. Override it to free the worker's resources."""

    def receive(self, run: Sequence[Message]) -> None:
        """Handles a run of messages, oldest first. If it raises an exception, the node restarts the worker."""
        for position, message in enumerate(run):
            try:
                self.handle(message)
            except Exception as error:
                raise HandlingFailed(position) from error

    def handle(self, message: Message) -> None:
        """Handles one message. The default answers with `error`, because any peer can send messages to any worker."""
        self.reply(message, error_payload("nobody here takes messages"))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        """Returns the payload of the answer to a message that this worker has failed on. None: no answer is sent."""
        return None

    def reply(self, message: Message, payload: bytes) -> None:
        """Answers a message. The return route is the address that the sender used, even if the worker has several."""
        self.context.send(reply_to(message, message.onward_route[0], payload))


class HandlingFailed(Exception):
    """Error: a worker failed on one message of a run. position: its index in the run. The later messages are not
    handled yet."""

    def __init__(self, position: int) -> None:
        super().__init__(f"message {position} of the run")
        self.position = position


WorkerFactory = Callable[[], Worker]
"""A function that creates a worker: at the start, and again after each crash. So state that must survive a crash must
be kept outside the worker."""
