"""Walks from a tip towards the root, one block at each step. The caller holds the blocks and fetches them with `find`.

A step that raises does not move the walk, so the step can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from block_manager.block import NULL_BLOCK_ID, Block

Find: TypeAlias = Callable[[str], Block | None]
"""A function that returns the block with an id, or None if the block is not known."""


class Walk(Protocol):
    """Walk: the interface of a walk through the tree, which visits one block at each step."""

    def step(self, find: Find) -> Block | None:
        """Returns the next block. At the end, and at every later step, returns None."""
        ...


class _Cursor:
    """_Cursor: a place on a branch. `look` returns the block at the place and fetches it only once; `descend` moves to
    the parent."""

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
    """BranchWalk: a walk from the tip to the root. The root is a first block, or a block whose parent is not known."""

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
    """DiffWalk: a walk from the tip down to, not including, the first block that is also on the branch of `exclude`.

    Two cursors move down, one from each block; each time the cursor with the higher number moves. Numbers increase
    along every branch, so the cursors meet at the common ancestor. Without a common ancestor the walk covers the whole
    branch of the tip.
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
