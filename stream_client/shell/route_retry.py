"""RouteRetry: asks the stream service again and again after the route to it was lost, until the service answers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from stream_client.errors import ClientError
from stream_client.shell.backoff import Backoff, Reconnect

if TYPE_CHECKING:
    from stream_client.core.client_core import ClientCore
    from stream_client.shell.clock import ClockTimers

ASK_DELAY_S_MAX = 0.4
"""The longest delay, in seconds, between two tests of the route. A client notices a restored route within this time.
Each test makes the node on the route try to connect to the next node."""


class RouteRetry:
    """Tests a lost route with requests to the stream service (`ServiceRoute.ask`), after growing delays. After
    `give_up_s` seconds every waiting request fails, and the tests continue.

    Invariant: at most one test is planned.
    """

    def __init__(self, timers: ClockTimers, core: ClientCore, reconnect: Reconnect) -> None:
        self._timers = timers
        self._core = core
        delay_s_max = min(reconnect.delay_s_max, ASK_DELAY_S_MAX)
        self._reconnect = msgspec.structs.replace(reconnect, delay_s_max=delay_s_max)
        self._backoff = Backoff(self._reconnect, random.random)
        self._planned = False

    def lost(self, first: bool) -> None:
        """Plans the next test of the route. `first`: whether the route has worked until now."""
        now_s = self._timers.now_s()
        if first:
            self._backoff = Backoff(self._reconnect, random.random)
            self._backoff.lost(now_s)
        elif self._backoff.is_over(now_s) and self._core.service_route.trouble is not None:
            self._core.fail_all(self._core.service_route.trouble)
        if self._planned:
            return
        self._planned = True
        try:
            self._timers.call_later(self._backoff.next_delay_s(), self._ask)
        except ClientError:
            self._planned = False  # The client has ended, so no request waits any more.

    def _ask(self) -> None:
        self._planned = False
        if self._core.service_route.is_lost:
            self._core.service_route.ask()
