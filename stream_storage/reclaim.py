"""The operation that gives at most `pages` free pages of the database back to the disk, but keeps `keep` of them for
new messages. It deletes no messages."""

from __future__ import annotations

from collections.abc import Callable

from stream_storage.contract import Operation, Session


class Reclaim(Operation):
    __slots__ = ("keep", "pages", "pages_left")
    needs_little = True

    def __init__(self, pages: int, keep: int, *, on_done: Callable[[Reclaim], None]) -> None:
        super().__init__(on_done)
        self.pages = pages
        self.keep = keep
        self.pages_left = 0

    def apply(self, session: Session) -> None:
        self.pages_left = session.reclaim(self.pages, self.keep)
