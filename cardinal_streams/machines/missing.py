"""What keeps a block from being complete, as values and as text."""

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
    """`state`: nothing ever arrived of the block (or it was forgotten), its Batch has not arrived while
    `early_messages` others have, parts are missing, or nothing is because it was emitted.

    `messages` counts what is known to be missing; behind a missing header there are more. `prefixes` maps prefixes
    to missing messages, `headers` are ids of sub batches without a header, `items` maps ids to the first missing
    indexes.
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
