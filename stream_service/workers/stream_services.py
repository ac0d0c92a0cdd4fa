"""The parts of a node that all its streams share, as the type that a stream's worker is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from storage.runner import Runner
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.workers.clock import Clock
from stream_service.workers.tail_machine import Tails


class StreamServices(Protocol):
    """Storage, limits, time, counters, and the memory for the newest messages. `workers.directory` provides them.

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
