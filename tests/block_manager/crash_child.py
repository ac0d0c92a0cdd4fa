"""A process that persists one branch and then another in a node's database, and is killed where it was told to be.

Arguments: the data directory. It writes a line when the first branch is stored, and one when the second is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from block_manager import BlockManager
from block_manager.commit_store import CommitStore
from block_manager.transactions import RunnerTransactions
from stream_storage.contract import Operation
from stream_storage.runner import Runner
from stream_storage.sqlite.database import Database
from stream_storage.thread_runner import ThreadRunner
from tests.block_manager.samples import chain


def runner_transactions(runner: Runner) -> RunnerTransactions:
    """For threads of `trio.to_thread`."""

    def submit_write(operation: Operation) -> None:
        trio.from_thread.run_sync(runner.submit_write, operation)

    def submit_read(operation: Operation) -> None:
        trio.from_thread.run_sync(runner.submit_read, operation)

    return RunnerTransactions(submit_write, submit_read)


def persist_both(runner: Runner) -> None:
    manager = BlockManager()
    manager.put(chain("A B C"))
    manager.put(chain("D E F", "A", 2))
    manager.add_store("s", CommitStore(runner_transactions(runner)))
    for head in "CF":
        manager.persist(head, "s")
        sys.stdout.write(f"{head}\n")
        sys.stdout.flush()


async def run(directory: Path) -> None:
    database = Database.open(directory)
    async with ThreadRunner(database) as runner:
        await trio.to_thread.run_sync(persist_both, runner)
    database.close()


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]))
