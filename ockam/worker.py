"""The actor: an object with an address that is handed runs of messages, one run at a time.

A worker never blocks and never awaits. What takes time (a commit, a read, a timer) is started, and its end comes back
as a call; until then the worker may `pause` its mailbox. That is why a worker costs no task, a thousand of them can
take part in one commit, and the whole node runs in virtual time. It does not know where its messages come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, Protocol

from ockam.address import Address
from ockam.message import Message, reply_to
from ockam.protocol import error_payload

P = ParamSpec("P")


class Context(Protocol):
    """What the node gives a worker: its place in the world. Valid until the worker stops."""

    @property
    def address(self) -> Address:
        """The worker's first address; the way back that its messages carry."""
        ...

    def send(self, message: Message) -> bool:
        """Route a message; False where nobody took it (counted by the node)."""
        ...

    def send_run(self, messages: Iterable[Message]) -> None:
        """Route many messages; what goes to one place arrives there as one run."""
        ...

    def pause(self) -> None:
        """Hand over no more messages until `resume`; the mailbox keeps them."""
        ...

    def resume(self) -> None: ...

    def guard(self, function: Callable[P, None]) -> Callable[P, None]:
        """The same function for others to call back; an exception in it counts as this worker's crash."""
        ...

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call back once after the delay, unless the worker has stopped by then."""
        ...


class Worker:
    """Base of all workers. Override `handle` (one message) or, where runs pay, `receive`; else messages are refused."""

    context: Context

    def started(self) -> None:
        """`context` is set; messages follow."""

    def stopped(self) -> None:
        """No more messages follow; give back what is held."""

    def receive(self, run: Sequence[Message]) -> None:
        """Handle messages, oldest first. An exception makes the node restart the worker."""
        for position, message in enumerate(run):
            try:
                self.handle(message)
            except Exception as error:
                raise HandlingFailed(position) from error

    def handle(self, message: Message) -> None:
        """A worker that is called and not written to: any peer can do so all the same, and must not make it fail."""
        self.reply(message, error_payload("nobody here takes messages"))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        """What the sender of `message` is told when this worker failed on it; None says nothing."""
        return None

    def reply(self, message: Message, payload: bytes) -> None:
        """Answer under the address that was asked, so that aliases stay invisible."""
        self.context.send(reply_to(message, message.onward_route[0], payload))


class HandlingFailed(Exception):
    """One message of a run made the worker fail; those behind it are still to be handled."""

    def __init__(self, position: int) -> None:
        super().__init__(f"message {position} of the run")
        self.position = position


WorkerFactory = Callable[[], Worker]
"""Makes a worker anew, at first and after each crash: what must survive a crash does not live in the worker."""
