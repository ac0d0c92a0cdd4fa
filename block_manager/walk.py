"""Walks from a tip towards the root, one block at each step. The caller holds the blocks and fetches them with `find`.

A step that raises leaves the walk where it was, so it can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from block_manager.block import NULL_BLOCK_ID, Block

Find: TypeAlias = Callable[[str], Block | None]
"""The block with an id, or None where it is not known."""


class Walk(Protocol):
    """Walk: a way through the tree, one block at each step."""

    def step(self, find: Find) -> Block | None:
        """The next block; None at the end, and at every later step."""
        ...


class _Cursor:
    """_Cursor: a place on a branch. `look` fetches the block once; `descend` goes on to its parent."""

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
    """BranchWalk: from the tip to the root. The root is a first block, or a block whose parent is not here."""

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
    """DiffWalk: from the tip down to, not including, the first block that is also on the branch of `exclude`.

    Two cursors go down, always the one with the higher number. Numbers increase along every branch, so both meet at
    the common ancestor. Without a common ancestor the walk covers the whole branch of the tip.
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
