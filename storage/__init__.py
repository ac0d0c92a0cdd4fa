"""Storage: the append-only log of many streams in one SQLite file, and the runner that does a node's writes and reads.

    database = Database.open(Path("data"))
    async with ThreadRunner(database) as runner:
        runner.submit_write(Append(stream_id, first_index, time_us, [b"data"], on_done=confirm))

- `Log` is the interface of the log of messages. `Database` keeps the log on disk, `MemoryDatabase` keeps it in memory.
- An `Operation` is one write or read. A `Runner` commits many writes in one transaction (`storage.commit`).
- `storage.sqlite.verify.verify(session)` checks a whole database.
- `storage.sqlite.upgrade` brings a database of an older version up to date, by the revisions in
  `storage.sqlite.migrations`.
- `storage.sqlite.wal` reads a damaged write-ahead log; `storage.sqlite.bulk` reads pages of messages as Arrow in
  another process.
- Other packages define their tables on `metadata`, and read and write these tables by `Session.execute`.

This package contains no networking. Each public name is imported from its module at the first use of the name. So the
child process for bulk reads does not import all modules, and `--help` does not wait for their import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import companion as _companion  # noqa: F401 - first, so that compiled modules are found

if TYPE_CHECKING:
    from storage.contract import Append, Log, Operation, Record, Session, StreamRecord
    from storage.engine import SessionSource
    from storage.errors import (
        CommitInDoubt,
        DatabaseCorrupt,
        DatabaseInUse,
        DatabaseTooNew,
        DatabaseTooOld,
        DiskFailed,
        DiskFull,
        DiskReadFailed,
        IndexConflict,
        MigrationFailed,
        NoRoomToUpgrade,
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
    from storage.sqlite.database import Database
    from storage.thread_runner import ThreadRunner

__all__ = [
    "Append",
    "Batches",
    "CommitInDoubt",
    "Database",
    "DatabaseCorrupt",
    "DatabaseInUse",
    "DatabaseTooNew",
    "DatabaseTooOld",
    "DiskFailed",
    "DiskFull",
    "DiskReadFailed",
    "IndexConflict",
    "InlineRunner",
    "Log",
    "MemoryDatabase",
    "MigrationFailed",
    "NoRoomToUpgrade",
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
    "Database": "sqlite.database",
    "DatabaseCorrupt": "errors",
    "DatabaseInUse": "errors",
    "DatabaseTooNew": "errors",
    "DatabaseTooOld": "errors",
    "DiskFailed": "errors",
    "DiskFull": "errors",
    "DiskReadFailed": "errors",
    "IndexConflict": "errors",
    "InlineRunner": "inline_runner",
    "Log": "contract",
    "MemoryDatabase": "memory",
    "MigrationFailed": "errors",
    "NoRoomToUpgrade": "errors",
    "Operation": "contract",
    "OperationFailed": "errors",
    "Reclaim": "reclaim",
    "Record": "contract",
    "Runner": "runner",
    "RunnerStatistics": "runner",
    "Session": "contract",
    "SessionSource": "engine",
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
"""For each public name of this package: the module that defines the name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
