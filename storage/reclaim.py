"""Gives pages that nothing uses any more back to the disk, a few at a time. What is deleted is others' business.

The file becomes shorter at the checkpoint that follows.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.contract import Operation, Session


class Reclaim(Operation):
    """Give back at most `pages`, but leave `keep` free ones in the file; `pages_left` are free afterwards."""

    __slots__ = ("keep", "pages", "pages_left")

    def __init__(self, pages: int, keep: int, *, on_done: Callable[[Reclaim], None]) -> None:
        super().__init__(on_done)
        self.pages = pages
        self.keep = keep
        self.pages_left = 0

    def apply(self, session: Session) -> None:
        free = int(session.connection.execute("PRAGMA freelist_count").fetchone()[0])
        count = min(self.pages, free - self.keep)
        if count > 0:
            session.connection.execute(f"PRAGMA incremental_vacuum({count})").fetchall()
        self.pages_left = free - max(0, count)
