"""LogRate: bounds the log lines that peers can cause, which could fill the disk and hide all other lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ockam.identity.identity import ANONYMOUS
from ockam.quotas.usage import party_key

INTERVAL_S = 10.0
HOST_LINES_MAX = 10
LINES_MAX = 100


class LogRate:
    """Decides for each line whether it is written. now_s: reads a clock, in seconds.

    Invariant: in an interval, at most HOST_LINES_MAX lines are about one host, and at most LINES_MAX lines are written.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s = 0.0
        self._hosts: Counter[str] = Counter()
        self._lines = 0
        self._left_out = 0

    def log(self, write: Callable[..., Any], event: str, *, peer: str, **fields: Any) -> None:
        """Writes the line by a method of a logger, or counts it. The next written line has the count as `left_out`."""
        now_s = self._now_s()
        if now_s >= self._until_s:
            self._until_s = now_s + INTERVAL_S
            self._hosts.clear()
            self._lines = 0
        host = party_key(ANONYMOUS, peer)
        # The line is only counted if its host, or all hosts together, have had their lines.
        if self._lines >= LINES_MAX or self._hosts[host] >= HOST_LINES_MAX:
            self._left_out += 1
            return
        self._hosts[host] += 1
        self._lines += 1
        if self._left_out:
            fields["left_out"] = self._left_out
            self._left_out = 0
        write(event, peer=peer, **fields)
