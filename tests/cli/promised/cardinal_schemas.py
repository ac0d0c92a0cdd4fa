"""What `--json` promises of the commands of `cardinal`, as in `schemas`."""

from __future__ import annotations

from typing import Literal

import msgspec

from tests.cli.promised.schemas import Strict


class CardinalProduced(Strict, frozen=True):
    application: str
    blocks: int
    sent: int
    skipped: int
    messages: int
    seconds: float


class BlockName(Strict, frozen=True):
    number: int
    hash: str


class BlockRow(Strict, frozen=True):
    """The last two fields are those of `--values`."""

    number: int
    hash: str
    parent: str
    weight: str
    values: int
    deletes: int
    contents: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    deleted: list[str] | msgspec.UnsetType = msgspec.UNSET


class CardinalConsumed(Strict, frozen=True):
    reverted_to: BlockName | None
    removed: list[BlockRow]
    added: list[BlockRow]
    missing: int | msgspec.UnsetType = msgspec.UNSET


class TopicRow(Strict, frozen=True):
    topic: str
    partitions: int
    messages: int
    size_bytes: int


class CardinalInspected(Strict, frozen=True):
    file: str
    kind: Literal["recording", "batches"]
    application: str
    blocks: int
    values: int
    deletes: int
    messages: int
    duplicates: int
    incomplete: int
    first_number: int | None
    last_number: int | None
    problems: int
    told: list[str]
    topics: list[TopicRow]


class CardinalSimulated(Strict, frozen=True):
    seed: int
    blocks: int
    blocks_off_chain: int
    messages: int
    head: str
    head_number: int
    seconds: float


CARDINAL_SCHEMAS: dict[str, type[Strict]] = {
    "cardinal produce": CardinalProduced,
    "cardinal consume": CardinalConsumed,
    "cardinal inspect": CardinalInspected,
    "cardinal simulate": CardinalSimulated,
}
