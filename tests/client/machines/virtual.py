"""A client and its node in virtual time, in one thread: the shell answers itself, and the clock jumps when all wait."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar, cast

from ockam.actors.address import Address, local
from ockam.actors.message import Message
from stream_client.client import StreamClient
from stream_client.core.client_core import ClientCore
from stream_client.core.pushes import PendingResult
from stream_client.session import ClientSession
from stream_client.shell.base_shell import BaseShell
from tests.client.machines.far_end import FarEnd
from tests.client.shells import drive

T = TypeVar("T")

Answers: TypeAlias = Iterable[tuple[Address, bytes]]
"""Address that answers, and payload, of each answer to one message."""


class NothingCame(Exception):
    """What was waited for has not come within the patience of the test."""


class Clock:
    """Virtual time, shared by the clients and the node of one test."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._timers: list[tuple[float, int, list[Callable[[], None]]]] = []
        self._numbers = itertools.count()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        cell = [callback]
        heapq.heappush(self._timers, (self.now_s + delay_s, next(self._numbers), cell))
        return cell.clear

    def advance(self, seconds: float) -> None:
        """Stand still for so long: what was due meanwhile is called only then, as after a pause of the process."""
        self.now_s += seconds
        self.run_due()

    def run_due(self) -> None:
        while self._timers and self._timers[0][0] <= self.now_s:
            for callback in heapq.heappop(self._timers)[2]:
                callback()

    def jump(self, until_s: float) -> None:
        """To the next timer, or to that time, whichever is first."""
        self.now_s = max(self.now_s, min(until_s, self._timers[0][0] if self._timers else math.inf))
        self.run_due()


class VirtualShell:
    """Sends what the core has to a function, and gives it the answers. patience_s: how long a call may take at most."""

    is_blocking = False

    def __init__(self, clock: Clock, node: Callable[[Message], Answers], *, patience_s: float = 100.0) -> None:
        self.core = ClientCore()
        self.clock = clock
        self.node = node
        self.patience_s = patience_s
        self._nothing_s = math.inf
        self._far = FarEnd(self.core)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. Raises NothingCame where it waits longer than a test has patience."""
        self._nothing_s = self.clock.now_s + self.patience_s
        return drive(coroutine)

    def client(self, *, answer_timeout_s: float | None = 30.0) -> StreamClient:
        return StreamClient(ClientSession("virtual", self.core, cast("BaseShell", self), answer_timeout_s))

    def exchange(self) -> None:
        """Deliver everything that is under way."""
        while sent := self._far.sent():
            for message in sent:
                for address, payload in self.node(message):
                    self._far.answer(message, payload, address)

    async def wait(self, waiting: PendingResult, timeout_s: float | None = None, *, gathers: bool = False) -> None:
        give_up_s = math.inf if timeout_s is None else self.now_s() + timeout_s
        self.exchange()
        while not waiting.done and self.now_s() < give_up_s:
            if self.now_s() >= self._nothing_s:
                raise NothingCame
            self.clock.jump(min(give_up_s, self._nothing_s))
            self.exchange()

    async def yield_control(self) -> None:
        self.exchange()

    def gathers(self) -> bool:
        return False

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        self.core.connection.check_open()
        return self.clock.call_later(delay_s, callback)

    def now_s(self) -> float:
        return self.clock.now_s


NODE = local("node")
