"""What `--json` promises for the commands of mirrors."""

from __future__ import annotations

from typing import Literal

from tests.cli.promised.schemas import Strict


class MirrorAdded(Strict, frozen=True):
    stream: str
    source: str
    partitions: int


class MirrorListed(Strict, frozen=True):
    stream: str
    partition: int
    condition: Literal[
        "starting",
        "following",
        "unreachable",
        "parted",
        "failed",
        "fencing",
        "promoting",
        "circle",
        "unfenced",
    ]
    reason: str
    source: str
    source_name: str
    next_index: int
    source_next_index: int
    lag: int
    lag_s: float
    heard_us: int
    aside: str | None
    aside_messages: int


class MirrorPromoted(Strict, frozen=True):
    stream: str
    partitions: int
    forced: bool
    behind: int
    heard_us: int | None


class MirrorRemoved(Strict, frozen=True):
    stream: str
    partitions: int


MIRROR_SCHEMAS: dict[str, type[Strict]] = {
    "mirror add": MirrorAdded,
    "mirror status": MirrorListed,
    "mirror promote": MirrorPromoted,
    "mirror remove": MirrorRemoved,
}
