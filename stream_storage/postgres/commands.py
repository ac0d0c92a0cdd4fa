"""Runs the text of commands, such as BEGIN and COMMIT, in one trip to the server. Values stand in the text itself.

Several commands in one text are a part of the open transaction, or begin one. The server does nothing after a command
that fails."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Any

from psycopg import OperationalError
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from stream_storage.errors import DatabaseLost
from stream_storage.postgres.deadlines import Deadlines
from stream_storage.postgres.errors import one_line, server_error
from stream_storage.postgres.server import Connection

_GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def command(connection: Connection, deadlines: Deadlines, text: bytes, payload: bytes | None = None) -> Any:
    """Runs one command, or several that are separated by semicolons; `payload` has the rows of a COPY FROM STDIN among
    them. Returns the `psycopg.pq` result of the last command. Raises StorageError."""
    wire = connection.pgconn
    if wire.status != ConnStatus.OK:
        raise DatabaseLost("the connection is closed")
    descriptor = wire.socket
    deadlines.begin(descriptor)
    try:
        # The driver releases the interpreter's lock once for the whole trip.
        result = wire.exec_(text)
        if payload is not None and result.status == ExecStatus.COPY_IN:
            # The rows and the commit have the time of a call for themselves.
            deadlines.begin(descriptor)
            result = _send_rows(wire, payload)
    except OperationalError as error:
        raise DatabaseLost(one_line(str(error))) from error
    finally:
        deadlines.end(descriptor)
    if result.status not in _GOOD:
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        reason = one_line(result.error_message.decode(errors="replace"))
        raise server_error(state, reason, broken=wire.status != ConnStatus.OK)
    return result


def check_open(connection: Connection) -> None:
    """Raises DatabaseLost if the server has ended the connection, as far as this machine knows already."""
    if connection.closed:
        raise DatabaseLost("the connection is closed")
    wire = connection.pgconn
    readable = select.poll()
    readable.register(wire.socket, select.POLLIN)
    try:
        # A server that ends a connection may send the reason before the end.
        while readable.poll(0):
            wire.consume_input()
    except OperationalError as error:
        raise DatabaseLost(one_line(str(error))) from error


def as_literal(value: int | bytes | None) -> bytes:
    if value is None:
        return b"NULL"
    return b"%d" % value if isinstance(value, int) else b"'\\x%s'" % value.hex().encode()


def integers_literal(values: Iterable[int]) -> bytes:
    return b"'{%s}'" % ",".join(map(str, values)).encode()


def _send_rows(wire: Any, payload: bytes) -> Any:
    """Sends the rows of a COPY, and returns the result of the last command, or of the one that failed."""
    ready = select.poll()
    ready.register(wire.socket, select.POLLIN | select.POLLOUT)
    while wire.put_copy_data(payload) == 0:
        _flush(wire, ready)
    while wire.put_copy_end() == 0:
        _flush(wire, ready)
    _flush(wire, ready)
    # The results come in the order of the commands. The first failure is the one to report.
    ready.modify(wire.socket, select.POLLIN)
    last = None
    while True:
        while wire.is_busy():
            ready.poll()
            wire.consume_input()
        result = wire.get_result()
        if result is None:
            assert last is not None, "every command has a result"
            return last
        if last is None or last.status in _GOOD:
            last = result


def _flush(wire: Any, ready: select.poll) -> None:
    """Sends everything that waits to be sent. The server may answer before it has read everything."""
    while wire.flush():
        if any(event & select.POLLIN for _, event in ready.poll()):
            wire.consume_input()
