"""The streams that a node opens at its start, and the check that a member of a cluster has no mirrors."""

from __future__ import annotations

from stream_node.node.config import ConfigError
from stream_node.node.services import stored_streams
from stream_service.mirror_rows import list_mirrors
from stream_service.stored import LIST_PAGE, StoredStream
from stream_storage.engine import Engine

NAMED_MAX = 5


def streams_to_open(database: Engine, is_member: bool) -> list[StoredStream]:
    """Returns the streams that a node serves from its start on; a member of a cluster reads them with its shards.
    Raises ConfigError, StorageError."""
    if not is_member:
        return stored_streams(database)
    check_no_mirrors(database)
    return []


def check_no_mirrors(database: Engine) -> None:
    """Raises ConfigError if a stream follows a source on another node, or fences its former one. Raises StorageError.
    A member of a cluster does neither. Such a stream would take no pushes and get no messages, and a former source that
    returns would take pushes beside it."""
    session = database.read_session()
    try:
        rows = list_mirrors(session)
        names: set[str] = set()
        after = None
        while rows and (page := session.log.list_streams(after=after, limit=LIST_PAGE)):
            names |= {record.name for record in page if record.stream_id in rows}
            after = (page[-1].name, page[-1].partition)
    finally:
        session.close()
    if not names:
        return
    named = ", ".join(map(repr, sorted(names)[:NAMED_MAX]))
    # A stream that only fences its former source is a primary already.
    follows = any(row.follows for row in rows.values())
    promote = " (or `stream-node mirror promote NAME`, for one that follows a source)" if follows else ""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    raise ConfigError(
        f"a member of a cluster, and a node with several workers, has no mirrors, but these streams follow a source on "
        f"another node, or fence their former one: {named}{more}; start this node alone (without --cluster and "
        f"--workers), and run `stream-node mirror remove NAME` for each{promote}"
    )
