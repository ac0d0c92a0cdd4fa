"""An operation that gives free pages of the database file back to the disk. It deletes no messages.

The file becomes shorter at the next checkpoint. The operation runs one statement for each page. A single statement for
many pages would free only one: SQLite frees a page each time the program asks the statement for a row, and Python's
driver asks only once, since the statement returns no columns.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.contract import Operation, Session


class Reclaim(Operation):
    """An operation that gives at most `pages` free pages back to the disk. At least `keep` free pages stay in the file,
    for new messages.

    pages_left: the number of free pages after the operation.
    """

    __slots__ = ("keep", "pages", "pages_left")

    def __init__(self, pages: int, keep: int, *, on_done: Callable[[Reclaim], None]) -> None:
        super().__init__(on_done)
        self.pages = pages
        self.keep = keep
        self.pages_left = 0

    def apply(self, session: Session) -> None:
        execute = session.execute
        count = min(self.pages, _free_pages(session) - self.keep)
        for _ in range(count):
            execute("PRAGMA incremental_vacuum(1)")
        self.pages_left = _free_pages(session)


def _free_pages(session: Session) -> int:
    return int(session.execute("PRAGMA freelist_count").fetchone()[0])
