"""The settings of a server on which the meaning of a confirm depends, and how the node keeps its promise.

A server can change while the node runs: an operator changes its settings, or another server becomes the primary. So
each connection that writes sets what it may set, and examines the rest."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from stream_storage.errors import UnsafeDatabase
from stream_storage.postgres.schema import own_tables
from stream_storage.postgres.server import Connection, Deadlines, PostgresPrimary, command

STRONG = ("on", "remote_apply")
"""The values of synchronous_commit with which a commit that returns is synced on the standby, if there is one."""

_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")
logger = structlog.get_logger(__name__)


class Durability(NamedTuple):
    """The settings as the server shows them. unlogged: the tables of the node that a crash of the server empties."""

    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_standby_names: str
    unlogged: str = ""

    @property
    def waits_for_standby(self) -> bool:
        return bool(self.synchronous_standby_names) and self.synchronous_commit not in ("off", "local")

    @property
    def meaning(self) -> str:
        if self.unsafe:
            return f"a confirmed message can be lost when the server crashes ({', '.join(self.unsafe)})"
        on_primary = "a confirmed message is synced on the primary"
        if not self.waits_for_standby:
            return f"{on_primary}, and on no other machine: set synchronous_standby_names to survive its loss"
        where = {
            "remote_write": "written",
            "remote_apply": "synced and visible",
        }.get(self.synchronous_commit, "synced")
        return f"{on_primary}, and {where} on {self.synchronous_standby_names}"

    @property
    def unsafe(self) -> list[str]:
        """The settings and tables with which a confirmed message can be lost when the primary crashes."""
        off = [f"{name} = off" for name, value in zip(_SETTINGS[:-1], self, strict=False) if value == "off"]
        return off + [f"table {name} is UNLOGGED" for name in self.unlogged.split(",") if name]

    def kept(self, *, unsafe: bool) -> Durability:
        """Returns the settings of a connection that writes. The connection sets `synchronous_commit` to `on`, unless
        the server has a stronger value, or `unsafe` accepts a weaker one."""
        if unsafe or self.synchronous_commit in STRONG:
            return self
        return self._replace(synchronous_commit="on")

    def is_weaker(self, than: Durability) -> bool:
        """Returns whether a confirm promises less than with the settings `than`."""
        return (self.waits_for_standby, -len(self.unsafe)) < (than.waits_for_standby, -len(than.unsafe))


class KeptDurability:
    """The promise of a confirm, for all connections that write. Invariant: none commits with a weaker
    `synchronous_commit` than the first one, whatever the server says later."""

    def __init__(self, server: PostgresPrimary, durability: Durability, *, unsafe: bool) -> None:
        self._server = server
        self._unsafe = unsafe
        self._now = durability

    def adopt(self, connection: Connection) -> None:
        """Makes the promise hold for a new connection, and logs a change of it. Raises UnsafeDatabase."""
        deadlines = self._server.deadlines
        found = read_durability(connection, deadlines)._replace(synchronous_commit=self._now.synchronous_commit)
        if not self._unsafe:
            check_safe(found)
        # The value was read from a server's settings, so it has no quote that must be escaped.
        command(connection, deadlines, f"SET synchronous_commit = '{found.synchronous_commit}'".encode())
        if found != self._now:
            tell = logger.warning if found.is_weaker(self._now) else logger.info
            tell("database_durability_changed", database=self._server.name, meaning=found.meaning, unsafe=found.unsafe)
            self._now = found


def read_durability(connection: Connection, deadlines: Deadlines) -> Durability:
    columns = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
    unlogged = f"SELECT string_agg(relname, ',' ORDER BY relname) {own_tables()} AND relpersistence = 'u'"
    result = command(connection, deadlines, f"SELECT {columns}, ({unlogged})".encode())
    return Durability(*((result.get_value(0, column) or b"").decode() for column in range(result.nfields)))


def check_safe(durability: Durability) -> None:
    if durability.unsafe:
        raise UnsafeDatabase(durability.unsafe)


def examine(server: PostgresPrimary) -> tuple[int, Durability]:
    connection = server.wait_connected()
    try:
        return connection.info.server_version // 10_000, read_durability(connection, server.deadlines)
    finally:
        connection.close()
