"""Adding stores and persisting: where blocks are afterwards, how they are counted, and what nobody may see."""

from __future__ import annotations

import threading

import pytest

from block_manager import (
    Block,
    BlockConflict,
    BlockManager,
    BlockManagerError,
    MemoryStore,
    StoreExists,
    UnknownBlock,
    UnknownStore,
)
from tests.block_manager.samples import FaultyStore, chain, counts, ids, in_memory


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def manager(store: FaultyStore) -> BlockManager:
    """A B C, and D E F from A; an empty store `s`."""
    manager = BlockManager()
    manager.put(chain("A B C"))
    manager.put(chain("D E F", "A", 2))
    manager.add_store("s", store)
    return manager


def test_persist_moves_the_branch_and_keeps_the_counts(manager: BlockManager, store: FaultyStore) -> None:
    manager.persist("C", "s")
    assert ids(store.iter()) == "C B A"
    assert counts(manager, "A B C D") == "A:0:2 B:0:1 C:1:0 D:0:1"
    assert in_memory(manager) == 3
    assert ids(manager.branch("C")) == "C B A"
    assert ids(manager.branch("F")) == "F E D A"
    assert ids(manager.get(["A", "F", "C"])) == "A F C"
    manager.check_integrity()


def test_persist_of_a_longer_branch_adds_what_is_missing(manager: BlockManager, store: FaultyStore) -> None:
    manager.persist("B", "s")
    manager.persist("C", "s")
    assert ids(store.iter()) == "C B A"
    statistics = manager.statistics().persist
    assert (statistics.persist_count, statistics.stored_count, statistics.displaced_count) == (2, 3, 0)


def test_persist_of_a_fork_brings_the_displaced_blocks_back_counted(manager: BlockManager, store: FaultyStore) -> None:
    manager.persist("C", "s")
    manager.ref_block("B")
    manager.persist("F", "s")
    assert ids(store.iter()) == "F E D A"
    assert counts(manager, "A B C D E F") == "A:0:2 B:1:1 C:1:0 D:0:1 E:0:1 F:1:0"
    assert manager.unref_block("C")
    assert counts(manager, "B") == "B:1:0"
    assert manager.unref_block("B")
    assert in_memory(manager) == 0
    manager.check_integrity()


def test_displaced_blocks_that_nothing_refers_to_are_dropped(manager: BlockManager) -> None:
    manager.persist("C", "s")
    assert not manager.unref_block("C"), "a store has it"
    assert manager.contains("C")
    manager.persist("F", "s")
    assert [manager.contains(block_id) for block_id in "ABC"] == [True, False, False]


def test_persist_back_and_forth(manager: BlockManager, store: FaultyStore) -> None:
    for head in "CFCFCF":
        manager.persist(head, "s")
        manager.check_integrity()
    assert counts(manager, "A B C D E F") == "A:0:2 B:0:1 C:1:0 D:0:1 E:0:1 F:1:0"
    assert ids(store.iter()) == "F E D A"


def test_persist_of_what_the_store_has_does_not_touch_it(manager: BlockManager, store: FaultyStore) -> None:
    manager.persist("C", "s")
    store.before = True
    for head in "CBA":
        manager.persist(head, "s")
    assert ids(store.iter()) == "C B A"


def test_persist_without_a_common_ancestor_replaces_everything(manager: BlockManager, store: FaultyStore) -> None:
    manager.persist("C", "s")
    manager.put(chain("X Y"))
    manager.persist("Y", "s")
    assert ids(store.iter()) == "Y X"
    assert counts(manager, "A B C") == "A:0:2 B:0:1 C:1:0"
    manager.check_integrity()


def test_persist_needs_a_known_block_and_store(manager: BlockManager) -> None:
    with pytest.raises(UnknownStore, match="'t'"):
        manager.persist("C", "t")
    with pytest.raises(UnknownBlock):
        manager.persist("Z", "s")


def test_a_stored_block_can_be_forked_from(manager: BlockManager) -> None:
    manager.persist("C", "s")
    manager.put(chain("X", "B", 3))
    assert counts(manager, "B X") == "B:0:2 X:1:0"
    assert manager.unref_block("X")
    assert counts(manager, "B") == "B:0:1"


def test_blocks_may_be_in_two_stores(manager: BlockManager, store: FaultyStore) -> None:
    second = MemoryStore()
    manager.add_store("t", second)
    manager.persist("C", "s")
    manager.persist("F", "t")
    assert (ids(store.iter()), ids(second.iter())) == ("C B A", "F E D A")
    manager.persist("F", "s")
    assert in_memory(manager) == 2, "B and C: nobody has them"
    manager.persist("C", "s")
    assert in_memory(manager) == 0, "D, E and F are in the second store"
    manager.persist("C", "t")
    assert in_memory(manager) == 3
    manager.check_integrity()


def test_an_added_store_gives_its_head_one_hold() -> None:
    manager = BlockManager()
    manager.add_store("s", MemoryStore(chain("A B C")))
    assert counts(manager, "A B C") == "A:0:1 B:0:1 C:1:0"
    assert not manager.unref_block("C")
    assert counts(manager, "C") == "C:0:0"


def test_a_store_that_shares_blocks_with_memory_takes_them_over(manager: BlockManager) -> None:
    manager.add_store("t", MemoryStore(chain("A B")))
    assert in_memory(manager) == 4
    assert counts(manager, "A B C") == "A:0:2 B:0:1 C:1:0"
    manager.check_integrity()


def test_a_store_that_goes_further_than_memory(manager: BlockManager) -> None:
    manager.add_store("t", MemoryStore(chain("A B C G H")))
    assert in_memory(manager) == 3
    assert counts(manager, "C H") == "C:1:1 H:1:0"
    manager.check_integrity()


@pytest.mark.parametrize(
    "blocks",
    [
        [*chain("A"), Block("B", "A", 2, b"other")],
        chain("B C", "A", 2),
    ],
)
def test_a_store_that_does_not_fit_is_refused(manager: BlockManager, blocks: list[Block]) -> None:
    with pytest.raises(BlockConflict):
        manager.add_store("t", MemoryStore(blocks))
    with pytest.raises(UnknownStore):
        manager.persist("C", "t")
    assert in_memory(manager) == 6
    manager.check_integrity()


def test_a_second_store_of_one_name_is_refused(manager: BlockManager) -> None:
    with pytest.raises(StoreExists, match="'s'"):
        manager.add_store("s", MemoryStore(chain("X")))
    assert not manager.contains("X")


def test_blocks_below_the_oldest_block_of_a_store() -> None:
    """The archived part comes again: it is held by whoever put it, and by nothing that is stored."""
    manager = BlockManager()
    store = MemoryStore(chain("B C", "A", 2))
    manager.add_store("s", store)
    manager.put(chain("A B C D"))
    assert counts(manager, "A C D") == "A:1:0 C:1:1 D:1:0"
    manager.add_store("t", MemoryStore())
    manager.persist("D", "t")
    manager.persist("D", "s")
    assert ids(store.iter()) == "D C B"
    assert in_memory(manager) == 0
    manager.check_integrity()


def test_a_displaced_block_whose_parent_nobody_has() -> None:
    manager = BlockManager()
    manager.add_store("s", MemoryStore(chain("B C", "A", 2)))
    manager.put(chain("X Y"))
    manager.persist("Y", "s")
    assert ids(manager.branch("C")) == "C B"
    manager.check_integrity()
    manager.put(chain("A"))
    assert counts(manager, "A") == "A:1:1"
    assert ids(manager.branch("C")) == "C B A"
    assert not manager.unref_block("A")
    assert manager.unref_block("C")
    assert in_memory(manager) == 0
    manager.check_integrity()


def look(manager: BlockManager) -> list[str]:
    """Everything that a reader can ask about six blocks."""
    everything = ["A", "B", "C", "D", "E", "F"]
    return [
        ids(manager.get(everything)),
        ids(manager.branch("C")),
        ids(manager.branch("F")),
        ids(manager.branch_diff("C", "F")),
        " ".join(str(manager.contains(block_id)) for block_id in everything),
    ]


def test_nobody_sees_a_block_nowhere_while_a_store_writes(manager: BlockManager, store: FaultyStore) -> None:
    """The store calls readers in the middle of its write; that they return shows that no lock is held."""
    manager.persist("C", "s")
    before, seen = look(manager), []
    store.on_begin = store.on_done = lambda: seen.append(look(manager))
    manager.persist("F", "s")
    assert [*seen, look(manager)] == [before] * 3


def test_blocks_come_and_go_while_a_store_writes(manager: BlockManager, store: FaultyStore) -> None:
    """A child of a displaced block, one of an inserted block, and the last release of both heads."""
    manager.persist("C", "s")

    def change() -> None:
        manager.put(chain("G", "C", 4))
        manager.put(chain("H", "E", 4))
        manager.unref_block("C")
        manager.unref_block("F")

    store.on_done = change
    manager.persist("F", "s")
    assert counts(manager, "A B C D E F G H") == "A:0:2 B:0:1 C:0:1 D:0:1 E:0:2 F:0:0 G:1:0 H:1:0"
    assert ids(manager.branch("G")) == "G C B A"
    manager.check_integrity()
    manager.unref_block("G")
    assert not manager.contains("B")


def test_a_branch_that_is_being_stored_is_not_dropped(manager: BlockManager, store: FaultyStore) -> None:
    """Released by everybody while the store writes it: it must not be gone and come back."""
    seen: list[tuple[bool, bool]] = []
    store.on_begin = lambda: seen.append((manager.unref_block("F"), manager.contains("E")))
    manager.persist("F", "s")
    assert seen == [(False, True)]
    assert counts(manager, "E F") == "E:0:1 F:0:0"


def test_a_persist_that_comes_while_another_runs_waits(manager: BlockManager, store: FaultyStore) -> None:
    done: list[str] = []

    def persist(head: str) -> None:
        manager.persist(head, "s")
        done.append(head)

    second = threading.Thread(target=persist, args=("F",))

    def begin_second() -> None:
        store.on_begin = lambda: None
        second.start()

    store.on_begin = begin_second
    persist("C")
    second.join()
    assert done == ["C", "F"]
    assert ids(store.iter()) == "F E D A"
    manager.check_integrity()


def test_threads_that_read_while_branches_move(manager: BlockManager) -> None:
    expected, wrong = look(manager), []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                seen = look(manager)
            except BlockManagerError as error:
                seen = [repr(error)]
            if seen != expected:
                wrong.append(seen)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(100):
        manager.persist("C", "s")
        manager.persist("F", "s")
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    manager.check_integrity()
