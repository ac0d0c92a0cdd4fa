"""The health of the sources, which decides the source that is asked for a block: the blocks that each source claims,
its failures, and how long it is left alone. Pure.

Source: facts/block_node.md §5.2, "Peer choice", with one difference. In the real node, while the best source that has a
block is left alone, no other source is asked for it. Here the source of the next priority is asked (B13). The caller
passes all times, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from block_node.backfill.settings import SourceSetting
from block_node.persist.ranges import BlockRanges

PENALTY_MS = 1_000.0
"""The milliseconds that each failure adds to a source's score, as `healthPenaltyPerFailure` does in the real node."""
LATENCY_WEIGHT = 0.2
"""The weight of the newest latency in the moving average."""


class SourceStatistics(msgspec.Struct, frozen=True):
    """The figures of one source.

    failures: the number of failures in a row. backoff_s: the remaining seconds for which the source is left alone.
    ranges: the number of block ranges that it claims to have. first_block, last_block: the lowest and the highest block
    that it claims. blocks, size_bytes: the blocks fetched from it. errors: all failures since the start of the node.
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
    """The health of one source. claims: the blocks that the source claims to have; None before it has answered."""

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
        """The score of the source; a lower score is better."""
        return self.failures * PENALTY_MS + (self.latency_ms or 0.0)


class Health:
    """The health of all sources. tie: decides between equal sources by a new value from [0, 1) at each call, so that
    the load is spread."""

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
        """Returns the sources that may be asked now."""
        return [each for each in self.sources.values() if each.backoff_until_s <= now_s]

    def claimed(self, name: str, ranges: BlockRanges, latency_s: float) -> None:
        """Notes the blocks that a source claims to have, and how long its answer took."""
        self.sources[name].claims = ranges
        self._note_latency(self.sources[name], latency_s)

    def choose(self, number: int, now_s: float, busy: Mapping[str, int]) -> SourceHealth | None:
        """Returns the source to ask for block `number` now; None if no source that may be asked has it.

        Of the sources that have the block, only those of the best priority are considered. The one with the fewest
        failures in a row is chosen, then the one with the fewest requests (`busy`), then the one with the best score.
        """
        fit = [each for each in self.ready(now_s) if each.has(number)]
        best = min((each.setting.priority for each in fit), default=0)
        alike = [each for each in fit if each.setting.priority == best]
        return min(
            alike,
            key=lambda each: (each.failures, busy.get(each.setting.name, 0), each.score, self._tie()),
            default=None,
        )

    def has_any(self, number: int) -> bool:
        """Whether a source claims this block, even if it may not be asked now."""
        return any(each.has(number) for each in self.sources.values())

    def last_claimed(self, now_s: float) -> int | None:
        """Returns the highest block claimed by the sources that may be asked now; None if there is no such block."""
        lasts = (each.claims.last for each in self.ready(now_s) if each.claims is not None)
        return max((last for last in lasts if last is not None), default=None)

    def fetched(self, name: str, size_bytes: int) -> None:
        source = self.sources[name]
        source.blocks += 1
        source.size_bytes += size_bytes

    def succeeded(self, name: str) -> None:
        """Notes that a block of a source passed verification."""
        self.sources[name].failures = 0

    def failed(self, name: str, now_s: float, reason: str) -> None:
        """Notes a failure of a source, which is then left alone for the retry delay. The delay doubles with each
        failure in a row, up to a bound. Requests that were under way and fail too during the delay count as the same
        failure."""
        source = self.sources[name]
        source.errors += 1
        source.last_error = reason
        if now_s < source.backoff_until_s:
            return
        source.failures += 1
        delay_s = self._retry_delay_s * 2.0 ** min(source.failures - 1, 32)
        source.backoff_until_s = now_s + min(delay_s, self._backoff_s_max)

    def disbelieve(self, name: str, first: int, last: int) -> None:
        """Removes blocks from the claims of a source that does not have them or sent bad ones, until the source is
        asked again."""
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
