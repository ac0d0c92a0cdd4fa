"""BaseShell: the common parts of the async and the blocking shell of a client: clock, timers and time limits. No I/O.
Backoff: decides when to replace a lost connection.

BaseShell also retries a lost route to the stream service, and ends the parent's clients in each child process that
fork() makes. Parent and child have the same connection: each would read the other's answers, and send the same pushes.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar
from weakref import WeakSet

import msgspec

from stream_client.core.client_core import ClientCore
from stream_client.core.pushes import PendingResult
from stream_client.errors import ClientError, ClientForked, ConnectionLost, silent

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.tls_layer import TlsLayer
    from ockam.identity.token import Token

T = TypeVar("T")

Framing: TypeAlias = Literal["head", "legacy", "auto"]
"""How messages are delimited on the connection: "head" for Ockam since June 2024, "legacy" for older Ockam. With
"auto", the client sends the first byte of a "head" connection, and uses "legacy" if no answer comes."""

OnLink: TypeAlias = Callable[[ClientError | None], None]
"""Called with an error when the connection or the route to the services is lost, and with None when it is restored."""

READ_BYTES_MAX = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
"""The longest time, in seconds, of each step of an attempt to connect: TCP and TLS, the hello, the token."""
CONNECT_TIMEOUT_S_MIN = 1.0
"""Each step of an attempt to connect may take this many seconds, even if the program waits less for an answer."""
AUTO_WAIT_S = 0.3
"""With the framing "auto", the seconds to wait for an answer to the hello. Nodes that use "head" answer at once, and
connecting to an older node takes this much longer."""
AUTO_WAIT_S_MAX = 2.0
"""Replaces AUTO_WAIT_S after a connection without received bytes. Perhaps the answer of a distant "head" node takes
longer than AUTO_WAIT_S, so that the client has used "legacy" with it."""
ANSWER_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 2.0
"""The seconds between two checks for late answers. An unanswered request is sent again after one to two intervals.
Answers come within milliseconds, or after a disk failure within the node's `error_delay_s`."""
GATHER_S = 0.25
"""The longest time, in seconds, for which pushes to many streams wait for further pushes that join their batches."""
LAST_WORDS_S = 1.0
"""The longest time, in seconds, that the end of a client takes to send its last messages, such as a saved position."""


def connect_timeout_s(wait_s: float | None) -> float:
    return CONNECT_TIMEOUT_S if wait_s is None else min(CONNECT_TIMEOUT_S, max(CONNECT_TIMEOUT_S_MIN, wait_s))


CHANCE = random.SystemRandom().random
"""The random part of delays. It leaves the generator of the module `random` alone, which the program may have seeded: a
client reconnects at any time and in any thread."""
GROWTH = 1.2
"""The ratio of a delay to the previous one. A delay is then about a fifth of the time since the first attempt: after an
outage of three seconds, clients notice the node's return about half a second later."""


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for replacing a lost connection.

    delay_s: the delay before the first attempt, in seconds. Each later delay is 1.2 times the previous one. Each delay
        is shortened by a random part, at most half, so that many clients do not reconnect at the same moment.
    delay_s_max: the longest delay, in seconds.
    give_up_s: when the node has sent no byte for this many seconds while requests wait for it, every waiting request
        fails with NodeUnreachable, also if the connection is still open. Without a connection, each later request fails
        at the next failed attempt. The client checks every two seconds, and the attempts continue. None: only the
        `answer_timeout_s` of `connect` limits how long requests wait.
    """

    delay_s: float = 0.05
    delay_s_max: float = 5.0
    give_up_s: float | None = None


class Backoff:
    """Computes the delay before each attempt to connect, and decides when waiting requests must fail. A connection that
    is accepted but brings no bytes counts as a failed attempt."""

    def __init__(self, reconnect: Reconnect, random: Callable[[], float]) -> None:
        """random: a function that returns a random number between 0 and 1."""
        self._reconnect = reconnect
        self._random = random
        self._delay_s = reconnect.delay_s
        self._lost_at_s: float | None = None
        self._received_bytes = 0

    def lost(self, now_s: float) -> None:
        """Records when the connection was lost. Later calls change nothing until `succeeded` or `watch` resets it."""
        if self._lost_at_s is None:
            self._lost_at_s = now_s

    def watch(self, now_s: float, received_bytes: int, *, awaits: bool) -> bool:
        """Returns whether waiting requests must fail (`is_over`). Called at each check for late answers.
        received_bytes: the bytes received in all. awaits: whether a request waits for an answer that is due."""
        if received_bytes > self._received_bytes or not awaits:
            self._received_bytes = received_bytes
            self._lost_at_s = None
            return False
        # A connection over which nothing comes counts as lost from the first check at which requests wait.
        self.lost(now_s)
        return self.is_over(now_s)

    def next_delay_s(self) -> float:
        """Returns the seconds to wait before the next attempt to connect, and raises the bound of later delays."""
        delay_s = self._delay_s * (0.5 + 0.5 * self._random())
        self._delay_s = min(GROWTH * self._delay_s, self._reconnect.delay_s_max)
        return delay_s

    def is_over(self, now_s: float) -> bool:
        give_up_s = self._reconnect.give_up_s
        return give_up_s is not None and self._lost_at_s is not None and now_s - self._lost_at_s >= give_up_s

    def succeeded(self) -> None:
        """Records that a connection has brought bytes. The next delay is the shortest one again."""
        self._lost_at_s = None
        self._delay_s = self._reconnect.delay_s


ASK_DELAY_S_MAX = 0.4
"""The longest delay, in seconds, between two tests of the route. A client notices a restored route within this time.
Each test makes the node on the route try to connect to the next node."""


class ShellSettings(msgspec.Struct, frozen=True):
    """Those arguments of `connect` that say how a shell connects."""

    address: str
    framing: Framing = "head"
    reconnect: Reconnect | None = None
    contact_timeout_s: float | None = None
    tls: Tls | None = None
    token: Token | None = None


class BaseShell:
    """The clock of one client, and its decisions when a connection ends, or when the node is silent.

    is_blocking: whether the client does its I/O only inside the program's calls. Then the coroutines of the shell block
        and never suspend.
    """

    is_blocking: ClassVar[bool] = False

    def __init__(self, core: ClientCore, settings: ShellSettings) -> None:
        self.core = core
        self._settings = settings
        self._address = settings.address
        reconnect = settings.reconnect
        self._layer: TlsLayer | None = None
        self._backoff = None if reconnect is None else Backoff(reconnect, CHANCE)
        if reconnect is not None:
            # A lost route is tested with requests to the stream service. At most one test is planned.
            delay_s_max = min(reconnect.delay_s_max, ASK_DELAY_S_MAX)
            self._route_reconnect = msgspec.structs.replace(reconnect, delay_s_max=delay_s_max)
            self._route_backoff = Backoff(self._route_reconnect, CHANCE)
            self._route_test_planned = False
            core.service_route.on_lost = self._route_lost
        self._auto_wait_s = AUTO_WAIT_S
        self._outgoing_since_s = 0.0
        self._timers: list[ClientTimer] = []
        self._timer_numbers = itertools.count()

    def opened(self, waits: bool) -> AbstractAsyncContextManager[None]:
        """Does the I/O while the block runs. `waits`: see `connect`. Raises NodeUnreachable, AuthenticationFailed."""
        raise NotImplementedError

    async def wait(self, waiting: PendingResult, timeout_s: float | None = None, *, gathers: bool = False) -> None:
        """Waits until `waiting` is done, at most `timeout_s` seconds; None: no limit. A timeout raises no error.

        gathers: whether unsent bytes may wait for further pushes. True only if the awaited request has been sent.
        """
        raise NotImplementedError

    async def yield_control(self) -> None:
        """Gives the client's I/O a chance to send and receive, without waiting for the socket."""
        raise NotImplementedError

    def exchange_nowait(self) -> None:
        """Sends and receives in a blocking client, without waiting. The tasks of an async client do that anyway."""

    def send_lagging(self) -> None:
        """Sends and receives in a blocking client, without waiting, if the last exchange was some time ago. It may be
        called often."""

    async def iterated(self, following: Callable[[], Coroutine[Any, Any, T | None]]) -> Iterable[T]:
        """Returns the results of `following` up to the first None. A blocking client calls `following` only when the
        next result is read."""
        raise NotImplementedError

    @staticmethod
    async def run_blocking(function: Callable[[], None]) -> None:
        """Runs a function that blocks, to its end. An async client runs it in a thread."""
        raise NotImplementedError

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` after `delay_s` seconds. Returns a function that cancels this. A blocking client runs timers
        only inside its calls, so the callback can come later. Raises the error that ended the client."""
        raise NotImplementedError

    def forked(self, error: ClientForked) -> None:
        """Gives up the connection, sends nothing, and ends the client with this error. Called in a child only."""
        raise NotImplementedError

    def _watch_forks(self) -> None:
        """Makes each child process call `forked`. To be called last in a constructor: `forked` needs all attributes."""
        _shells.add(self)

    def now_s(self) -> float:
        """Returns the time in seconds on a monotonic clock that, where possible, also runs while the machine sleeps."""
        # A lease must end on time even if the machine was suspended. Most monotonic clocks stop during suspension.
        return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()

    def gathers(self) -> bool:
        """Whether the bytes to send should wait for further pushes, because they are many small batches."""
        return self.core.connection.gathers and self.now_s() - self._outgoing_since_s < GATHER_S

    @property
    def _timers_due_s(self) -> float:
        return self._timers[0].due_s if self._timers else math.inf

    def _add_timer(self, due_s: float, callback: Callable[[], None]) -> ClientTimer:
        timer = ClientTimer(due_s, next(self._timer_numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def _pop_timer(self, now_s: float) -> ClientTimer | None:
        return heapq.heappop(self._timers) if self._timers_due_s <= now_s else None

    def _route_lost(self, first: bool) -> None:
        """Plans the next test of a lost route, after growing delays. After `give_up_s` seconds every waiting request
        fails, and the tests continue. `first`: whether the route has worked until now."""
        route, now_s = self.core.service_route, self.now_s()
        if first:
            self._route_backoff = Backoff(self._route_reconnect, CHANCE)
            self._route_backoff.lost(now_s)
        elif self._route_backoff.is_over(now_s) and route.trouble is not None:
            self.core.fail_all(route.trouble)
        if self._route_test_planned:
            return

        def test() -> None:
            self._route_test_planned = False
            if route.is_lost:
                route.ask()

        self._route_test_planned = True
        try:
            self.call_later(self._route_backoff.next_delay_s(), test)
        except ClientError:
            self._route_test_planned = False  # The client has ended, so no request waits any more.

    def _connection_ended(self, fault: ClientError | None, received_before: int) -> Backoff | None:
        """Records the end of a connection. received_before: the number of bytes that the client had received in all
        before the connection. Returns the delays of the next attempts; None: the client has ended."""
        # Without a new connection nothing can be answered, so every present and later request fails.
        if self._backoff is None:
            self.core.close(fault or ConnectionLost("the connection ended and is not made again"))
            return None
        self.core.disconnected(fault)
        # Only a connection that brought bytes resets the delays. Otherwise a server that accepts and hangs up would be
        # called again at once, for ever.
        if self.core.connection.received_bytes > received_before:
            self._backoff.succeeded()
            self._auto_wait_s = AUTO_WAIT_S
        else:
            self._auto_wait_s = AUTO_WAIT_S_MAX
        self._begin_outage(self._backoff)
        return self._backoff

    def _begin_outage(self, backoff: Backoff) -> None:
        backoff.lost(self.now_s())
        if backoff.is_over(self.now_s()):
            self.core.fail_all(silent(self._address))

    def _attempt_failed(self, backoff: Backoff, error: ClientError) -> None:
        """Records a failed attempt to connect. After `give_up_s` seconds, the waiting requests fail."""
        self.core.connection.unreachable(error)
        if backoff.is_over(self.now_s()):
            self.core.fail_all(error)

    def _check_progress(self, *, is_connected: bool) -> bool:
        """At intervals, lets the core repeat late requests, and fails all requests when the node has been silent for
        `give_up_s`. Returns whether the connection must be dropped, because nothing arrives over it any more."""
        core, backoff = self.core, self._backoff
        is_dead = core.check_progress()
        if not is_connected:
            return False
        received_bytes = core.connection.received_bytes
        if backoff is not None and backoff.watch(self.now_s(), received_bytes, awaits=core.awaits_answer):
            core.fail_all(silent(self._address))
        return is_dead


_shells: WeakSet[BaseShell] = WeakSet()
"""The shells in use."""


def _in_child() -> None:
    shells = list(_shells)
    _shells.clear()
    for shell in shells:
        shell.forked(ClientForked(os.getppid()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class ClientTimer(msgspec.Struct, order=True):
    """A callback and its due time. Timers that are due at the same time run in the order of their numbers."""

    due_s: float
    number: int
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        if self.callback is not None:
            self.callback()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
