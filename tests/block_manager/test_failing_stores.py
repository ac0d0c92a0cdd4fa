"""Persisting into stores that fail: before they did it, after they did it, in the middle, and then silently."""

from __future__ import annotations

import pytest

from block_manager import BlockManager, IntegrityBroken, MemoryStore
from tests.block_manager.samples import FaultyStore, StoreBroken, chain, counts, ids, in_memory

COUNTED = "A:0:2 B:0:1 C:1:0 D:0:1 E:0:1 F:1:0"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def manager(store: FaultyStore) -> BlockManager:
    """A B C in the store `s`, D E F from A in memory."""
    manager = BlockManager()
    manager.put(chain("A B C"))
    manager.put(chain("D E F", "A", 2))
    manager.add_store("s", store)
    manager.persist("C", "s")
    return manager


def check_all_here(manager: BlockManager) -> None:
    assert ids(manager.get(list("ABCDEF"))) == "A B C D E F"
    assert ids(manager.branch("C")) == "C B A"
    assert ids(manager.branch("F")) == "F E D A"


def test_a_store_that_fails_before(manager: BlockManager, store: FaultyStore) -> None:
    store.before = True
    with pytest.raises(StoreBroken, match="before"):
        manager.persist("F", "s")
    check_all_here(manager)
    manager.check_integrity()
    assert (ids(store.iter()), counts(manager, "A B C D E F")) == ("C B A", COUNTED)
    assert in_memory(manager) == 3
    manager.persist("F", "s")
    assert ids(store.iter()) == "F E D A"
    assert manager.statistics().persist.failed_count == 1


def test_a_store_that_fails_after(manager: BlockManager, store: FaultyStore) -> None:
    store.after = True
    with pytest.raises(StoreBroken, match="after"):
        manager.persist("F", "s")
    check_all_here(manager)
    manager.check_integrity()
    assert (ids(store.iter()), counts(manager, "A B C D E F")) == ("F E D A", COUNTED)
    assert in_memory(manager) == 2
    manager.persist("F", "s")


@pytest.mark.parametrize("done", [False, True])
def test_a_store_that_fails_and_cannot_be_asked(manager: BlockManager, store: FaultyStore, done: bool) -> None:
    store.before, store.after, store.blind = not done, done, 1
    with pytest.raises(StoreBroken) as raised:
        manager.persist("F", "s")
    assert raised.value.__notes__ == ["whether the store 's' did it is not known yet: unreadable"]
    assert manager.statistics().persist.in_doubt
    check_all_here(manager)
    manager.check_integrity()
    assert not manager.statistics().persist.in_doubt
    assert ids(store.iter()) == ("F E D A" if done else "C B A")
    assert counts(manager, "A B C D E F") == COUNTED
    check_all_here(manager)


@pytest.mark.parametrize("done", [False, True])
def test_what_happens_while_a_store_is_in_doubt(manager: BlockManager, store: FaultyStore, done: bool) -> None:
    """Both branches grow, both old heads are released, and the next persist finds out."""
    store.before, store.after, store.blind = not done, done, 1
    with pytest.raises(StoreBroken):
        manager.persist("F", "s")
    manager.put(chain("G", "C", 4))
    manager.put(chain("H", "F", 5))
    manager.put(chain("A B C"))
    assert not manager.unref_block("C")
    assert not manager.unref_block("F")
    manager.persist("H", "s")
    assert ids(store.iter()) == "H F E D A"
    assert ids(manager.branch("G")) == "G C B A"
    manager.check_integrity()
    assert manager.unref_block("G")
    assert in_memory(manager) == 0


@pytest.mark.parametrize("done", [False, True])
def test_a_new_branch_that_nobody_wants_any_more(manager: BlockManager, store: FaultyStore, done: bool) -> None:
    store.before, store.after, store.blind = not done, done, 1
    with pytest.raises(StoreBroken):
        manager.persist("F", "s")
    manager.unref_block("F")
    assert manager.contains("F") is done, "a block that a store has is never dropped"
    assert ids(manager.branch("C")) == "C B A"
    manager.check_integrity()
    assert ids(store.iter()) == ("F E D A" if done else "C B A")


def test_a_store_that_stays_silent_blocks_persisting_only(manager: BlockManager, store: FaultyStore) -> None:
    store.after, store.blind = True, 3
    with pytest.raises(StoreBroken, match="after"):
        manager.persist("F", "s")
    with pytest.raises(StoreBroken, match="unreadable"):
        manager.persist("F", "s")
    with pytest.raises(StoreBroken, match="unreadable"):
        manager.add_store("t", MemoryStore())
    manager.persist("F", "s")
    manager.add_store("t", MemoryStore())
    manager.check_integrity()
    check_all_here(manager)


def test_a_store_that_did_a_part_of_it(manager: BlockManager, store: FaultyStore) -> None:
    """It broke its promise, so there is nothing right to do; but every block is still here."""
    store.partial = True
    with pytest.raises(StoreBroken, match="in the middle"):
        manager.persist("F", "s")
    assert ids(store.iter()) == "A"
    for _ in range(2):
        with pytest.raises(IntegrityBroken, match="did a part of what it must do as one"):
            manager.persist("F", "s")
    check_all_here(manager)


def test_an_interrupted_store(manager: BlockManager, store: FaultyStore) -> None:
    def interrupt() -> None:
        store.on_done = lambda: None
        raise KeyboardInterrupt

    store.on_done = interrupt
    with pytest.raises(KeyboardInterrupt):
        manager.persist("F", "s")
    check_all_here(manager)
    manager.check_integrity()
    assert ids(store.iter()) == "F E D A"


def test_a_store_that_fails_when_it_is_looked_at(manager: BlockManager, store: FaultyStore) -> None:
    """Questions that need the store raise its error and change nothing; others are answered."""
    store.unreadable = 4
    with pytest.raises(StoreBroken):
        manager.contains("B")
    with pytest.raises(StoreBroken):
        manager.put(chain("X", "B", 3))
    with pytest.raises(StoreBroken):
        manager.ref_block("A")
    with pytest.raises(StoreBroken):
        manager.persist("F", "s")
    store.unreadable = 9
    assert ids(manager.get(["D", "F"])) == "D F"
    manager.ref_block("F")
    manager.ref_block("C")
    assert not manager.unref_block("C")
    assert store.unreadable == 9
    store.unreadable = 0
    manager.check_integrity()
    assert not manager.contains("X")


def test_a_store_that_fails_when_it_is_added() -> None:
    manager = BlockManager()
    manager.put(chain("A"))
    store = FaultyStore(chain("A B"))
    store.unreadable = 1
    with pytest.raises(StoreBroken):
        manager.add_store("s", store)
    assert in_memory(manager) == 1
    assert manager.statistics().store_count == 0
    manager.add_store("s", store)
    assert in_memory(manager) == 0
    manager.check_integrity()
