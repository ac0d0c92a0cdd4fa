"""The check of `stream-node doctor` for a node whose streams are in PostgreSQL."""

from __future__ import annotations

from stream_node.care.findings import Finding, Values
from stream_node.node.config import Config, ConfigError
from stream_node.node.databases import check_url
from stream_storage.errors import StorageError

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
