"""Figures: the present statistics of one mirror, for the operator and for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog
import trio

from stream_node.fleet.mirror.protocol import PRIMARIES, MirrorCondition, MirrorState
from stream_service.mirror_rows import MirrorRow, Task

logger = structlog.get_logger(__name__)


Identity = tuple[str, int]


class Figures:
    """The present condition of one mirror. condition, reason: see `stream_node.fleet.mirror.protocol.MirrorState`.

    source_next_index: the end of the source, when the mirror last got it. heard_us: when it had asked for this, in
    microseconds since 1970; 0 if the source never answered. The source has not ended earlier since then. copied:
    messages since the start of the node. promotion_reason: why a promotion that is under way does not go on; empty if
    it does.
    """

    def __init__(self, identity: tuple[str, int], row: MirrorRow, now_us: Callable[[], int]) -> None:
        self.identity = identity
        self.condition = MirrorCondition.STARTING
        self.reason = ""
        self.source_next_index = row.source_next_index
        self.heard_us = row.heard_us
        self.copied = 0
        self.promotion_reason = ""
        self._now_us = now_us
        self._level_s = trio.current_time()

    def now_us(self) -> int:
        return self._now_us()

    def note_heard(self, source_next_index: int, asked_us: int) -> None:
        """Notes an answer of the source, with its end.
        asked_us: when the request was sent, in microseconds since 1970. Everything confirmed before that is known."""
        self.source_next_index, self.heard_us = source_next_index, asked_us

    def note_stored(self, next_index: int, copied: int) -> None:
        self.copied += copied
        if next_index >= self.source_next_index:
            self._level_s = trio.current_time()

    def set(self, condition: MirrorCondition, reason: str = "") -> None:
        if condition is not self.condition:
            name, partition = self.identity
            log = logger.info if condition is MirrorCondition.FOLLOWING else logger.warning
            log("mirror", stream=name, partition=partition, condition=condition.name.lower(), reason=reason)
        self.condition, self.reason = condition, reason

    def state(self, row: MirrorRow, next_index: int) -> MirrorState:
        name, partition = self.identity
        lag = max(0, self.source_next_index - next_index)
        # A mirror whose source is silent may lack the pushes since then.
        is_level = not lag and self.condition in (MirrorCondition.FOLLOWING, MirrorCondition.CIRCLE)
        lag_us = 0 if is_level or self.condition in PRIMARIES else self._lag_us()
        condition, reason = self.condition, self.reason
        # The task of the row is stronger than the condition that the follower has seen.
        if row.task in (Task.PROMOTE, Task.GIVE_BACK):
            condition, reason = MirrorCondition.PROMOTING, self.promotion_reason
        return MirrorState(
            name,
            partition,
            condition,
            reason,
            source=row.source,
            source_name=row.source_name,
            next_index=next_index,
            source_next_index=self.source_next_index,
            lag=lag,
            lag_us=lag_us,
            heard_us=self.heard_us,
            aside_name=row.aside_name,
            aside_messages=row.aside_messages,
        )

    def _lag_us(self) -> int:
        return round((trio.current_time() - self._level_s) * 1e6)


class FiguresByName:
    """The statistics of all mirrors of a node, by stream: a node can have thousands of streams with as many
    partitions."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, Figures]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def find(self, identity: Identity) -> Figures | None:
        return self._by_name.get(identity[0], {}).get(identity[1])

    def set(self, identity: Identity, figures: Figures | None) -> None:
        name, partition = identity
        if figures is not None:
            self._by_name.setdefault(name, {})[partition] = figures
        elif self.find(identity) is not None:
            del self._by_name[name][partition]
            if not self._by_name[name]:
                del self._by_name[name]

    def items(self, name: str = "") -> Iterator[tuple[Identity, Figures]]:
        """Returns the partitions that follow or fence, in order, with their statistics. name: empty for all streams."""
        for each in [name] if name else sorted(self._by_name):
            for partition, figures in sorted(self._by_name.get(each, {}).items()):
                yield (each, partition), figures
