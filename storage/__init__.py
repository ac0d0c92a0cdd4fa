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

_MODULES = ("contract", "errors", "reclaim", "schema", "database", "memory", "runner", "thread_runner", "inline_runner")
"""The modules that define the names of `__all__`. The modules that load fastest come first."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in __all__:
        for module in map(import_module, (f"{__name__}.{each}" for each in _MODULES)):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
