"""The interfaces of a database: it opens sessions (`SessionSource`), and a node keeps it (`Engine`), with the work that
it needs between commits (`Upkeep`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from stream_storage.contract import Session
from stream_storage.errors import StorageError
from stream_storage.histogram import Histogram


class Upkeep:
    """The work that a database needs between commits, in the writing thread; here that of a database which needs none.
    `after_commit` and `make_room` return None, or a fatal error, after which nothing more may be written.

    checkpoints, checkpoint_failures: the numbers of all and of failed checkpoints of the write-ahead log.
    checkpoint_s_last, wal_pages: the duration of the last checkpoint, and the pages of the log then."""

    def __init__(self, sync_seconds: Histogram) -> None:
        self.sync_seconds = sync_seconds
        self.checkpoints = 0
        self.checkpoint_failures = 0
        self.checkpoint_s_last = 0.0
        self.wal_pages = 0

    def is_due(self, commits: int, *, tight: bool) -> bool:
        """Returns whether `after_commit` has something to do if no operation waits."""
        return False

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        """Does the work that is due after `commits` commits. waiting: whether operations wait for the next commit.
        tight: whether the disk has little room left."""
        return None

    def make_room(self) -> StorageError | None:
        """Frees room in the database, after a commit found none, so that the commit can be tried again."""
        return None

    def give_up_ballast(self) -> bool:
        """Frees the room that is kept for deletes and saved positions (`stream_storage.sqlite.ballast`), and returns
        whether there was any."""
        return False

    def without_waiting(self) -> AbstractContextManager[None]:
        """Makes the transactions of the block fail with StorageBusy at once if another program holds the database."""
        return nullcontext()

    def close(self) -> None:
        """Does the work of a clean stop."""


class SessionSource(Protocol):
    """The interface of a database that opens sessions."""

    def session(self) -> Session:
        """Opens the session that writes. At most one is open at a time."""
        ...

    def read_session(self) -> Session:
        """Opens a session that cannot write. Each of its transactions sees all commits made before it began; a
        statement outside a transaction counts as one."""
        ...


class Engine(SessionSource, Protocol):
    """The interface of a database that a node opens, keeps and closes."""

    @property
    def path(self) -> Path | None:
        """The file of the database, which another process can read; None if there is no such file."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether a commit waits for no other machine, so that a short one can be made in the trio thread."""
        ...

    def upkeep(self, session: Session) -> Upkeep:
        """Returns the work that the database needs between commits. session: the session that writes."""
        ...

    def distrust(self) -> None:
        """Makes the next opening check the database as after a crash. Called after a fatal error."""
        ...

    def close(self) -> None:
        """Closes the database. Its sessions must be closed already. Safe to repeat."""
        ...


class SharedEngine(Engine, Protocol):
    """The interface of a database to which several nodes write, the members of a cluster."""

    @property
    def owner(self) -> str:
        """The unique text that stands for this process in the database, by which another member can fence it."""
        ...
