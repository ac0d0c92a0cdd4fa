"""Joined transactions: work of a program and a change of the blocks are on disk together, or neither is.

Independent check: what is on disk is read through another connection, which sees only what was committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

import pytest

import block_manager
from block_manager import Block, BlockManager, BlockStoreError, CommitStore, JoinedTransactions
from stream_storage.sqlite.database import FILE_NAME
from tests.block_manager.commit_samples import open_transactions
from tests.block_manager.samples import chain, ids


class Program:
    """A program that keeps the ids it has seen in a table of its own, beside a commit store."""

    def __init__(self, directory: Path, joined: JoinedTransactions) -> None:
        self._file = directory / FILE_NAME
        self.joined = joined
        self.store = CommitStore(joined)
        joined.write(lambda connection: connection.execute("CREATE TABLE seen (block_id TEXT PRIMARY KEY)"))

    def see(self, connection: Connection) -> None:
        connection.execute("INSERT INTO seen VALUES ('mine')")

    def on_disk(self, table: str) -> int:
        with sqlite3.connect(self._file) as other:
            count: int = other.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        other.close()
        return count


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with open_transactions(tmp_path) as transactions:
        yield Program(tmp_path, JoinedTransactions(transactions))


def test_both_are_committed_as_one(program: Program) -> None:
    manager = BlockManager()
    manager.put(chain("A B"))
    manager.add_store("s", program.store)
    with program.joined.also(program.see):
        assert program.on_disk("seen") == 0, "the work waits for the first write"
        manager.persist("B", "s")
        assert (program.on_disk("seen"), program.on_disk("commit_blocks")) == (1, 2)
    assert program.on_disk("seen") == 1, "the work is done once"
    assert ids(program.store.iter()) == "B A"


def test_without_a_write_the_work_is_committed_at_the_end(program: Program) -> None:
    with program.joined.also(program.see):
        assert ids(program.store.iter()) == ""
    assert program.on_disk("seen") == 1


def test_a_failed_statement_leaves_the_work_undone(program: Program) -> None:
    with pytest.raises(RuntimeError, match="mine"), program.joined.also(program.see):
        raise RuntimeError("mine")
    program.store.put(chain("A"))
    assert (program.on_disk("seen"), program.on_disk("commit_blocks")) == (0, 1)


def test_a_refused_change_undoes_the_work(program: Program) -> None:
    program.store.put([Block("A", block_manager.NULL_BLOCK_ID, 1, b"one")])
    with pytest.raises(BlockStoreError, match="no branch"), program.joined.also(program.see):
        program.store.put([Block("A", block_manager.NULL_BLOCK_ID, 1, b"other")])
    assert program.on_disk("seen") == 0


def test_work_that_fails_undoes_the_change(program: Program) -> None:
    def fail(connection: Connection) -> None:
        program.see(connection)
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), program.joined.also(fail):
        program.store.put(chain("A B"))
    assert (program.on_disk("seen"), program.on_disk("commit_blocks")) == (0, 0)


def test_the_names_of_a_store_are_public() -> None:
    assert [name for name in block_manager.__all__ if not hasattr(block_manager, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'Commit'"):
        _ = block_manager.Commit
