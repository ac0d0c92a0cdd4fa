"""The contract of block stores, on every implementation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from block_manager import (
    NULL_BLOCK_ID,
    Block,
    BlockManagerError,
    BlockStore,
    BlockStoreError,
    MemoryStore,
    UnknownBlock,
)
from block_manager.commit_store import CommitStore
from tests.block_manager.commit_samples import open_transactions
from tests.block_manager.samples import chain, ids


@pytest.fixture(params=["memory", "commit", "commit without cache"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with open_transactions(tmp_path / "data") as transactions:
        yield CommitStore(transactions, cached_blocks_max=0 if "without" in request.param else 2)


@pytest.fixture
def filled(store: BlockStore) -> BlockStore:
    store.put(chain("A B C D"))
    return store


def test_an_empty_store(store: BlockStore) -> None:
    assert list(store.iter()) == []
    assert list(store.get(["A"])) == []
    assert store.delete([]) == []
    store.put([])
    assert list(store.iter()) == []


def test_put_get_and_iter(filled: BlockStore) -> None:
    assert list(filled.iter()) == chain("A B C D")[::-1]
    assert list(filled.get(["D", "A"])) == [chain("A B C D")[3], chain("A")[0]]


def test_get_leaves_out_what_is_not_here_and_keeps_the_order(filled: BlockStore) -> None:
    assert ids(filled.get(["D", "Z", "A", "D", NULL_BLOCK_ID, "B"])) == "D A D B"
    assert list(filled.get(iter(["Z"]))) == []


def test_put_continues_the_branch(filled: BlockStore) -> None:
    filled.put(chain("E F", "D", 50))
    assert ids(filled.iter()) == "F E D C B A"


def test_put_exchanges_in_one_step(filled: BlockStore) -> None:
    filled.put(chain("X Y", "B", 3), ["D", "C"])
    assert ids(filled.iter()) == "Y X B A"
    assert list(filled.get(["C", "D"])) == []


def test_put_may_exchange_everything_and_a_block_for_itself(filled: BlockStore) -> None:
    filled.put(chain("A X"), ["D", "C", "B", "A"])
    assert ids(filled.iter()) == "X A"
    filled.put([], ["X"])
    assert ids(filled.iter()) == "A"
    filled.put(chain("B", "A", 2))
    assert ids(filled.iter()) == "B A"


@pytest.mark.parametrize(
    ("blocks", "displaced", "error"),
    [
        (chain("X"), [], BlockStoreError),
        (chain("X", "C", 9), [], BlockStoreError),
        (chain("X", "D", 4), [], BlockStoreError),
        (chain("X", "D", 5) + chain("Z", "Y", 6), [], BlockStoreError),
        (chain("X", "D", 5) + chain("B", "X", 6), [], BlockStoreError),
        (chain("X", "C", 4), ["Z"], UnknownBlock),
        (chain("X", "C", 4), ["D", "Z"], UnknownBlock),
        (chain("X", "B", 3), ["D"], BlockStoreError),
        ([], ["D", "Z"], UnknownBlock),
    ],
)
def test_put_that_is_refused_changes_nothing(
    filled: BlockStore, blocks: list[Block], displaced: list[str], error: type[BlockManagerError]
) -> None:
    with pytest.raises(error):
        filled.put(blocks, displaced)
    assert ids(filled.iter()) == "D C B A"
    assert list(filled.get(["A", "B", "C", "D"])) == chain("A B C D")


def test_delete_gives_what_it_deleted(filled: BlockStore) -> None:
    assert filled.delete(["D", "C"]) == chain("A B C D")[:1:-1]
    assert ids(filled.iter()) == "B A"
    assert filled.delete(["A"]) == chain("A")
    assert ids(filled.iter()) == "B"
    filled.put(chain("C", "B", 3))
    assert ids(filled.iter()) == "C B"


def test_delete_of_an_unknown_block_deletes_nothing(filled: BlockStore) -> None:
    with pytest.raises(UnknownBlock):
        filled.delete(["D", "Z"])
    assert ids(filled.iter()) == "D C B A"


def test_iter_may_go_on_below_what_was_displaced(filled: BlockStore) -> None:
    walk = filled.iter()
    assert [next(walk).block_id for _ in range(3)] == ["D", "C", "B"]
    filled.put(chain("X", "B", 3), ["D", "C"])
    assert ids(walk) == "A"


def test_iter_does_not_mix_branches(filled: BlockStore) -> None:
    walk = filled.iter()
    assert next(walk).block_id == "D"
    filled.put(chain("X Y", "B", 3), ["D", "C"])
    with pytest.raises(BlockStoreError, match="below block D"):
        next(walk)


def test_iter_does_not_take_a_displaced_branch_for_its_end(filled: BlockStore) -> None:
    walk = filled.iter()
    assert next(walk).block_id == "D"
    filled.put(chain("X", number=99), ["D", "C", "B", "A"])
    with pytest.raises(BlockStoreError, match="below block D"):
        next(walk)


def test_iter_of_more_blocks_than_are_read_ahead(store: BlockStore) -> None:
    blocks = chain(" ".join(f"block-{number}" for number in range(200)), "archived", 0)
    store.put(blocks)
    assert list(store.iter()) == blocks[::-1]


@pytest.mark.parametrize("data", [b"", bytes(range(256)), b"x" * 3_000_000])
def test_data_comes_back_as_it_was(store: BlockStore, data: bytes) -> None:
    block = Block("Grüße\0\n", NULL_BLOCK_ID, -(2**63), data)
    store.put([block])
    assert list(store.get([block.block_id])) == list(store.iter()) == [block]


def test_an_id_that_is_no_text_is_nowhere(filled: BlockStore) -> None:
    assert list(filled.get(["\ud800", "A"])) == chain("A")
    with pytest.raises(UnknownBlock):
        filled.delete(["\ud800"])
