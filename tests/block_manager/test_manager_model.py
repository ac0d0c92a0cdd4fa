"""The block manager against the naive model: forks, holds, walks, stores that were filled before, that fail before or
after they wrote and then cannot be asked, and restarts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from block_manager import (
    NULL_BLOCK_ID,
    Block,
    BlockContext,
    BlockIterator,
    BlockManager,
    BlockManagerError,
    MemoryStore,
)
from block_manager.commit_store import CommitStore
from block_manager.transactions import SessionTransactions
from tests.block_manager.naive_model import NaiveModel
from tests.block_manager.samples import FaultyStore, StoreBroken
from tests.support.examples import examples
from tests.support.storage.memory import MemoryDatabase

STORES_MAX = 3


class ManagerMachine(RuleBasedStateMachine):
    """Every id that ever was is in `seen`; a rule that picks a block picks any of them, here or not."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager()
        self.model = NaiveModel()
        self.stores: dict[str, FaultyStore] = {}
        self.seen: dict[str, Block] = {}
        self.walks: list[tuple[BlockIterator, list[str], tuple[str, ...]]] = []
        self.contexts: list[tuple[BlockContext, str]] = []
        self.names = (f"b{number}" for number in count())

    def make_store(self, blocks: list[Block]) -> FaultyStore:
        return FaultyStore(blocks)

    # What rules are made of.

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.seen, "nobody", NULL_BLOCK_ID]), "block")

    def both(self, ask: Callable[[], Any], expect: Callable[[], Any]) -> Any:
        """Ask the manager and the model: the same answer, or an error of the same kind."""
        try:
            expected = expect()
        except BlockManagerError as error:
            with pytest.raises(type(error)):
                ask()
            return None
        found = ask()
        if expected is not None:
            assert found == expected
        return found

    def make_blocks(self, data: st.DataObject, parent: str, length: int) -> list[Block]:
        blocks = []
        number = self.seen[parent].number if parent in self.seen else 0
        for _ in range(length):
            number += data.draw(st.integers(1, 3), "gap")
            block = Block(next(self.names), parent, number)
            blocks.append(block)
            parent = block.block_id
        return blocks

    def known_line(self, tip: str) -> list[Block]:
        """From the root to the tip."""
        return [self.seen[block_id] for block_id in reversed(self.model.branch(tip))]

    def put_both(self, blocks: list[Block]) -> None:
        self.seen.update((block.block_id, block) for block in blocks)
        self.both(lambda: self.manager.put(blocks), lambda: self.model.put(blocks))

    # Rules.

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.put_both(self.make_blocks(data, NULL_BLOCK_ID, 3))

    @rule(data=st.data(), length=st.integers(1, 4))
    def put(self, data: st.DataObject, length: int) -> None:
        self.put_both(self.make_blocks(data, self.pick(data), length))

    @rule(data=st.data(), known=st.integers(1, 3), new=st.integers(0, 2))
    def put_again(self, data: st.DataObject, known: int, new: int) -> None:
        """Some blocks that are here, and new ones behind them."""
        tip = self.pick(data)
        if self.model.find(tip) is not None:
            self.put_both(self.known_line(tip)[-known:] + self.make_blocks(data, tip, new))

    @rule(data=st.data())
    def put_what_is_no_branch(self, data: st.DataObject) -> None:
        tip = self.pick(data)
        good = self.make_blocks(data, tip, 3)
        kind = data.draw(st.sampled_from(["empty", "gap", "number", "conflict", "null", "again"]), "kind")
        bad = {
            "empty": [],
            "gap": [good[0], good[2]],
            "number": [good[0], Block(good[1].block_id, good[0].block_id, good[0].number)],
            "conflict": [*good, Block(tip, good[2].block_id, good[2].number + 1)],
            "null": [*good, Block(NULL_BLOCK_ID, good[2].block_id, good[2].number + 1)],
            "again": [*good, Block(good[0].block_id, good[2].block_id, good[2].number + 1)],
        }[kind]
        with pytest.raises(BlockManagerError):
            self.model.put(bad)
        self.both(lambda: self.manager.put(bad), lambda: self.model.put(bad))

    @rule(data=st.data())
    def ref(self, data: st.DataObject) -> None:
        block_id = self.pick(data)
        self.both(lambda: self.manager.ref_block(block_id), lambda: self.model.ref_block(block_id))

    @rule(data=st.data(), times=st.integers(1, 3))
    def unref(self, data: st.DataObject, times: int) -> None:
        block_id = self.pick(data)
        for _ in range(times):
            self.both(lambda: self.manager.unref_block(block_id), lambda: self.model.unref_block(block_id))

    @rule(data=st.data())
    def begin_branch(self, data: st.DataObject) -> None:
        tip = self.pick(data)
        walk = self.both(lambda: self.manager.branch(tip), lambda: self.model.take(tip))
        if walk is not None:
            self.walks.append((walk, self.model.branch(tip), (tip,)))

    @rule(data=st.data())
    def begin_branch_diff(self, data: st.DataObject) -> None:
        tip, exclude = self.pick(data), self.pick(data)
        walk = self.both(lambda: self.manager.branch_diff(tip, exclude), lambda: self.model.take(tip, exclude))
        if walk is not None:
            self.walks.append((walk, self.model.branch_diff(tip, exclude), (tip, exclude)))

    @precondition(lambda self: self.walks)
    @rule(data=st.data(), steps=st.integers(1, 4))
    def walk_on(self, data: st.DataObject, steps: int) -> None:
        index = data.draw(st.integers(0, len(self.walks) - 1), "walk")
        walk, left, held = self.walks[index]
        for _ in range(steps):
            block = next(walk, None)
            assert (None if block is None else block.block_id) == (left.pop(0) if left else None)
            if block is None:
                del self.walks[index]
                self.model.give_back(*held)
                return

    @precondition(lambda self: self.walks)
    @rule(data=st.data(), close=st.booleans())
    def leave_walk(self, data: st.DataObject, close: bool) -> None:
        """By closing it, or by forgetting it."""
        walk, _, held = self.walks.pop(data.draw(st.integers(0, len(self.walks) - 1), "walk"))
        if close:
            walk.close()
        del walk
        self.model.give_back(*held)

    @rule(data=st.data())
    def enter_context(self, data: st.DataObject) -> None:
        block_id = self.pick(data)
        context = self.manager.ref_block_ctx(block_id)
        block = self.both(context.__enter__, lambda: self.model.take(block_id))
        if block is not None:
            assert block == self.seen[block_id]
            self.contexts.append((context, block_id))

    @precondition(lambda self: self.contexts)
    @rule(data=st.data())
    def leave_context(self, data: st.DataObject) -> None:
        context, block_id = self.contexts.pop(data.draw(st.integers(0, len(self.contexts) - 1), "context"))
        context.__exit__(None, None, None)
        self.model.give_back(block_id)

    @precondition(lambda self: len(self.stores) < STORES_MAX)
    @rule(data=st.data(), kind=st.sampled_from(["empty", "new", "archived", "shared", "shared and new", "part"]))
    def add_store(self, data: st.DataObject, kind: str) -> None:
        self.model.settle()
        tip = self.pick(data)
        shared = self.known_line(tip) if self.model.find(tip) is not None else []
        blocks = {"shared": shared, "shared and new": shared, "part": shared[-2:]}.get(kind, [])
        if kind in ("new", "archived", "shared and new"):
            parent = "nobody" if kind == "archived" else blocks[-1].block_id if blocks else NULL_BLOCK_ID
            blocks = blocks + self.make_blocks(data, parent, 2)
        self.seen.update((block.block_id, block) for block in blocks)
        name = f"store {len(self.stores)}"
        store = self.make_store(blocks)
        self.both(lambda: self.manager.add_store(name, store), lambda: self.model.add_store(name, blocks))
        if name in self.model.stores:
            self.stores[name] = store

    @precondition(lambda self: self.stores)
    @rule(data=st.data())
    def add_store_of_a_used_name(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([*self.stores]), "store")
        blocks = self.make_blocks(data, NULL_BLOCK_ID, 1)
        self.model.settle()
        self.both(lambda: self.manager.add_store(name, MemoryStore(blocks)), lambda: self.model.add_store(name, blocks))

    @precondition(lambda self: self.stores)
    @rule(data=st.data())
    def persist(self, data: st.DataObject) -> None:
        head = self.pick(data)
        name = data.draw(st.sampled_from([*self.stores, "no store"]), "store")
        self.model.settle()
        self.both(lambda: self.manager.persist(head, name), lambda: self.model.persist(head, name))

    @precondition(lambda self: self.stores)
    @rule(data=st.data(), done=st.booleans(), blind=st.integers(0, 1))
    def persist_into_a_failing_store(self, data: st.DataObject, done: bool, blind: int) -> None:
        head = self.pick(data)
        name = data.draw(st.sampled_from([*self.stores]), "store")
        self.settle()
        if self.model.find(head) is None or self.seen[head] in self.model.stores[name]:
            return
        store = self.stores[name]
        store.before, store.after, store.blind = not done, done, blind
        with pytest.raises(StoreBroken):
            self.manager.persist(head, name)
        self.model.defer_persist(head, name, done=done)
        if not blind:
            self.model.settle()
        assert self.manager.statistics().persist.in_doubt is bool(blind)

    @rule()
    def settle(self) -> None:
        self.manager.check_integrity()
        self.model.settle()

    @rule()
    def restart(self) -> None:
        """A new manager gets the stores; what was only in memory is gone."""
        self.settle()
        self.manager, restarted = BlockManager(), NaiveModel()
        self.walks.clear()
        self.contexts.clear()
        for name, store in self.stores.items():
            self.manager.add_store(name, store)
            restarted.add_store(name, self.model.stores[name])
        self.model = restarted

    # What always holds.

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        for block_id in self.seen:
            assert self.manager.contains(block_id) == self.model.contains(block_id)
        assert list(self.manager.get([*self.seen])) == [self.model.find(block_id) for block_id in self.seen]
        if self.model.pending is not None:
            return
        self.manager.check_integrity()
        assert self.manager.statistics().tree.block_count == len(self.model.pool)
        for name, store in self.stores.items():
            assert [*store.iter()][::-1] == self.model.stores[name]
        for block_id in self.seen:
            if self.model.find(block_id) is not None:
                count = self.manager.get_reference_count(block_id)
                assert (count.external, count.internal) == self.model.count(block_id)


class CommitMachine(ManagerMachine):
    """The same on commit stores of one database, with a cache that is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = SessionTransactions(MemoryDatabase())
        self.store_names = (f"s{number}" for number in count())

    def make_store(self, blocks: list[Block]) -> FaultyStore:
        store = CommitStore(self.transactions, next(self.store_names), cached_blocks_max=3)
        store.put(blocks)
        return FaultyStore(store=store)

    def teardown(self) -> None:
        self.transactions.close()


def test_the_manager_does_what_the_model_does() -> None:
    run_state_machine_as_test(ManagerMachine, settings=settings(max_examples=examples(60), stateful_step_count=40))


def test_the_manager_does_so_on_commit_stores() -> None:
    run_state_machine_as_test(CommitMachine, settings=settings(max_examples=30, stateful_step_count=40))
