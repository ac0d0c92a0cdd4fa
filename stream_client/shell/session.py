"""What all parts of one client share: the core, and the shell that does its I/O and its waiting.

The client's own logic (`client`, `streams`, `publisher`, `reader`, `consumer`, …) is written once, as coroutines over
`Shell`. The async shell suspends in them; the blocking shell does its I/O inside them, and they never suspend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

from ockam.address import Route
from ockam.protocol import Protocol as WireProtocol
from stream_client.arguments import encoded
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import answer_of
from stream_client.core.requests import Call, Waiting
from stream_client.errors import ClientError, RequestTimeout
from stream_client.shell.contact import no_contact

Q = TypeVar("Q")
A = TypeVar("A")

Framing: TypeAlias = Literal["head", "legacy", "auto"]
"""The framing to speak; "auto" says hello as the head framing does, and without an answer speaks legacy."""

OnLink: TypeAlias = Callable[[ClientError | None], None]
"""Told why there is no connection to the node any more, or no way to its services; and None when there is one again."""

READ_BYTES_MAX = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
AUTO_WAIT_S = 0.3
"""How long "auto" waits for an answer to its hello, which is what a legacy node costs; head nodes answer at once."""
AUTO_WAIT_S_MAX = 2.0
"""The same, after a connection that brought nothing: a head node far away would else be taken for a legacy one."""
ANSWER_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 2.0
"""What is unanswered for one to two of these is asked again; answers come within milliseconds, or after a failed disk
within the node's `error_delay_s`."""


class Shell(Protocol):
    """Sockets, time and waiting, as one of the shells does them."""

    async def wait(self, waiting: Waiting, timeout_s: float | None = None) -> None:
        """Return when it is done, or the time is over."""
        ...

    async def give_way(self) -> None:
        """Let what is to be sent go out, and what has come be read, without waiting for any of it."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after that delay, or later where nobody waits for anything; what is returned prevents it.

        Raises what ended the client.
        """
        ...

    def now_s(self) -> float:
        """A clock that never jumps back and counts the time a machine sleeps, where the system has one."""
        ...


class Session:
    """One client's core and shell.

    answer_timeout_s: how long a request may be without its answer; None: for ever. has_rich_pull: whether the node has
    answered a `node/stream_pull/1`.
    """

    def __init__(self, address: str, core: ClientCore, shell: Shell, answer_timeout_s: float | None) -> None:
        self.address = address
        self.core = core
        self.shell = shell
        self.answer_timeout_s = answer_timeout_s
        self.has_rich_pull = False

    async def finished(self, waiting: Waiting, timeout_s: float | None) -> None:
        """Wait until it is done. Raises its error, and RequestTimeout."""
        if not waiting.done:
            await self.shell.wait(waiting, timeout_s)
        if waiting.error is not None:
            raise waiting.error
        if not waiting.done:
            if self.core.asks_route and not self.core.service_route.reached:
                raise no_contact(self.address, self.core)
            state = "has not answered" if self.core.connection.wire is not None else "could not be reached"
            raise RequestTimeout(f"{self.address} {state} for {timeout_s:g} s")

    async def answered(self, call: Call, wait_s: float = 0.0) -> Call:
        """The call, answered. wait_s: how long the node was allowed to hold the answer. Raises its error."""
        timeout_s = None if self.answer_timeout_s is None else self.answer_timeout_s + wait_s
        try:
            await self.finished(call, timeout_s)
        finally:
            self.core.forget(call)
        return call

    async def ask(self, target: Route | PartitionHandle, protocol: WireProtocol[Q, A], request: Q) -> A:
        """The one answer to a request. Raises RequestRefused, RequestTimeout, UnexpectedAnswer."""
        call = self.core.call(target, encoded(protocol, request))
        return answer_of(await self.answered(call), protocol)

    async def ask_all(
        self, targets: Sequence[Route | PartitionHandle], protocol: WireProtocol[Q, A], requests: Sequence[Q]
    ) -> list[A]:
        """The answers to many requests, all on their way at once. Raises the first error."""
        calls = [
            self.core.call(target, encoded(protocol, request))
            for target, request in zip(targets, requests, strict=True)
        ]
        return await self.answers_of(calls, protocol)

    async def answers_of(self, calls: Sequence[Call], protocol: WireProtocol[Q, A]) -> list[A]:
        """The one answer to each of these, which are under way. Raises the first error."""
        try:
            return [answer_of(await self.answered(call), protocol) for call in calls]
        finally:
            for call in calls:
                self.core.forget(call)
