"""The interface of a source of blocks: it can be asked which blocks it has, and it sends blocks. `health_machine`
chooses the source, and the worker processes the blocks.

A source calls its callbacks in the trio thread, and never before the call that started the request has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from block_node.persist.ranges import BlockRanges

StatusDone = Callable[[BlockRanges | None, str], None]
"""The callback for the answer to `ask_status`: the blocks that the source has, or None and the reason."""


class FetchListener(Protocol):
    """The receiver of the blocks of one request. After `ended` no method is called any more."""

    def grew(self, size_bytes: int) -> None:
        """Called when `size_bytes` more bytes of the next block have arrived."""
        ...

    def block(self, number: int, items: list[bytes]) -> None:
        """Called with the next complete block. Blocks arrive in order, without a hole."""
        ...

    def ended(self, reason: str, *, lied: bool) -> None:
        """Called when the request ended before all blocks had arrived. lied: the source does not have the blocks, or
        sent something else."""
        ...


class RunningFetch(Protocol):
    """A request for blocks that is under way."""

    def cancel(self) -> None:
        """Cancels the request: its listener is not called any more. Safe to repeat, and safe after the end."""
        ...


class BlockSource(Protocol):
    """A source of blocks: another node. The gRPC services of the real node could be wrapped as a source too
    (facts/block_node.md §1)."""

    def ask_status(self, on_done: StatusDone) -> None:
        """Asks which blocks the source has. Calls `on_done` exactly once; if no answer arrives in time, with None."""
        ...

    def fetch(self, first: int, last: int, listener: FetchListener) -> RunningFetch:
        """Requests the blocks from `first` to `last`, both included."""
        ...
