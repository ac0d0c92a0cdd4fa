"""Storage: the append-only log of many streams in one SQLite file, and the runner that does a node's writes and reads.

    database = Database.open(Path("data"))
    async with ThreadRunner(database) as runner:
        runner.submit_write(Append(stream_id, first_index, time_us, [b"data"], on_done=confirm))

- `Log` is the contract of the log. `Database` keeps the log on disk, `MemoryDatabase` in memory.
- An `Operation` is a piece of work inside a transaction; a `Runner` commits many of them together (`storage.commit`).
- `storage.verify.verify(session)` checks a whole database.
- `storage.wal` reads a damaged write-ahead log; `storage.bulk` reads pages as Arrow in another process.
- Other packages add their tables to `metadata`, and use them through `Session.connection`.

This package knows nothing of messages, routes or protocols. A name of this package is imported at its first use: the
child process for bulk reads must not import these modules, and `--help` must not wait for the import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.contract import Append, Log, Operation, Record, Session, SessionSource, StreamRecord
    from storage.database import Database
    from storage.errors import (
        CommitInDoubt,
        DatabaseCorrupt,
        DatabaseInUse,
        DatabaseTooNew,
        DiskFailed,
        DiskFull,
        DiskReadFailed,
        IndexConflict,
        OperationFailed,
        StorageBusy,
        StorageClosed,
        StorageError,
        StorageReadOnly,
        StreamNotFound,
        WalDamaged,
        WriteFailed,
    )
    from storage.inline_runner import InlineRunner
    from storage.memory import MemoryDatabase
    from storage.reclaim import Reclaim
    from storage.runner import Batches, Runner, RunnerStatistics
    from storage.schema import metadata
    from storage.thread_runner import ThreadRunner

__all__ = [
    "Append",
    "Batches",
    "CommitInDoubt",
    "Database",
    "DatabaseCorrupt",
    "DatabaseInUse",
    "DatabaseTooNew",
    "DiskFailed",
    "DiskFull",
    "DiskReadFailed",
    "IndexConflict",
    "InlineRunner",
    "Log",
    "MemoryDatabase",
    "Operation",
    "OperationFailed",
    "Reclaim",
    "Record",
    "Runner",
    "RunnerStatistics",
    "Session",
    "SessionSource",
    "StorageBusy",
    "StorageClosed",
    "StorageError",
    "StorageReadOnly",
    "StreamNotFound",
    "StreamRecord",
    "ThreadRunner",
    "WalDamaged",
    "WriteFailed",
    "metadata",
]

_MODULES = {
    "Append": "contract",
    "Batches": "runner",
    "CommitInDoubt": "errors",
    "Database": "database",
    "DatabaseCorrupt": "errors",
    "DatabaseInUse": "errors",
    "DatabaseTooNew": "errors",
    "DiskFailed": "errors",
    "DiskFull": "errors",
    "DiskReadFailed": "errors",
    "IndexConflict": "errors",
    "InlineRunner": "inline_runner",
    "Log": "contract",
    "MemoryDatabase": "memory",
    "Operation": "contract",
    "OperationFailed": "errors",
    "Reclaim": "reclaim",
    "Record": "contract",
    "Runner": "runner",
    "RunnerStatistics": "runner",
    "Session": "contract",
    "SessionSource": "contract",
    "StorageBusy": "errors",
    "StorageClosed": "errors",
    "StorageError": "errors",
    "StorageReadOnly": "errors",
    "StreamNotFound": "errors",
    "StreamRecord": "contract",
    "ThreadRunner": "thread_runner",
    "WalDamaged": "errors",
    "WriteFailed": "errors",
    "metadata": "schema",
}
"""The module that defines each name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
