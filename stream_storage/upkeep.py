"""The interface of the work that a database needs between commits, such as copying the write-ahead log."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

from stream_storage.errors import StorageError
from stream_storage.histogram import Histogram


class UpkeepStatistics(NamedTuple):
    """The numbers of all and of failed checkpoints of the write-ahead log; the duration of the last checkpoint, and the
    pages of the log then."""

    checkpoints: int
    checkpoint_failures: int
    checkpoint_s_last: float
    wal_pages: int


class Upkeep(Protocol):
    """The work that a database needs between commits, in the writing thread. `after_commit` and `make_room` return
    None, or a fatal error, after which nothing more may be written."""

    @property
    def sync_seconds(self) -> Histogram: ...

    def is_due(self, commits: int, *, tight: bool) -> bool:
        """Returns whether `after_commit` has something to do if no operation waits."""
        ...

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        """Does the work that is due. waiting: whether operations wait for the next commit. tight: whether the disk has
        little room left."""
        ...

    def make_room(self) -> StorageError | None:
        """Frees room in the database, after a commit found none, so that the commit can be tried again."""
        ...

    def give_up_ballast(self) -> bool:
        """Frees the room that is kept for deletes and saved positions (`stream_storage.sqlite.ballast`), and returns
        whether there was any."""
        ...

    def without_waiting(self) -> AbstractContextManager[None]:
        """Makes the transactions of the block fail with StorageBusy at once if another program holds the database."""
        ...

    def close(self) -> None: ...

    def statistics(self) -> UpkeepStatistics: ...


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

    def without_waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass

    def statistics(self) -> UpkeepStatistics:
        return UpkeepStatistics(0, 0, 0.0, 0)
