"""The health of the source nodes, and the choice of one for a block. No I/O. The caller passes the time in seconds.

Source: facts/block_node.md §5.2, "Peer choice", with one difference (B13 there): during a pause of the best source
node, nodes of the next priority are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from block_node.backfill.settings import SourceSetting
from block_node.persist.ranges import BlockRanges

PENALTY_MS = 1_000.0
"""Each failure adds this to the score of a source node, as `healthPenaltyPerFailure` in the reference block node."""
LATENCY_WEIGHT = 0.2


class SourceStatistics(msgspec.Struct, frozen=True):
    """The statistics of one source node.

    failures: since the last success; errors: since the node started.
    backoff_s: the rest of the pause after a failure; 0 if there is none.
    first_block, last_block, ranges: the blocks that the source node claims to have.
    latency_ms: the average time of an answer about the claimed blocks.
    other_chain: the evidence that the source node has another chain. Empty if there is none.
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
    other_chain: str


_OWN = ("failures", "latency_ms", "blocks", "size_bytes", "errors", "last_error", "other_chain")
"""The fields of `SourceStatistics` that `SourceHealth` has, too."""


class SourceHealth(msgspec.Struct, eq=False):
    """The health of one source node. `SourceStatistics` explains most fields.

    has_answered: whether the node answered when it was last asked which blocks it has.
    is_excluded: True if no blocks are fetched from the node, because it has another chain."""

    setting: SourceSetting
    claims: BlockRanges | None = None
    has_answered: bool = False
    failures: int = 0
    backoff_until_s: float = 0.0
    latency_ms: float | None = None
    blocks: int = 0
    size_bytes: int = 0
    errors: int = 0
    last_error: str = ""
    other_chain: str = ""
    is_excluded: bool = False

    def has(self, number: int) -> bool:
        # A source node on another chain may have the number, but not the block.
        return self.claims is not None and number in self.claims and not self.is_excluded

    @property
    def score(self) -> float:
        return self.failures * PENALTY_MS + (self.latency_ms or 0.0)


class Health:
    """The health of all source nodes. The pause after a failure begins at `retry_delay_s` and grows to `backoff_s_max`.
    tie: returns a number in [0, 1) that decides between equal source nodes, so that the load is spread."""

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
        return [each for each in self.sources.values() if each.backoff_until_s <= now_s]

    def claimed(self, name: str, ranges: BlockRanges, latency_s: float) -> None:
        source = self.sources[name]
        if not source.has_answered:
            # The failures of a silent node end with its answer. Failures of other kinds end only with a good block.
            source.failures = 0
        source.claims, source.has_answered = ranges, True
        before, newest = source.latency_ms, latency_s * 1_000
        source.latency_ms = newest if before is None else before + LATENCY_WEIGHT * (newest - before)

    def find_silence(self) -> str:
        """Returns "" if a source node of this chain reports its blocks. Otherwise returns why, for each source node."""
        # One source node of this chain that answers is enough to know which blocks exist.
        if any(each.has_answered and not each.is_excluded for each in self.sources.values()):
            return ""
        return "; ".join(
            f"{name}: {(each.other_chain if each.is_excluded else each.last_error) or 'not asked yet'}"
            for name, each in self.sources.items()
        )

    def choose(self, number: int, now_s: float, busy: Mapping[str, int]) -> SourceHealth | None:
        """Returns the source node to ask for block `number` now, or None. The best priority wins, then the fewest
        failures, the fewest running requests (`busy`), the best score."""
        # Only among equals do failures, load and latency decide: a lower priority is used if no better source can be
        # asked.
        fit = [each for each in self.ready(now_s) if each.has(number)]
        best = min((each.setting.priority for each in fit), default=0)
        alike = [each for each in fit if each.setting.priority == best]
        return min(
            alike,
            key=lambda each: (each.failures, busy.get(each.setting.name, 0), each.score, self._tie()),
            default=None,
        )

    def last_claimed(self, now_s: float | None = None) -> int | None:
        """Returns the highest block that a source node claims. With `now_s`, nodes in a pause do not count."""
        # An excluded source node says nothing about this chain.
        counted = self.sources.values() if now_s is None else self.ready(now_s)
        lasts = (each.claims.last for each in counted if each.claims is not None and not each.is_excluded)
        return max((last for last in lasts if last is not None), default=None)

    def fetched(self, name: str, size_bytes: int) -> None:
        source = self.sources[name]
        source.blocks += 1
        source.size_bytes += size_bytes

    def succeeded(self, name: str) -> None:
        self.sources[name].failures = 0

    def failed(self, name: str, now_s: float, reason: str) -> None:
        """Records a failure. If the source node is not in a pause, a pause begins, twice as long as the one before."""
        source = self.sources[name]
        source.errors += 1
        source.last_error = reason
        if now_s < source.backoff_until_s:
            return
        source.failures += 1
        # The exponent is bounded, so that the number stays finite after many failures.
        delay_s = self._retry_delay_s * 2.0 ** min(source.failures - 1, 32)
        source.backoff_until_s = now_s + min(delay_s, self._backoff_s_max)

    def disbelieve(self, name: str, first: int, last: int) -> None:
        claims = self.sources[name].claims
        # Other blocks of this source node can still be right, so they stay.
        if claims is not None:
            claims.discard(first, last)

    def statistics(self, now_s: float) -> list[SourceStatistics]:
        found = []
        for name, each in self.sources.items():
            claims = each.claims or BlockRanges()
            statistics = SourceStatistics(
                name=name,
                priority=each.setting.priority,
                backoff_s=max(0.0, each.backoff_until_s - now_s),
                first_block=claims.first,
                last_block=claims.last,
                ranges=len(claims),
                **{field: getattr(each, field) for field in _OWN},
            )
            found.append(statistics)
        return found
