"""What the workers of streams share, as each of their parts needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from storage.runner import Runner
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.workers.clock import Clock
from stream_service.workers.tail_machine import Tails


class StreamServices(Protocol):
    """Storage, bounds, time, counters and the room for tails; `directory.StreamDirectory` has them.

    now_us: microseconds since 1970, by `clock`.
    """

    @property
    def storage(self) -> Runner: ...

    @property
    def limits(self) -> StreamLimits: ...

    @property
    def now_us(self) -> Callable[[], int]: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def counters(self) -> StreamCounters: ...

    @property
    def tails(self) -> Tails: ...
