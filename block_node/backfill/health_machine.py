"""Which source is asked for a block: what each one claims to have, how it has done, how long it is left alone. Pure.

Source: facts/block_node.md §5.2, "Peer choice", but for one thing: there, while the best source that has a block is
left alone, nobody is asked for it. Here the next priority is (B13). Times are the caller's, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from block_node.backfill.settings import SourceSetting
from block_node.persist.ranges import BlockRanges

PENALTY_MS = 1_000.0
"""What a failure counts beside the latency, as the real `healthPenaltyPerFailure`."""
LATENCY_WEIGHT = 0.2
"""Of the newest latency in the mean."""


class SourceStatistics(msgspec.Struct, frozen=True):
    """One source. failures: in a row. backoff_s: for how long it is left alone from now on. ranges: how many it claims.

    first_block, last_block: of what it claims to have. blocks, size_bytes: fetched from it. errors: since the start.
    """

    name: str
    priority: int
    failures: int
    backoff_s: float
    first_block: int | None
    last_block: int | None
    ranges: int
    latency_ms: float | None
    blocks: int
    size_bytes: int
    errors: int
    last_error: str


class SourceHealth:
    """What is known of one source. claims: the blocks it says it has; None before it was asked."""

    def __init__(self, setting: SourceSetting) -> None:
        self.setting = setting
        self.claims: BlockRanges | None = None
        self.failures = 0
        self.backoff_until_s = 0.0
        self.latency_ms: float | None = None
        self.blocks = self.size_bytes = self.errors = 0
        self.last_error = ""

    def has(self, number: int) -> bool:
        return self.claims is not None and number in self.claims

    @property
    def score(self) -> float:
        """The lower, the better."""
        return self.failures * PENALTY_MS + (self.latency_ms or 0.0)


class Health:
    """All sources. tie: decides between equals, a value from [0, 1) a call, so that load is spread."""

    def __init__(
        self,
        settings: Iterable[SourceSetting],
        *,
        retry_delay_s: float,
        backoff_s_max: float,
        tie: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._retry_delay_s = retry_delay_s
        self._backoff_s_max = backoff_s_max
        self._tie = tie
        self.sources = {setting.name: SourceHealth(setting) for setting in settings}

    def ready(self, now_s: float) -> list[SourceHealth]:
        """Those that are not left alone."""
        return [each for each in self.sources.values() if each.backoff_until_s <= now_s]

    def claimed(self, name: str, ranges: BlockRanges, latency_s: float) -> None:
        """A source has said what it has."""
        self.sources[name].claims = ranges
        self._note_latency(self.sources[name], latency_s)

    def choose(self, number: int, now_s: float, busy: Mapping[str, int]) -> SourceHealth | None:
        """Who is asked for this block now: of those with the best priority that have it and are not left alone, the one
        with the fewest requests (`busy`) and the best score; None where there is none."""
        fit = [each for each in self.ready(now_s) if each.has(number)]
        best = min((each.setting.priority for each in fit), default=0)
        alike = [each for each in fit if each.setting.priority == best]
        return min(
            alike,
            key=lambda each: (each.failures, busy.get(each.setting.name, 0), each.score, self._tie()),
            default=None,
        )

    def has_any(self, number: int) -> bool:
        """Whether a source claims this block, be it left alone or not."""
        return any(each.has(number) for each in self.sources.values())

    def last_claimed(self, now_s: float) -> int | None:
        """The highest block of the sources that are not left alone."""
        lasts = (each.claims.last for each in self.ready(now_s) if each.claims is not None)
        return max((last for last in lasts if last is not None), default=None)

    def fetched(self, name: str, size_bytes: int) -> None:
        source = self.sources[name]
        source.blocks += 1
        source.size_bytes += size_bytes

    def succeeded(self, name: str) -> None:
        """A block of it was good."""
        self.sources[name].failures = 0

    def failed(self, name: str, now_s: float, reason: str) -> None:
        """Leave it alone: the retry delay, doubled with each failure in a row, up to the bound. What was under way when
        it failed, and fails with it, is no further one."""
        source = self.sources[name]
        source.errors += 1
        source.last_error = reason
        if now_s < source.backoff_until_s:
            return
        source.failures += 1
        delay_s = self._retry_delay_s * 2.0 ** min(source.failures - 1, 32)
        source.backoff_until_s = now_s + min(delay_s, self._backoff_s_max)

    def disbelieve(self, name: str, first: int, last: int) -> None:
        """It claims these blocks and does not have them, or has bad ones: until it is asked again, it has none."""
        claims = self.sources[name].claims
        if claims is not None:
            claims.discard(first, last)

    def statistics(self, now_s: float) -> list[SourceStatistics]:
        return [
            SourceStatistics(
                name=name,
                priority=each.setting.priority,
                failures=each.failures,
                backoff_s=max(0.0, each.backoff_until_s - now_s),
                first_block=None if each.claims is None else each.claims.first,
                last_block=None if each.claims is None else each.claims.last,
                ranges=0 if each.claims is None else len(each.claims),
                latency_ms=each.latency_ms,
                blocks=each.blocks,
                size_bytes=each.size_bytes,
                errors=each.errors,
                last_error=each.last_error,
            )
            for name, each in self.sources.items()
        ]

    def _note_latency(self, source: SourceHealth, latency_s: float) -> None:
        before = source.latency_ms
        newest = latency_s * 1_000
        source.latency_ms = newest if before is None else before + LATENCY_WEIGHT * (newest - before)
