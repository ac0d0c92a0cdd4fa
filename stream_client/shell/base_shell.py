"""BaseShell: what the async and the blocking shell of a client have in common. It has the clock, and does no I/O."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from stream_client.core.client_core import ClientCore
from stream_client.errors import ClientError, ClientForked, ConnectionLost, silent
from stream_client.shell.backoff import Backoff, Reconnect
from stream_client.shell.clock import TimerQueue, boot_time_s
from stream_client.shell.defaults import AUTO_WAIT_S, AUTO_WAIT_S_MAX, GATHER_S, Framing
from stream_client.shell.forking import watch_forks
from stream_client.shell.route_retry import RouteRetry

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.tls_layer import TlsLayer
    from ockam.identity.token import Token


class ShellSettings(msgspec.Struct, frozen=True):
    """Those arguments of `connect` that say how a shell connects."""

    address: str
    framing: Framing = "head"
    reconnect: Reconnect | None = None
    contact_timeout_s: float | None = None
    tls: Tls | None = None
    token: Token | None = None


class BaseShell:
    """The clock of one client, and its decisions when a connection ends, or when the node is silent."""

    def __init__(self, core: ClientCore, settings: ShellSettings) -> None:
        self.core = core
        self._settings = settings
        self._address = settings.address
        reconnect = settings.reconnect
        self._layer: TlsLayer | None = None
        self._backoff = None if reconnect is None else Backoff(reconnect, random.random)
        if reconnect is not None:
            core.service_route.on_lost = RouteRetry(self, core, reconnect).lost
        self._auto_wait_s = AUTO_WAIT_S
        self._outgoing_since_s = 0.0
        self._timers = TimerQueue()
        watch_forks(self)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        raise NotImplementedError

    def forked(self, error: ClientForked) -> None:
        raise NotImplementedError

    def now_s(self) -> float:
        return boot_time_s()

    def gathers(self) -> bool:
        """Whether the bytes to send should wait for further pushes, because they are many small batches."""
        return self.core.connection.gathers and self.now_s() - self._outgoing_since_s < GATHER_S

    def _connection_ended(self, fault: ClientError | None, received_before: int) -> Backoff | None:
        """Records that the connection has ended, over which the client has received more than the `received_before`
        bytes if it was one to a node. Returns the delays of the next attempts; None: the client has ended."""
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
