"""Trouble: one thing that is wrong with the node now, and what to do about it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

TroubleKind = Literal[
    "not_writing",
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

LISTED_MAX = 20
"""The number of troubles of one kind that a page and an answer list. They say how many more there are, and the metrics
count all."""


class Trouble(NamedTuple):
    """One thing that is wrong.

    level: "bad" if the node loses or refuses work, "warning" if it may soon.
    title: what is wrong, in words. remedy: what to do.
    target: the address of the page to look at; empty without one. target_text: the text of the link to this page.
    subject: the name and the stream of a consumer; the stream of a silent publisher or a mirror; the name of a
    source or a member; otherwise empty. Troubles of one kind have different subjects.
    lasts_s: how long the consumer is stuck, the publisher is silent, or something else lasts, in seconds; 0 if nobody
    knows.
    """

    kind: TroubleKind
    level: Literal["bad", "warning"]
    title: str
    remedy: str
    target: str = ""
    target_text: str = ""
    subject: tuple[str, ...] = ()
    lasts_s: float = 0.0
