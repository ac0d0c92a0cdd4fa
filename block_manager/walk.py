"""Iteration along branches, from a newest block towards the oldest ancestor, one block per step.

The caller holds references to the blocks, so that they are not dropped, and provides the function `find`, which fetches
a block. If a step raises an error, the walk has not moved, and the caller can repeat the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from block_manager.block import NULL_BLOCK_ID, Block

Find: TypeAlias = Callable[[str], Block | None]
"""A function that returns the block with a given id, or None if there is no such block."""


class Walk(Protocol):
    """Walk: the interface of an iteration along a branch, one block per step."""

    def step(self, find: Find) -> Block | None:
        """Returns the next block. Returns None at the end and in every later call."""
        ...


class _Cursor:
    """_Cursor: a position on a branch. `look` fetches the block at the position once; `descend` moves to its parent."""

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
    """BranchWalk: a walk from the block `tip` to its oldest ancestor that `find` returns."""

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
    """DiffWalk: a walk over the blocks that are on the branch of `tip` but not on the branch of `exclude`.

    The branch of a block is the block and all its ancestors. Two cursors move down, one on each branch. In each step,
    the cursor at the higher number moves. Numbers increase along every branch, so both cursors reach the newest common
    block. If there is no common block, the walk covers the whole branch of `tip`.
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
