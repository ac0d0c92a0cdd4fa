"""Gives pages that nothing uses any more back to the disk, a few at a time. What is deleted is others' business.

The file becomes shorter at the checkpoint that follows. Pages are asked for one at a time: the statement gives one
back at each step, and the driver, seeing no columns, takes only the first.
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
        execute = session.connection.execute
        count = min(self.pages, _free_pages(session) - self.keep)
        for _ in range(count):
            execute("PRAGMA incremental_vacuum(1)")
        self.pages_left = _free_pages(session)


def _free_pages(session: Session) -> int:
    return int(session.connection.execute("PRAGMA freelist_count").fetchone()[0])
