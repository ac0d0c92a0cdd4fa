"""The worker: an actor with an address, to which the node hands runs of messages, one run at a time.

A worker never blocks and never awaits. It starts anything that takes time (a commit, a read, a timer) and is called
back at its end; until then it may `pause` its mailbox. So a worker costs no task, a thousand workers can take part in
one commit, and the whole node can run in virtual time. A worker does not know by which way its messages come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, Protocol

from ockam.address import Address
from ockam.message import Message, reply_to
from ockam.protocol import error_payload

P = ParamSpec("P")


class Context(Protocol):
    """The calls that a worker may make to its node. Valid until the worker stops."""

    @property
    def address(self) -> Address:
        """The worker's first address, which is the return route of its messages."""
        ...

    def send(self, message: Message) -> bool:
        """Route a message; False if no worker or transport took it, which the node counts."""
        ...

    def send_run(self, messages: Iterable[Message]) -> None:
        """Route many messages; those for one worker arrive there as one run."""
        ...

    def pause(self) -> None:
        """Get no more messages until `resume`; the mailbox keeps them."""
        ...

    def resume(self) -> None:
        """Get messages again."""
        ...

    def guard(self, function: Callable[P, None]) -> Callable[P, None]:
        """The same function, to be called back from outside: an exception in it counts as a crash of this worker."""
        ...

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call the function once after the delay, unless the worker has stopped by then."""
        ...


class Worker:
    """The base of all workers. Override `handle` for one message at a time, or `receive` for a run at a time."""

    context: Context

    def started(self) -> None:
        """Called when `context` is set, before the first message."""

    def stopped(self) -> None:
        """Called when no more messages follow: free everything that this worker holds."""

    def receive(self, run: Sequence[Message]) -> None:
        """Handle messages, oldest first. An exception makes the node restart the worker."""
        for position, message in enumerate(run):
            try:
                self.handle(message)
            except Exception as error:
                raise HandlingFailed(position) from error

    def handle(self, message: Message) -> None:
        """Handle one message. This default refuses it: any peer can send messages to a worker that expects none."""
        self.reply(message, error_payload("nobody here takes messages"))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        """The answer to the sender of `message` when this worker has failed on it; None for no answer."""
        return None

    def reply(self, message: Message, payload: bytes) -> None:
        """Answer under the address that the sender asked, so that it does not see another alias."""
        self.context.send(reply_to(message, message.onward_route[0], payload))


class HandlingFailed(Exception):
    """The worker failed on one message of a run; the messages behind it are still to be handled."""

    def __init__(self, position: int) -> None:
        super().__init__(f"message {position} of the run")
        self.position = position


WorkerFactory = Callable[[], Worker]
"""Makes the worker, at first and after each crash: state that must survive a crash does not live in the worker."""
