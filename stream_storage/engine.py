"""The interfaces of a database: it opens sessions (`SessionSource`), and a node keeps it (`Engine`)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from stream_storage.contract import Session
from stream_storage.upkeep import Upkeep


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
