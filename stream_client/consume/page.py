"""One page of messages, and the indexes that are missing in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from stream_service.extensions import RichMessage

PAGE_MESSAGES = 1_000

OnHole: TypeAlias = Callable[[int, int, int], None]
"""Told of missing indexes: partition, the first missing one, the first that is there again."""


class Page(msgspec.Struct, frozen=True):
    """Messages in order, maybe none. resume_index: where the next page begins.

    first_index, next_index: the stream's when the page was read; None where the node does not tell.
    """

    messages: Sequence[RichMessage]
    first_index: int | None
    next_index: int | None
    resume_index: int

    @property
    def at_end(self) -> bool:
        """Whether there was nothing behind this page."""
        # A page has at least one message where there is one. An empty one goes on where it was asked for, which is
        # before the end of a stream whose messages have all been deleted.
        return not self.messages or (self.next_index is not None and self.resume_index >= self.next_index)


def find_holes(messages: Sequence[RichMessage], expected: int | None) -> list[tuple[int, int]]:
    """Ranges [first missing, next there) in front of and between messages. expected: None where any begin is right."""
    first = messages[0].index
    holes = [(expected, first)] if expected is not None and expected < first else []
    if messages[-1].index - first + 1 != len(messages):
        for earlier, later in pairwise(messages):
            if later.index > earlier.index + 1:
                holes.append((earlier.index + 1, later.index))
    return holes
