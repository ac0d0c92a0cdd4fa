"""Worker: the base class of actors. The node calls a worker with a list of its messages, called a run.

A worker never blocks and never awaits. For work that takes time, it passes a callback, and may `pause` its mailbox
until the callback is called. So a thousand workers can share one commit, and the whole node can run in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, Protocol

from ockam.actors.address import Address
from ockam.actors.message import Message, reply_to
from ockam.protocol import error_payload

P = ParamSpec("P")


class Context(Protocol):
    """The interface through which a worker calls its node, until the worker stops."""

    @property
    def address(self) -> Address: ...

    def send(self, message: Message) -> bool:
        """Sends a message. Returns False if no worker or transport took the message."""
        ...

    def send_run(self, messages: Iterable[Message]) -> None:
        """Sends many messages. A worker that gets several of these messages gets them in one call."""
        ...

    def pause(self) -> None:
        """Stops the delivery of messages until `resume` is called. Until then, they stay in the worker's mailbox."""
        ...

    def resume(self) -> None:
        """Starts the delivery of messages to this worker again, after `pause`."""
        ...

    def guard(self, function: Callable[P, None]) -> Callable[P, None]:
        """Returns a callback that calls the function. An exception of the function counts as a crash of this worker."""
        ...

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Calls the function once after the delay, unless the worker has stopped or crashed before."""
        ...


class Worker:
    """The base class of all workers. Override `handle` for single messages, or `receive` for lists of messages."""

    context: Context

    def started(self) -> None:
        """Runs when the worker starts, before its first message. `context` is already set."""

    def stopped(self) -> None:
        """Runs when the worker stops or has crashed. Override it to free the worker's resources."""

    def receive(self, run: Sequence[Message]) -> None:
        """Handles a list of messages, oldest first. If this method raises an exception, the worker is restarted."""
        for position, message in enumerate(run):
            try:
                self.handle(message)
            except Exception as error:
                raise HandlingFailed(position) from error

    def handle(self, message: Message) -> None:
        """Handles one message. The default answers with an `error`: any peer can send messages to any worker."""
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


class HandlingFailed(Exception):
    """Error: a worker failed on one message of a list, at this position from 0. The later ones were not handled."""

    def __init__(self, position: int) -> None:
        super().__init__(f"message {position} of the run")
        self.position = position


WorkerFactory = Callable[[], Worker]
"""Creates a worker, at the start and after each crash. State that must survive a crash is stored elsewhere."""
