"""Runs commands without parameters, such as BEGIN and COMMIT, in one trip to the server."""

from __future__ import annotations

from typing import Any

from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from storage.errors import ConnectionLost
from storage.postgres.deadlines import Deadlines
from storage.postgres.errors import one_line, server_error
from storage.postgres.server import Connection

_GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def command(connection: Connection, deadlines: Deadlines, text: bytes) -> Any:
    """Runs one command, or several that are separated by semicolons. Returns the result of the last one, an object of
    `psycopg.pq`. Raises StorageError.
    """
    wire = connection.pgconn
    if wire.status != ConnStatus.OK:
        raise ConnectionLost("the connection is closed")
    descriptor = wire.socket
    deadlines.begin(descriptor)
    try:
        result = wire.exec_(text)
    finally:
        deadlines.end(descriptor)
    if result.status not in _GOOD:
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        reason = one_line(result.error_message.decode(errors="replace"))
        raise server_error(state, reason, broken=wire.status != ConnStatus.OK)
    return result
