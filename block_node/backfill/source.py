"""What a source of blocks is: it can be asked what it has, and for blocks. Which one is asked is `health_machine`'s
business; what is done with the blocks, the worker's.

A source calls back in the trio thread, never from within the call that began it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from block_node.persist.ranges import BlockRanges

StatusDone = Callable[[BlockRanges | None, str], None]
"""What the source has, or None and the reason."""


class FetchListener(Protocol):
    """Who asked for blocks. After `ended` nothing more comes."""

    def grew(self, size_bytes: int) -> None:
        """So many more bytes of the next block have come."""
        ...

    def block(self, number: int, items: list[bytes]) -> None:
        """The next block, whole. They come in order, without a hole."""
        ...

    def ended(self, reason: str, *, lied: bool) -> None:
        """It ended before all had come. lied: it does not have what was asked for, or sends something else."""
        ...


class RunningFetch(Protocol):
    """A request under way."""

    def cancel(self) -> None:
        """Nothing more is wanted, and nothing more is called. Safe to repeat, and after the end."""
        ...


class BlockSource(Protocol):
    """Another node. The real node's gRPC services can be one as well (facts/block_node.md §1)."""

    def ask_status(self, on_done: StatusDone) -> None:
        """Called back once; where nothing comes, after a while with None."""
        ...

    def fetch(self, first: int, last: int, listener: FetchListener) -> RunningFetch:
        """Ask for the blocks from `first` to `last`."""
        ...
