"""A child process for crash tests: they kill it, take its disk space or count its syncs. It prints a JSON line per
step.

    python storage_child.py push DIR BATCHES [WINDOW]   append batches to two streams, at most WINDOW unconfirmed
    python storage_child.py fill DIR                    append until the disk is full, make room, append again
    python storage_child.py limit DIR                   as fill, with a limit on the size of files
    python storage_child.py open DIR                    open and close

Lines: {"confirmed": batches}, {"error": class, "text": message}, {"done": batches}.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import structlog
import trio

from stream_storage.contract import Append, Operation, Session
from stream_storage.errors import StorageError
from stream_storage.sqlite import checkpointer, database
from stream_storage.sqlite.database import Database
from stream_storage.thread_runner import ThreadRunner

ROWS = 7
STREAMS = ("one", "two")
BALLAST = "ballast"
LARGE_BYTES = 32 * 1024


def batch_data(batch: int) -> list[bytes]:
    """The messages that one batch appends to each stream."""
    return [b"batch %d row %d " % (batch, row) * (1 + (batch * row) % 40) for row in range(ROWS)]


def say(**line: Any) -> None:
    """Print one line in one system call, so that a kill cannot split it."""
    os.write(1, json.dumps(line).encode() + b"\n")


class Push(Operation):
    """An operation that appends one batch to both streams, all or nothing. data: by default that of `batch_data`."""

    def __init__(self, batch: int, data: list[bytes] | None = None) -> None:
        super().__init__(Push.told)
        self.batch = batch
        self.data = batch_data(batch) if data is None else data
        self.done = trio.Event()

    def apply(self, session: Session) -> None:
        records = [session.log.ensure_stream(name, 0, 1) for name in STREAMS]
        session.log.append([Append(record.stream_id, record.next_index, self.batch, self.data) for record in records])

    def told(self) -> None:
        if self.error is None:
            say(confirmed=self.batch + 1)
        else:
            say(error=type(self.error).__name__, text=str(self.error))
        self.done.set()


async def push(path: Path, batches: int, window: int) -> None:
    opened = Database.open(path)
    async with ThreadRunner(opened) as runner:
        unconfirmed: list[Push] = []
        for batch in range(batches):
            unconfirmed.append(Push(batch))
            runner.submit_write(unconfirmed[-1])
            if len(unconfirmed) == window:
                await unconfirmed.pop(0).done.wait()
    opened.close()
    say(done=batches)


async def fill(path: Path, *, limited: bool) -> None:
    """Append large batches until one fails, then small ones until one fails; then make room and append one more."""
    opened = Database.open(path)
    ballast = path / BALLAST
    ballast.write_bytes(os.urandom(4 * LARGE_BYTES))
    if limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 * LARGE_BYTES, resource.RLIM_INFINITY))
    stored = 0
    async with ThreadRunner(opened) as runner:
        for size_bytes in (LARGE_BYTES, 1):
            while True:
                operation = Push(stored, [os.urandom(size_bytes)])
                runner.submit_write(operation)
                await operation.done.wait()
                if operation.error is not None:
                    break
                stored += 1
        ballast.unlink()
        if limited:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        operation = Push(stored, [b"after"])
        runner.submit_write(operation)
        await operation.done.wait()
    opened.close()
    say(done=stored + 1)


def main(verb: str, directory: str, batches: str = "0", window: str = "1") -> None:
    """Run one command. STORAGE_CHILD_SYNCHRONOUS and STORAGE_CHILD_CHECKPOINT_COMMITS replace constants."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if "STORAGE_CHILD_SYNCHRONOUS" in os.environ:
        database.PRAGMAS["synchronous"] = int(os.environ["STORAGE_CHILD_SYNCHRONOUS"])
    if "STORAGE_CHILD_CHECKPOINT_COMMITS" in os.environ:
        checkpointer.CHECKPOINT_COMMITS = float(os.environ["STORAGE_CHILD_CHECKPOINT_COMMITS"])  # type: ignore[assignment]
    try:
        if verb == "push":
            trio.run(push, Path(directory), int(batches), int(window))
        elif verb == "open":
            Database.open(Path(directory)).close()
            say(done=0)
        else:
            trio.run(lambda: fill(Path(directory), limited=verb == "limit"))
    except StorageError as error:
        say(error=type(error).__name__, text=str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
