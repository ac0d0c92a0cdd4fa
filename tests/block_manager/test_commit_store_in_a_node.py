"""The commit store behind the node's one writing thread: shared transactions, and what a killed process leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from block_manager import BlockManager, BlockStoreError, UnknownBlock
from block_manager.commit_store import CommitStore, CommitTable
from stream_storage.commit import commit_batch
from stream_storage.contract import Append, Do, ignore_done
from stream_storage.failpoint import ENVIRONMENT_VARIABLE
from stream_storage.runner import Runner
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.rows import connection_of
from stream_storage.thread_runner import ThreadRunner
from tests.block_manager.commit_samples import open_transactions
from tests.block_manager.crash_child import persist_both, runner_transactions
from tests.block_manager.samples import chain, ids

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
async def runner(tmp_path: Path) -> AsyncIterator[Runner]:
    database = Database.open(tmp_path)
    async with ThreadRunner(database) as opened:
        yield opened
    database.close()


async def test_a_manager_in_a_thread_of_a_node(runner: Runner) -> None:
    await trio.to_thread.run_sync(persist_both, runner)
    store = await trio.to_thread.run_sync(CommitStore, runner_transactions(runner))
    assert await trio.to_thread.run_sync(lambda: ids(store.iter())) == "F E D A"
    assert runner.statistics().operations == 4


async def test_a_damaged_block_fails_no_operation_of_the_node(runner: Runner) -> None:
    """Claim: a walk that comes to a damaged block raises BlockStoreError, and the reading thread has no failure.
    Method: the data of the second block is changed in the table, and a store without a cache walks down to it."""
    transactions = runner_transactions(runner)

    def walk() -> None:
        CommitStore(transactions).put(chain("A B C"))
        transactions.write(lambda c: c.execute("UPDATE commit_blocks SET data = x'00' WHERE block_id = 'B'") and None)
        store = CommitStore(transactions)
        assert ids(store.get("C")) == "C"
        with pytest.raises(BlockStoreError, match=r"^block B in the commit store is damaged"):
            store.get("B")

    await trio.to_thread.run_sync(walk)


def test_a_refused_put_does_not_undo_its_neighbours(tmp_path: Path) -> None:
    """An append and two puts share a transaction. That one put is refused is its answer, and no failure."""
    database = Database.open(tmp_path)
    session = database.session()
    table, statements = CommitTable("s"), list[str]()
    session.begin()
    stream_id = session.log.ensure_stream("stream", 0, 1).stream_id
    session.commit()
    session.connection.set_trace_callback(statements.append)
    append = Append(stream_id, 0, 1, [b"data"])
    refused = Do(lambda session: table.exchange(connection_of(session), chain("X", "B", 3), ["B"]), ignore_done)
    taken = Do(lambda session: table.exchange(connection_of(session), chain("A"), []), ignore_done)
    assert commit_batch(session, [append, refused, taken]) is None
    assert [append.error, refused.error, taken.error] == [None] * 3
    assert isinstance(refused.result, UnknownBlock)
    assert taken.result is None
    assert statements[0] == "BEGIN IMMEDIATE"
    assert statements.count("COMMIT") == 1
    assert not [statement for statement in statements if "ROLLBACK" in statement]
    assert session.log.get_stream(stream_id).next_index == 1
    session.close()
    database.close()


async def test_a_closed_node_is_a_store_error(runner: Runner) -> None:
    store = await trio.to_thread.run_sync(CommitStore, runner_transactions(runner))
    manager = BlockManager()
    manager.put(chain("A"))
    await trio.to_thread.run_sync(manager.add_store, "s", store)
    await runner.aclose()
    with pytest.raises(BlockStoreError, match="the storage is closed"):
        await trio.to_thread.run_sync(manager.persist, "A", "s")


@pytest.mark.parametrize(
    ("site", "left"),
    [
        ("after_rows_before_commit:2", ""),
        ("after_commit_before_confirm:2", "C B A"),
        ("after_rows_before_commit:3", "C B A"),
        ("after_commit_before_confirm:3", "F E D A"),
    ],
)
def test_a_killed_process_leaves_one_branch_whole(tmp_path: Path, site: str, left: str) -> None:
    """Transaction 1 makes sure of the table, 2 stores A B C, 3 exchanges B C for D E F."""
    environment = {**os.environ, ENVIRONMENT_VARIABLE: site, "PYTHONPATH": str(REPOSITORY)}
    child = subprocess.run(
        [sys.executable, "-m", "tests.block_manager.crash_child", str(tmp_path)],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert child.stdout.split() == ["C"][: site.endswith("3")]
    with open_transactions(tmp_path) as transactions:
        manager, store = BlockManager(), CommitStore(transactions)
        manager.add_store("s", store)
        assert ids(store.iter()) == left
        manager.check_integrity()
