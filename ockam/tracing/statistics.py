from __future__ import annotations

import msgspec


class TracingStatistics(msgspec.Struct, frozen=True):
    """The numbers of spans of sampled traces since the start.

    failed: sent in vain. dropped: never sent, because too many were waiting. waiting: not sent yet."""

    exported: int
    failed: int
    dropped: int
    waiting: int
