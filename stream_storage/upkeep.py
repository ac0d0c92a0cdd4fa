"""Upkeep: the interface of the work that a database needs between commits, such as copying the write-ahead log."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stream_storage.errors import StorageError
from stream_storage.histogram import Histogram


class UpkeepStatistics(NamedTuple):
    """What an Upkeep has done so far.

    checkpoints: the number of checkpoints of the write-ahead log. checkpoint_failures: how many of them failed.
    checkpoint_s_last: the duration of the last one, in seconds. wal_pages: the number of pages in the log then.
    """

    checkpoints: int
    checkpoint_failures: int
    checkpoint_s_last: float
    wal_pages: int


class Upkeep(Protocol):
    """The interface of the work that a database needs between commits. The writing thread does it.

    sync_seconds: the times of commits. A commit returns after its sync.

    The methods `after_commit` and `make_room` return None, or a fatal error, after which nothing more may be written.
    """

    @property
    def sync_seconds(self) -> Histogram: ...

    def is_due(self, commits: int, *, tight: bool) -> bool:
        """Returns whether `after_commit` has something to do if no operation waits."""
        ...

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        """Do the work that is due.

        commits: the number of commits so far. waiting: whether operations wait for the next commit. tight: whether the
        disk has little room left.
        """
        ...

    def make_room(self) -> StorageError | None:
        """Called when a commit found no room: free what can be freed, so that the commit can be tried again."""
        ...

    def give_up_ballast(self) -> bool:
        """Called when an operation that frees room, or saves a position, found no room. Returns whether there is room
        now that was kept for it, see `stream_storage.sqlite.ballast`."""
        ...

    def close(self) -> None:
        """Do the last work before a clean stop."""
        ...

    def statistics(self) -> UpkeepStatistics:
        """Returns what was done so far."""
        ...


class NoUpkeep:
    """The Upkeep of a database that does this work itself."""

    def __init__(self, sync_seconds: Histogram) -> None:
        self.sync_seconds = sync_seconds

    def is_due(self, commits: int, *, tight: bool) -> bool:
        return False

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        return None

    def make_room(self) -> StorageError | None:
        return None

    def give_up_ballast(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def statistics(self) -> UpkeepStatistics:
        return UpkeepStatistics(0, 0, 0.0, 0)
