"""Reclaim: an operation that gives free pages of the database file back to the disk. It deletes nothing itself.

The file becomes shorter at the next checkpoint. The operation asks for one page at a time: SQLite gives back one page
at each step of the statement, and since the statement has no columns, the driver makes only one step.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.contract import Operation, Session


class Reclaim(Operation):
    """Gives back at most `pages` free pages, and leaves `keep` of them in the file for new messages.

    pages_left: the free pages after the operation.
    """

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
