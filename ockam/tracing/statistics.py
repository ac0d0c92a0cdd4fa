"""TracingStatistics: the numbers of this process's spans."""

from __future__ import annotations

import msgspec


class TracingStatistics(msgspec.Struct, frozen=True):
    """The numbers of spans since the start. Spans of traces that were not chosen (sampled) are not counted.

    failed: sent in vain, because the collector was down or refused them.
    dropped: never sent, because too many spans were waiting. waiting: they wait, or are being sent."""

    exported: int
    failed: int
    dropped: int
    waiting: int
