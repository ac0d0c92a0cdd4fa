"""The messages that an incomplete block lacks, as an object and as a text."""

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
    """The messages that one block lacks."""

    # UNKNOWN: no message of the block has arrived, or it was forgotten. BATCH: its Batch message has not arrived, but
    # others have. PARTS: other messages are missing. NOTHING: it was complete, or was given up as too old.
    state: MissingState
    early_messages: int = 0
    number: int | None = None  # None before the Batch message arrives
    messages: int = 0  # a header counts once, as its items are unknown; 0 before the Batch message arrives
    prefixes: dict[str, int] = {}  # by prefix, the number of missing messages
    headers: tuple[bytes, ...] = ()  # the ids of sub batches without a header
    items: dict[bytes, tuple[int, ...]] = {}  # by sub batch id, the first missing indexes

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
