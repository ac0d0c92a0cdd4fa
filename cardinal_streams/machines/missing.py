"""The messages that an incomplete block lacks, as a value and as a text."""

from __future__ import annotations

import enum

import msgspec

MISSING_ITEMS_SHOWN = 16


class MissingState(enum.Enum):
    UNKNOWN = "unknown"
    BATCH = "batch"
    PARTS = "parts"
    NOTHING = "nothing"


class Missing(msgspec.Struct, frozen=True):
    """The messages that one block lacks.

    `state` UNKNOWN: no message of the block arrived, or the block was forgotten. BATCH: its Batch has not arrived, but
    `early_messages` other messages have. PARTS: other messages are missing. NOTHING: the block was complete.

    `messages`: the number of messages that are known to be missing; a missing header stands for more. `prefixes` maps
    each prefix to its number of missing messages. `headers` has the ids of sub batches without a header. `items` maps
    ids of sub batches to their first missing indexes.
    """

    state: MissingState
    early_messages: int = 0
    number: int | None = None
    messages: int = 0
    prefixes: dict[str, int] = {}
    headers: tuple[bytes, ...] = ()
    items: dict[bytes, tuple[int, ...]] = {}

    def __str__(self) -> str:
        match self.state:
            case MissingState.UNKNOWN:
                return "nothing of this block has arrived"
            case MissingState.BATCH:
                return f"its Batch has not arrived, {self.early_messages} other messages have"
            case MissingState.NOTHING:
                return "nothing is missing"
        parts = [f"{count} messages of prefix {prefix!r}" for prefix, count in self.prefixes.items()]
        parts += [f"the header of sub batch {id_.hex()}" for id_ in self.headers]
        parts += [f"items {', '.join(map(str, found))} of sub batch {id_.hex()}" for id_, found in self.items.items()]
        return "; ".join(parts)
