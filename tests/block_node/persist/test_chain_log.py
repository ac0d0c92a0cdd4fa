"""Goal: blocks are stored whole or not at all, found by number however they came, and their index can be rebuilt.

Method: a real database; what is stored is compared with what went in, and the log is verified at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from block_node.persist import chain_log
from block_node.persist.chain_log import (
    ChainLog,
    NewBlock,
    PredecessorMissing,
    StagedPartMissing,
    StoredBlockDiffers,
    stream_name,
)
from block_node.persist.mark import PART_BYTES_MAX, find_mark, key_of
from block_node.persist.ranges import BlockRanges
from stream_storage.contract import Append, Engine
from stream_storage.errors import DatabaseCorrupt
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.verify import verify
from tests.block_node.persist.block_samples import (
    block_of,
    check_database,
    items_of,
    open_chain,
    read_block,
    root_of,
    serialized,
)
from tests.stream_storage.storage_samples import reading, writing
from tests.support.databases import execute_text, open_database

pytestmark = pytest.mark.usefixtures("each_database")

LOG = ChainLog("test")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(tmp_path / "data")
    open_chain(opened, LOG)
    yield opened
    opened.close()
    check_database(tmp_path / "data")


def store(database: Engine, *blocks: NewBlock) -> None:
    with writing(database) as session:
        for block in blocks:
            LOG.store(session, block, 5)


def test_blocks_are_found_by_number_in_whatever_order_they_came(database: Engine) -> None:
    order = [5, 6, 2, 0, 7, 1]
    store(database, *map(block_of, order))
    with reading(database) as session:
        state = LOG.state(session)
        assert list(state.available) == [(0, 2), (5, 7)]
        assert state.stored == state.available
        assert state.newest == LOG.find(session, 7)
        assert (state.blocks, state.size_bytes) == (6, sum(len(serialized(items_of(n))) for n in order))
        for number in order:
            place = LOG.find(session, number)
            assert place is not None
            assert read_block(session, LOG, place) == serialized(items_of(number))
            assert (place.root, place.items) == (root_of(items_of(number)), 3)
        assert [place.number for place in LOG.places(session, 5, 10)] == [5, 6, 7]
        assert LOG.places(session, 3, 10) == []
        assert LOG.roots(session, 5) == [root_of(items_of(number)) for number in (0, 1, 2, 5)]
        assert [LOG.find(session, number) for number in (3, -1, 2**63, 2**64 - 1)] == [None] * 4


def test_the_messages_of_a_block_say_what_they_are(database: Engine) -> None:
    """Key and mark are a promise to those who read the stream itself."""
    items = items_of(1, 3, PART_BYTES_MAX)
    store(database, block_of(0), block_of(1, items))
    with reading(database) as session:
        records = session.log.read(LOG.stream(session).stream_id, 0, 100, 1 << 30)
    assert [record[3] for record in records] == [key_of(0)] + [key_of(1)] * 4
    marks = [find_mark(record[4]) for record in records]
    assert [(mark.number, mark.part, mark.parts) for mark in marks if mark] == [(0, 0, 1)] + [
        (1, n, 4) for n in range(4)
    ]
    assert all(mark is not None and mark.root == root_of(items) and mark.items == 3 for mark in marks[1:])
    assert b"".join(record[1] for record in records[1:]) == serialized(items)
    assert find_mark(None) is None


def test_the_same_block_again_changes_nothing_and_another_one_is_refused(database: Engine) -> None:
    store(database, block_of(4))
    with writing(database) as session:
        before = LOG.state(session), LOG.stream(session)
        assert LOG.store(session, block_of(4), 6)[:2] == (LOG.find(session, 4), False)
        with pytest.raises(StoredBlockDiffers, match="block 4 is stored with root"):
            LOG.store(session, block_of(4, items_of(99)), 6)
        assert (LOG.state(session), LOG.stream(session)) == before


def test_a_block_is_not_stored_without_the_one_it_was_to_follow(database: Engine) -> None:
    with writing(database) as session:
        with pytest.raises(PredecessorMissing, match="block 3 is not stored, since block 2"):
            LOG.store(session, block_of(3), 5, behind=2)
        LOG.store(session, block_of(2), 5)
        LOG.store(session, block_of(3), 5, behind=2)
        assert list(LOG.state(session).available) == [(2, 3)]


def test_a_staged_block_is_stored_as_if_it_had_come_at_once(database: Engine) -> None:
    parts = [bytes((number,)) * PART_BYTES_MAX for number in range(20)]
    block = NewBlock(1, b"r" * 48, 7, [b"rest"], 9, len(parts), len(parts) * PART_BYTES_MAX)
    with writing(database) as session:
        LOG.stage(session, 9, 0, parts[:12])
        LOG.stage(session, 9, 12, parts[12:])
        LOG.stage(session, 8, 0, [b"of another block"])
    store(database, block_of(0), block, block_of(2))
    with reading(database) as session:
        place = LOG.find(session, 1)
        assert place is not None
        assert read_block(session, LOG, place) == b"".join(parts) + b"rest"
        assert (place.parts, place.size_bytes) == (21, 20 * PART_BYTES_MAX + 4)
        assert execute_text(session, "SELECT attempt FROM block_staged").fetchall() == [(8,)]
    open_chain(database, LOG)
    with reading(database) as session:
        assert execute_text(session, "SELECT attempt FROM block_staged").fetchall() == []


def test_a_block_whose_staged_parts_were_lost_is_not_stored(database: Engine) -> None:
    block = NewBlock(1, b"r" * 48, 7, [b"rest"], 9, 2, 2 * PART_BYTES_MAX)
    with writing(database) as session:
        LOG.stage(session, 9, 0, [b"x" * PART_BYTES_MAX])
        session.savepoint()
        with pytest.raises(StagedPartMissing, match="part 1 of block 1"):
            LOG.store(session, block, 5)
        session.rollback_to()
        assert LOG.find(session, 1) is None
        LOG.unstage(session, 9)
        assert execute_text(session, "SELECT count(*) FROM block_staged").fetchone() == (0,)


@pytest.mark.parametrize("loss", ["rows of the index", "the chain's row", "a block too many"])
def test_the_index_is_rebuilt_from_the_stream(database: Engine, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with the tables shows in the chain's row, which names the stream's end with every change."""
    monkeypatch.setattr(chain_log, "REBUILD_PAGE_MESSAGES", 2)
    numbers = [3, 4, 1, 5]
    store(database, *map(block_of, numbers), block_of(2, items_of(2, 3, PART_BYTES_MAX)))
    with reading(database) as session:
        before = LOG.state(session)
    with writing(database) as session:
        if loss == "rows of the index":
            execute_text(session, "DELETE FROM block_index WHERE number > 1")
            execute_text(session, "UPDATE block_chains SET indexed_to = 3")
        elif loss == "the chain's row":
            execute_text(session, "DELETE FROM block_chains")
        else:
            LOG.store(session, block_of(9), 5)
            session.log.truncate_before(LOG.stream(session).stream_id, 0)
            execute_text(session, "UPDATE block_chains SET indexed_to = 4")
            execute_text(session, "UPDATE block_index SET first_index = first_index + 1 WHERE number = 3")
    rebuilt = open_chain(database, LOG)
    with reading(database) as session:
        if loss == "a block too many":
            assert list(rebuilt.available) == [(1, 5), (9, 9)]
        else:
            assert (rebuilt.available, rebuilt.blocks, rebuilt.size_bytes) == (before.available, 5, before.size_bytes)
        assert rebuilt.verifier_state == b""
        for number in numbers:
            place = LOG.find(session, number)
            assert place is not None
            assert read_block(session, LOG, place) == serialized(items_of(number))


def test_nothing_is_rebuilt_where_nothing_is_missing(database: Engine) -> None:
    """A rebuild forgets the verifier's state, so that it shows."""
    store(database, block_of(0), block_of(1))
    state = open_chain(database, LOG)
    assert (list(state.available), state.verifier_state) == ([(0, 1)], b"behind 1")


def test_a_stream_with_something_else_in_it_is_not_taken(database: Engine) -> None:
    store(database, block_of(0))
    with writing(database) as session:
        stream = LOG.stream(session)
        session.log.append([Append(stream.stream_id, stream.next_index, 5, [b"no block"])])
    with pytest.raises(DatabaseCorrupt, match=r"message 1 of the stream 'block_node.test' is no part of a block"):
        open_chain(database, LOG)


@pytest.mark.parametrize(
    ("column", "value", "index"),
    [("first_index", 0, 0), ("root", bytes(48), 1), ("size_bytes", 7, 1), ("items", 7, 1), ("parts", 2, 1)],
)
def test_a_mistake_of_the_index_does_not_become_a_wrong_block(
    database: Engine, column: str, value: object, index: int
) -> None:
    """A row that points at another block's message, or has another root than the block that it points at."""
    store(database, block_of(0), block_of(1))
    with writing(database) as session:
        execute_text(session, f"UPDATE block_index SET {column} = :value WHERE number = 1", value=value)
    with reading(database) as session:
        place = LOG.find(session, 1)
        assert place is not None
        with pytest.raises(DatabaseCorrupt, match=f"index {index} does not have part 0 of block 1"):
            LOG.read(session, place, 0, 1 << 20)
        if isinstance(database, Database):
            assert [problem[:24] for problem in verify(session).problems] == ["the row of block_index w"]
    with writing(database) as session:
        execute_text(session, "DELETE FROM block_chains")
    open_chain(database, LOG)


def test_the_lowest_blocks_are_evicted_and_remembered(database: Engine) -> None:
    store(database, *map(block_of, [4, 5, 6, 1, 2, 3]))
    with writing(database) as session:
        assert [place.number for place in LOG.evict(session, 2)] == [1, 2]
        state = LOG.state(session)
        assert (list(state.available), list(state.stored)) == ([(3, 6)], [(1, 6)])
        assert LOG.stream(session).first_index == 0, "block 4 is still there, and was stored before them"
        assert [place.number for place in LOG.evict(session, 3)] == [3, 4, 5]
        assert LOG.stream(session).first_index == 2
        assert LOG.evict(session, 5) == [], "the highest block stays"
        state = LOG.state(session)
        assert (list(state.available), list(state.stored), state.blocks) == ([(6, 6)], [(1, 6)], 1)
        assert state.size_bytes == len(serialized(items_of(6)))
    state = open_chain(database, LOG)
    assert (list(state.available), list(state.stored)) == ([(6, 6)], [(1, 6)])


def test_a_chain_without_blocks_leaves_no_trace(database: Engine) -> None:
    assert len(open_chain(database, LOG).available) == 0
    with reading(database) as session:
        assert session.log.list_streams() == []
    store(database, block_of(0))
    with reading(database) as session:
        assert [stream.name for stream in session.log.list_streams()] == [stream_name("test")]


def test_each_chain_has_a_stream_of_its_own(database: Engine) -> None:
    other = ChainLog("other")
    assert len(open_chain(database, other).available) == 0
    store(database, block_of(3))
    with writing(database) as session:
        other.store(session, block_of(3, items_of(30)), 5)
        assert other.state(session).available == LOG.state(session).available == BlockRanges([(3, 3)])
        assert session.log.find_stream(stream_name("other"), 0) is not None
