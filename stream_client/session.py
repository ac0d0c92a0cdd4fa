"""ClientSession: sends requests to the workers of one node and waits for the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ockam.protocol import Protocol as WireProtocol
from stream_client.core.calls import Call, answer_of
from stream_client.core.pushes import PendingResult
from stream_client.requests import Requests, Target

if TYPE_CHECKING:
    from stream_client.shell.async_shell import AsyncShell

Q = TypeVar("Q")
A = TypeVar("A")


class Connected(Protocol):
    """The type of an object with a session: a `StreamClient`, or a `Stream` of it."""

    session: ClientSession


class ClientSession(Requests):
    """The inner half of a `StreamClient`: sends requests to the workers of one node and waits for the answers.

    core, shell: the client's logic without I/O, and its I/O.
    """

    shell: AsyncShell

    async def ask(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> A:
        """Sends a request to a worker and returns the decoded answer. Raises ClientErrors."""
        return answer_of(await self.answered(self.call(target, protocol, request)), protocol)

    async def ask_all(self, target: Target, protocol: WireProtocol[Q, A], requests: Sequence[Q]) -> list[A]:
        """Sends all requests at once and returns the decoded answers in order. Raises the first error."""
        return await self.answers_of([self.call(target, protocol, each) for each in requests], protocol)

    def notify(self, service: str, payload: bytes) -> None:
        """Sends a message that the service does not answer. The message can be lost if the connection is lost."""
        self.core.notify(service, payload)
        # blocking only: self.shell.yield_control()

    async def answered(self, call: Call, wait_s: float = 0.0) -> Call:
        """Waits until the call has its answer, and returns the call. Raises its error. `wait_s`: the seconds by which
        the node may delay its answer; they are added to the timeout."""
        timeout_s = None if self.answer_timeout_s is None else self.answer_timeout_s + wait_s
        try:
            await self.finished(call, timeout_s)
        finally:
            self.core.calls.forget(call)
        return call

    async def answers_of(self, calls: Sequence[Call], protocol: WireProtocol[Q, A]) -> list[A]:
        try:
            return [answer_of(await self.answered(call), protocol) for call in calls]
        finally:
            for call in calls:
                self.core.calls.forget(call)

    async def finished(self, waiting: PendingResult, timeout_s: float | None) -> None:
        """Waits until `waiting` is done, at most `timeout_s` seconds (None: no limit). Raises its error, or that which
        `silence` returns."""
        if not waiting.done:
            await self.shell.wait(waiting, timeout_s)
        if waiting.error is not None:
            raise waiting.error.with_traceback(None)
        if not waiting.done:
            raise self.silence(timeout_s)
