"""Short operations that note which thread does them, and a child process that does them until it is killed.

    python -m tests.stream_storage.short_commits_child DIR

Each commit counts as short, whatever the disk. Lines: `began NUMBER THREAD` within the transaction, and then
`confirmed NUMBER`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import trio

from stream_storage import thread_runner
from stream_storage.contract import Append, Operation, Session
from stream_storage.sqlite.database import Database
from stream_storage.thread_runner import ThreadRunner

PATIENCE_S = 30.0


class Short(Operation):
    """An operation that appends one message, and notes the name of the thread that does so."""

    def __init__(self, data: bytes, began: Callable[[str], None] = lambda thread: None) -> None:
        super().__init__(Short.told)
        self.data = data
        self.thread = ""
        self.completed = trio.Event()
        self._began = began

    def apply(self, session: Session) -> None:
        self.thread = threading.current_thread().name
        self._began(self.thread)
        stream = session.log.ensure_stream("s", 0, 1)
        session.log.append([Append(stream.stream_id, stream.next_index, 5, [self.data])])

    def is_short(self) -> bool:
        return True

    def told(self) -> None:
        self.completed.set()


async def do(runner: ThreadRunner, operation: Short) -> str:
    """Does one operation alone. Returns the name of the thread that did it."""
    runner.submit_write(operation)
    with trio.fail_after(PATIENCE_S):
        await operation.completed.wait()
    return operation.thread


def say(line: str) -> None:
    """Prints a line in one system call, so that a kill cannot split it."""
    os.write(1, line.encode() + b"\n")


async def main(directory: Path) -> None:
    thread_runner.COMMIT_S_MAX = PATIENCE_S
    async with ThreadRunner(Database.open(directory)) as runner:
        for number in range(1_000):
            await do(runner, Short(b"%d" % number, lambda thread, number=number: say(f"began {number} {thread}")))  # type: ignore[misc]
            say(f"confirmed {number}")


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
