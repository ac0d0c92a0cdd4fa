"""Maps the errors of PostgreSQL and of its driver to StorageError."""

from __future__ import annotations

import psycopg

from stream_storage import errors
from stream_storage.errors import NO_ROOM, DiskFailed, DiskFull, StorageReadOnly

_LOST_CLASSES = ("08", "57P", "25006")
"""Prefixes of SQLSTATE: connection failed; the server shuts down or starts; the server has become a standby."""
_BUSY_CLASSES = ("40001", "40P01", "55P03")
_FULL_CLASSES = ("53100",)
_DAMAGED_CLASSES = ("XX001", "XX002")
_DISK_CLASSES = ("58",)
_REFUSED_CLASSES = ("42501", "28")
_CANCELLED_STATE = "57014"
_LIMIT_CLASSES = ("53",)
REPLACED_STATE = "22012"
"""Division by zero. Only one statement divides: the check that this node is still the one that writes
(`stream_storage.postgres.ownership`)."""


def storage_error(error: BaseException, *, broken: bool = False) -> errors.StorageError:
    """Returns the StorageError for an exception. broken: whether the connection is unusable."""
    if isinstance(error, errors.StorageError):
        return error
    if isinstance(error, OSError):
        return errors.system_error(error)
    if not isinstance(error, psycopg.Error):
        return errors.OperationFailed(f"the operation failed: {type(error).__name__}: {error}; report this mistake")
    return server_error(error.sqlstate or "", one_line(str(error)), broken=broken)


def server_error(state: str, reason: str, *, broken: bool = False) -> errors.StorageError:
    """Returns the StorageError for an error of the server. state: its SQLSTATE; empty if the server sent none."""
    told = f"{reason} ({state})" if state else reason
    if broken or state.startswith(_LOST_CLASSES):
        return errors.DatabaseLost(told)
    if state == REPLACED_STATE:
        return errors.NodeReplaced()
    if state.startswith(_BUSY_CLASSES):
        return errors.StorageBusy(f"the database is held by another program: {told}; end that program, then repeat")
    if state == _CANCELLED_STATE:
        return errors.StorageBusy(f"the database server has cancelled the operation: {told}; repeat it")
    if state.startswith(_FULL_CLASSES):
        return DiskFull(f"{NO_ROOM}: the database server says: {told}; free space on its disk, then repeat")
    if state.startswith(_DAMAGED_CLASSES):
        damaged = errors.DatabaseCorrupt(
            f"the database is damaged: {told}; stop the node, and restore a base backup or promote a standby"
        )
        damaged.fatal = True
        return damaged
    if state.startswith(_DISK_CLASSES):
        return DiskFailed(f"the disk of the database server failed: {told}; stop the node, and check that server")
    if state.startswith(_REFUSED_CLASSES):
        return StorageReadOnly(f"the database refused access: {told}; give the role of the node the rights it needs")
    if state.startswith(_LIMIT_CLASSES):
        return errors.StorageBusy(f"the database server has reached a limit: {told}; raise the limit, then repeat")
    return errors.OperationFailed(f"the database refused the operation: {told}; report this mistake")


def one_line(text: str) -> str:
    """Returns a text without line breaks: the driver puts several hosts, or a hint, on lines of their own."""
    return "; ".join(filter(None, map(str.strip, text.splitlines())))
