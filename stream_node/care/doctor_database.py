"""The check of `stream-node doctor` for a node whose streams are in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from stream_node.care.findings import Finding, Values
from stream_node.node.config import Config, ConfigError
from stream_node.node.databases import check_url
from stream_storage.errors import StorageError
from stream_storage.sqlite.database import FILE_NAME

CONNECT_WAIT_S = 5.0
CHECK = "database"
NO_DRIVER = "psycopg is not installed; install the extra `postgres` (in a checkout: pip install '.[postgres]')"


def examine_server(url: str, config: Config) -> Finding:
    """Connects to the server of a PostgreSQL database, and reports what a confirm means there. Changes nothing."""
    try:
        check_url(url)
        from stream_storage.postgres.durability import examine
        from stream_storage.postgres.server import PostgresPrimary
    except ConfigError as error:
        return Finding(CHECK, "wrong", str(error), {})
    except ImportError:
        return Finding(CHECK, "wrong", NO_DRIVER, {})
    try:
        server = PostgresPrimary(url, wait_s=CONNECT_WAIT_S, call_s=config.database_call_s)
    except StorageError as error:
        return Finding(CHECK, "wrong", str(error), {})
    try:
        version, found = examine(server)
    except StorageError as error:
        return Finding(CHECK, "wrong", f"{server.name}: {error}", {"database": server.name})
    finally:
        server.close()
    # The server can be reached. What its confirms are worth depends on its settings.
    durability = found.kept(unsafe=config.database_unsafe)
    values: Values = {"database": server.name, "version": version, "waits_for_standby": durability.waits_for_standby}
    told = f"PostgreSQL {version} at {server.name}"
    if found.unsafe:
        return Finding(CHECK, "warning" if config.database_unsafe else "wrong", f"{told}: {found.meaning}", values)
    return Finding(CHECK, "ok", f"{told}: {durability.meaning}", values)


WAL_RESET_FIXED = (3, 51, 3)
"""The first version of SQLite without the WAL-reset bug."""
SQLITE_BUGS: tuple[tuple[tuple[int, int, int], str], ...] = (
    (
        WAL_RESET_FIXED,
        "the WAL-reset bug, which damages a database that two connections checkpoint at once; "
        "in a node one alone does, so run no other program that writes to the database",
    ),
)
"""The known bugs of SQLite: the first version without the bug, and its effect. Source: SQLite's wal.html."""
LITESTREAM_FOLDER = f".{FILE_NAME}-litestream"


def check_sqlite(version: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, version))
    bugs = [bug for fixed, bug in SQLITE_BUGS if version < fixed]
    if bugs:
        return Finding("sqlite", "warning", f"{text} has {'; and '.join(bugs)}", {"version": text})
    return Finding("sqlite", "ok", f"{text}, no bug known here", {"version": text})


def check_litestream(directory: Path, version: tuple[int, int, int]) -> Finding:
    """Checks whether a Litestream may copy the database beside the node.
    It writes to the database and makes checkpoints, so it must never meet the WAL-reset bug."""
    folder, text = directory / LITESTREAM_FOLDER, ".".join(map(str, version))
    values: Values = {"folder": str(folder) if folder.is_dir() else None, "version": text}
    if not folder.is_dir():
        return Finding("litestream", "ok", "none copies the database", values)
    if version < WAL_RESET_FIXED:
        fixed = ".".join(map(str, WAL_RESET_FIXED))
        return Finding(
            "litestream",
            "wrong",
            f"{folder} is there, and SQLite {text} has the WAL-reset bug: two programs that checkpoint at once can "
            f"damage the database; run the node with SQLite {fixed} or newer, or end Litestream and remove that folder",
            values,
        )
    return Finding("litestream", "ok", f"copies the database; SQLite {text} bears a second program", values)
