"""The commit store: what survives, what is one transaction, what the cache keeps, and what threads see."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from block_manager import Block, BlockManager, BlockStoreError
from block_manager.commit_store import CommitStore
from block_manager.transactions import SessionTransactions
from stream_storage.errors import DiskFailed, StorageClosed
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.rows import connection_of
from tests.block_manager.commit_samples import WatchedTransactions, once, open_transactions
from tests.block_manager.samples import chain, counts, ids, in_memory


@pytest.fixture
def transactions(tmp_path: Path) -> Iterator[WatchedTransactions]:
    with open_transactions(tmp_path / "data") as opened:
        yield WatchedTransactions(opened)


@pytest.fixture
def store(transactions: WatchedTransactions) -> CommitStore:
    return CommitStore(transactions, cached_blocks_max=3)


def disk_full() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
    raise error


def test_blocks_survive_the_process(tmp_path: Path) -> None:
    manager = BlockManager()
    manager.put(chain("A B C"))
    with open_transactions(tmp_path) as transactions:
        manager.add_store("committed", CommitStore(transactions))
        manager.persist("C", "committed")
    restarted = BlockManager()
    with open_transactions(tmp_path) as transactions:
        restarted.add_store("committed", CommitStore(transactions))
        assert list(restarted.branch("C")) == chain("A B C")[::-1]
        assert counts(restarted, "A B C") == "A:0:1 B:0:1 C:1:0"
        restarted.put(chain("D", "C", 4))
        restarted.persist("D", "committed")
        restarted.check_integrity()


def test_stores_of_one_database_do_not_see_each_other(transactions: WatchedTransactions) -> None:
    left, right = CommitStore(transactions, "left"), CommitStore(transactions, "right")
    left.put(chain("A B"))
    right.put(chain("A X"))
    assert (ids(left.iter()), ids(right.iter())) == ("B A", "X A")
    left.delete(["B"])
    assert ids(right.iter()) == "X A"
    assert list(left.get(["X"])) == []


def test_each_put_and_each_delete_is_one_transaction(tmp_path: Path) -> None:
    statements: list[str] = []
    with open_transactions(tmp_path) as transactions:
        store = CommitStore(transactions)
        connection_of(transactions._writing).set_trace_callback(statements.append)
        store.put(chain("A B C"))
        store.put(chain("X Y", "A", 2), ["C", "B"])
        store.delete(["Y"])
    assert [word for word in statements if word in ("BEGIN IMMEDIATE", "COMMIT")] == ["BEGIN IMMEDIATE", "COMMIT"] * 3
    assert not [statement for statement in statements if "ROLLBACK" in statement]


def test_a_disk_that_is_full_in_the_middle_leaves_the_old_branch(
    transactions: WatchedTransactions, store: CommitStore
) -> None:
    manager = BlockManager()
    manager.put(chain("A B C"))
    manager.put(chain("D E", "A", 2))
    manager.add_store("s", store)
    manager.persist("C", "s")
    transactions.before_commit = once(disk_full)
    with pytest.raises(BlockStoreError, match="the commit store 'commit' cannot be written: no room to write"):
        manager.persist("E", "s")
    manager.check_integrity()
    assert ids(store.iter()) == "C B A"
    assert ids(manager.branch("E")) == "E D A"
    manager.persist("E", "s")
    assert ids(store.iter()) == "E D A"


def test_a_commit_that_fails_after_it_was_done(transactions: WatchedTransactions, store: CommitStore) -> None:
    manager = BlockManager()
    manager.put(chain("A B"))
    manager.put(chain("X", "A", 2))
    manager.add_store("s", store)
    manager.persist("B", "s")

    def fail() -> None:
        raise DiskFailed("the disk failed")

    transactions.after_commit = once(fail)
    with pytest.raises(BlockStoreError, match="the disk failed"):
        manager.persist("X", "s")
    assert ids(store.iter()) == "X A", "the cache has forgotten B"
    assert in_memory(manager) == 1
    manager.check_integrity()


def test_after_a_fatal_error_nothing_is_written(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    distrusted: list[bool] = []
    transactions = SessionTransactions(database, on_fatal=lambda: distrusted.append(True))

    def fail(connection: sqlite3.Connection) -> None:
        raise DiskFailed("the disk failed")

    with pytest.raises(DiskFailed):
        transactions.write(fail)
    with pytest.raises(StorageClosed, match="since the disk failed"):
        transactions.write(lambda connection: None)
    assert transactions.read(lambda connection: 5) == 5
    assert distrusted == [True]
    transactions.close()
    transactions.close()
    database.close()


@pytest.mark.parametrize("change", ["data = X'00'", "previous_id = 'A '", "number = 7"])
def test_damaged_blocks_are_found(transactions: WatchedTransactions, store: CommitStore, change: str) -> None:
    store.put(chain("A B"))

    def damage(connection: sqlite3.Connection) -> None:
        connection.execute(f"UPDATE commit_blocks SET {change} WHERE block_id = 'B'")

    transactions.write(damage)
    other = CommitStore(transactions)
    with pytest.raises(BlockStoreError, match="block B in the commit store is damaged"):
        other.get(["B"])
    with pytest.raises(BlockStoreError, match="block B in the commit store is damaged"):
        other.delete(["B"])
    with pytest.raises(BlockStoreError, match="block B in the commit store is damaged"):
        next(other.iter())
    assert ids(other.get(["A"])) == "A"


@pytest.mark.parametrize(
    "block",
    [
        Block("X", "B", 2**63),
        Block("\ud800", "B", 3),
    ],
)
def test_a_block_that_sqlite_cannot_hold_is_refused_and_kept_in_memory(store: CommitStore, block: Block) -> None:
    manager = BlockManager()
    manager.put(chain("A B"))
    manager.put([block])
    manager.add_store("s", store)
    with pytest.raises(BlockStoreError):
        manager.persist(block.block_id, "s")
    manager.persist("B", "s")
    assert in_memory(manager) == 1
    manager.check_integrity()


def test_the_cache_keeps_the_last_blocks_written(transactions: WatchedTransactions, store: CommitStore) -> None:
    store.put(chain("A B C D"))
    before = transactions.read_count
    assert ids(store.get(["D", "C", "B"])) == "D C B"
    assert transactions.read_count == before
    assert ids(store.get(["A"])) == "A"
    assert transactions.read_count == before + 1


def test_a_read_from_disk_is_a_use(store: CommitStore) -> None:
    store.put(chain("A B C D"))
    list(store.get(["A"]))
    assert list(store._cache) == ["C", "D", "A"]


def test_a_read_from_the_cache_is_a_use(store: CommitStore) -> None:
    store.put(chain("A B C D"))
    list(store.get(["B"]))
    list(store.get(["A"]))
    assert list(store._cache) == ["D", "B", "A"]
    statistics = store.statistics()
    assert (statistics.hit_count, statistics.miss_count, statistics.cached_count) == (1, 1, 3)
    assert statistics.write_count == 1


def test_what_is_deleted_or_displaced_leaves_the_cache(store: CommitStore) -> None:
    store.put(chain("A B C"))
    store.put(chain("X", "B", 3), ["C"])
    assert list(store._cache) == ["A", "B", "X"]
    store.delete(["X"])
    assert list(store._cache) == ["A", "B"]
    assert list(store.get(["C", "X"])) == []


def test_a_put_that_is_refused_is_no_use(store: CommitStore) -> None:
    store.put(chain("A"))
    with pytest.raises(BlockStoreError):
        store.put(chain("X"))
    assert list(store.get(["X"])) == []


def test_a_read_that_a_write_overtakes_does_not_fill_the_cache(
    transactions: WatchedTransactions, store: CommitStore
) -> None:
    """The read has seen C, then C is displaced: a cache that took it now would keep a block that is gone."""
    store.put(chain("A B C D E F"))
    transactions.after_read = once(lambda: store.put(chain("X", "B", 3), ["F", "E", "D", "C"]))
    assert ids(store.get(["C"])) == "C", "as it was before the write"
    assert list(store.get(["C"])) == []


def test_a_read_during_a_write_passes_the_cache_by(transactions: WatchedTransactions, store: CommitStore) -> None:
    seen: list[str] = []
    store.put(chain("A B C"))
    before = list(store._cache)
    transactions.after_commit = once(lambda: seen.append(ids(store.get(["A", "B", "C", "X"]))))
    store.put(chain("X", "B", 3), ["C"])
    assert seen == ["A B X"], "committed, though nobody has told the cache"
    assert before == ["A", "B", "C"]
    assert list(store._cache) == ["A", "B", "X"]


def test_a_get_is_of_one_moment(transactions: WatchedTransactions, store: CommitStore) -> None:
    """C comes from the cache, A from disk; in between, C is displaced."""
    store.put(chain("A B C D E"))
    transactions.on_read = once(lambda: store.put(chain("X", "A", 2), ["E", "D", "C", "B"]))
    assert ids(store.get(["C", "A", "X"])) == "A X"


def test_a_store_in_a_database_that_was_opened_before_its_table_was_known(tmp_path: Path) -> None:
    with open_transactions(tmp_path) as transactions:
        transactions.write(lambda connection: connection.execute("DROP TABLE commit_blocks"))
        store = CommitStore(transactions)
        store.put(chain("A"))
        assert ids(store.iter()) == "A"


def test_a_closed_database_is_a_store_error(tmp_path: Path) -> None:
    with open_transactions(tmp_path) as transactions:
        store = CommitStore(transactions, cached_blocks_max=0)
        store.put(chain("A"))
    with pytest.raises(BlockStoreError):
        store.get(["A"])
    with pytest.raises(BlockStoreError):
        store.put(chain("B", "A", 2))
    with pytest.raises(BlockStoreError):
        next(store.iter())


def test_the_checksum_of_a_row_as_documented(transactions: WatchedTransactions, store: CommitStore) -> None:
    store.put([Block("A", "P", 9, b"data")])
    row = transactions.read(
        lambda connection: connection.execute("SELECT store, number, checksum, data FROM commit_blocks").fetchone()
    )
    assert row == ("commit", 9, zlib.crc32(b"data", zlib.crc32(b"9:P:A")), b"data")


def test_a_walk_reads_a_page_in_one_transaction(transactions: WatchedTransactions) -> None:
    """Goal: a branch of 500 blocks costs 500 / 64 transactions and not 500; two walks at once do not disturb each
    other. Method: the reads of the database are counted, with a cache that holds nothing of the branch at first."""
    names = " ".join(f"B{number}" for number in range(500))
    blocks = chain(names)
    CommitStore(transactions).put(blocks)
    manager = BlockManager()
    manager.add_store("committed", CommitStore(transactions))
    before = transactions.read_count
    assert list(manager.branch("B499")) == blocks[::-1]
    assert transactions.read_count - before < 20
    manager = BlockManager()
    manager.add_store("committed", CommitStore(transactions))
    before = transactions.read_count
    pairs = list(zip(manager.branch("B499"), manager.branch("B250"), strict=False))
    assert pairs == list(zip(blocks[::-1], blocks[250::-1], strict=False))
    assert transactions.read_count - before < 30


def test_a_damaged_block_ends_a_walk_where_it_stands(transactions: WatchedTransactions) -> None:
    blocks = chain("A B C D E")
    CommitStore(transactions).put(blocks)
    change = "UPDATE commit_blocks SET data = x'00' WHERE block_id = 'B'"
    transactions.write(lambda connection: connection.execute(change).close())
    store = CommitStore(transactions)
    assert [next(store.get((name,))) for name in "EDC"] == blocks[:1:-1]
    with pytest.raises(BlockStoreError, match="block B in the commit store is damaged"):
        store.get(("B",))
