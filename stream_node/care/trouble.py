"""Trouble: one thing that is wrong with the node now, and its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

TroubleKind = Literal[
    "not_writing",
    "not_reading",
    "push_failed",
    "disk_full",
    "disk_nearly_full",
    "disk_unknown",
    "disk_slow",
    "retention_behind",
    "stopping",
    "audit_log_failed",
    "certificate_ends",
    "token_ends",
    "blocks_stalled",
    "blocks_damaged",
    "block_sources_disagree",
    "backfill_failing",
    "block_source_failing",
    "block_publishers_silent",
    "consumer_stuck",
    "consumer_beyond_end",
    "publisher_silent",
    "shards_unowned",
    "shard_messages_waiting",
    "member_silent",
    "mirror_circle",
    "mirror_unfenced",
    "mirror_promoting",
    "mirror_parted",
    "mirror_not_following",
]
TROUBLE_KINDS: Final[tuple[TroubleKind, ...]] = get_args(TroubleKind)
WARNINGS: Final[frozenset[TroubleKind]] = frozenset(
    {
        *("disk_nearly_full", "disk_unknown", "disk_slow", "retention_behind", "stopping", "audit_log_failed"),
        *("block_source_failing", "block_publishers_silent", "publisher_silent", "member_silent"),
        *("mirror_parted", "mirror_not_following"),
    }
)
"""The kinds of troubles for which the node loses or refuses no work yet."""

LISTED_MAX = 20
"""The number of troubles of one kind that a page and an answer list. The metrics count all."""


Texts: TypeAlias = tuple[str, str, str, str]


class Trouble(msgspec.Struct, frozen=True, gc=False):
    """One thing that is wrong with the node now."""

    kind: TroubleKind
    title: str = ""
    remedy: str = ""
    target: str = ""  # the address of the page to look at; empty without one
    target_text: str = ""
    # The name and the stream of a consumer; the stream of a silent publisher or a mirror; the name of a source or a
    # member; else empty. Troubles of one kind have different subjects.
    subject: tuple[str, ...] = ()
    lasts_s: float = 0.0  # for how long the trouble has lasted; 0 if nobody knows
    about: Any = None
    write: Callable[[Any, float], Texts] | None = None  # makes the texts from `about`; called for listed troubles only
    is_early: bool = False  # whether a trouble of another kind than WARNINGS is only a warning so far

    @property
    def level(self) -> Literal["bad", "warning"]:
        """Returns "bad" if the node loses or refuses work, "warning" if it may do so soon."""
        return "warning" if self.is_early or self.kind in WARNINGS else "bad"

    def written(self) -> Trouble:
        if self.write is None:
            return self
        texts = self.write(self.about, self.lasts_s)
        return Trouble(self.kind, *texts, self.subject, self.lasts_s, is_early=self.is_early)


class CurrentTroubles:
    """All troubles of one moment. by_kind: all troubles of a kind, the bad ones first, then those that last longest."""

    def __init__(self, found: Iterable[Trouble]) -> None:
        self.by_kind: dict[TroubleKind, list[Trouble]] = {}
        for each in found:
            self.by_kind.setdefault(each.kind, []).append(each)
        for same in self.by_kind.values():
            same.sort(key=lambda trouble: (trouble.level != "bad", -trouble.lasts_s))

    @property
    def total(self) -> int:
        return sum(map(len, self.by_kind.values()))

    def listed(self) -> list[tuple[list[Trouble], int]]:
        """Returns, for each kind, its first LISTED_MAX troubles with their texts, and the number of its other troubles.
        The worst kind comes first."""
        found = [
            ([each.written() for each in same[:LISTED_MAX]], len(same[LISTED_MAX:])) for same in self.by_kind.values()
        ]
        return sorted(found, key=lambda part: part[0][0].level != "bad")
