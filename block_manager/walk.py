"""Walks from a tip towards the root, one block a step. They hold nothing and do no I/O: `find` does.

A step that raises leaves the walk where it was, so it can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from block_manager.block import NULL_BLOCK_ID, Block

Find: TypeAlias = Callable[[str], Block | None]
"""The block with an id, or None where it is not known."""


class Walk(Protocol):
    def step(self, find: Find) -> Block | None:
        """The next block, or None at the end, and from then on."""
        ...


class _Cursor:
    """A place on a branch. `look` finds the block once, `descend` goes to its parent."""

    def __init__(self, block_id: str) -> None:
        self._block_id = block_id
        self._block: Block | None = None

    def look(self, find: Find) -> Block | None:
        if self._block is None and self._block_id != NULL_BLOCK_ID:
            self._block = find(self._block_id)
        return self._block

    def descend(self) -> None:
        assert self._block is not None, "a walk went on from where no block is"
        self._block_id = self._block.previous_id
        self._block = None

    def end(self) -> None:
        self._block_id = NULL_BLOCK_ID
        self._block = None


class BranchWalk:
    """From the tip to the root: a first block, or one whose parent nobody has."""

    def __init__(self, tip: str) -> None:
        self._cursor = _Cursor(tip)

    def step(self, find: Find) -> Block | None:
        block = self._cursor.look(find)
        if block is None:
            self._cursor.end()
            return None
        self._cursor.descend()
        return block


class DiffWalk:
    """From the tip down to, not including, the first block that is on the branch of `exclude` as well.

    The higher of two places goes down first, so both meet at the common ancestor, since numbers increase along
    every branch. Where there is none, it walks the whole branch of the tip.
    """

    def __init__(self, tip: str, exclude: str) -> None:
        self._cursor = _Cursor(tip)
        self._exclude = _Cursor(exclude)

    def step(self, find: Find) -> Block | None:
        while (block := self._cursor.look(find)) is not None:
            excluded = self._exclude.look(find)
            if excluded is not None and excluded.block_id == block.block_id:
                break
            if excluded is None or excluded.number <= block.number:
                self._cursor.descend()
                return block
            self._exclude.descend()
        self._cursor.end()
        return None
