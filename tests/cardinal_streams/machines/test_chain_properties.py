"""Trees of blocks in any order: the heaviest chain, whatever the order; and the threshold against a plain model."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal_streams.machines.chain_order_machine import ChainOrder
from cardinal_streams.machines.events import ChainUpdate, Start
from cardinal_streams.payload import CompleteBatch
from tests.cardinal_streams.helpers import names
from tests.cardinal_streams.strategies import Tree, trees
from tests.support.examples import examples


def chain_of(machine: ChainOrder, batches: list[CompleteBatch]) -> list[str]:
    """Feeds the blocks, checks that every update fits on the chain, returns the chain without what was there first."""
    chain: list[CompleteBatch] = []
    for batch in batches:
        events = machine.receive(batch)
        machine.check()
        for event in events:
            assert isinstance(event, ChainUpdate)
            assert event.added
            keep = len(chain) - len(event.removed)
            assert tuple(chain[keep:]) == event.removed
            chain[keep:] = event.added
            for below, above in itertools.pairwise(chain):
                assert above.parent == below.hash
    return names(chain)


def start_of(tree: Tree) -> Start:
    return Start(tree.root.hash, tree.root.number, tree.root.weight)


@settings(max_examples=examples(100))
@given(trees(), st.data())
def test_any_order_and_duplication_ends_on_the_heaviest_chain(tree: Tree, data: st.DataObject) -> None:
    order = data.draw(st.permutations(tree.blocks + tree.blocks))
    assert chain_of(ChainOrder(start_of(tree), 128), order) == tree.heaviest()


@given(trees(), st.data())
def test_the_start_block_may_be_replayed_at_any_time(tree: Tree, data: st.DataObject) -> None:
    order = data.draw(st.permutations([tree.root, *tree.blocks]))
    assert chain_of(ChainOrder(start_of(tree), 128), order) == tree.heaviest()


@given(trees(), st.data())
def test_a_start_in_the_middle_ends_on_the_same_chain(tree: Tree, data: st.DataObject) -> None:
    """The application is at some block of the tree; all is replayed in some order: its updates lead to the heaviest
    chain from there."""
    if not tree.blocks:
        return
    at = data.draw(st.sampled_from(tree.blocks))
    by_hash = {each.hash: each for each in (tree.root, *tree.blocks)}
    chain = [at]
    while chain[0].parent in by_hash:
        chain.insert(0, by_hash[chain[0].parent])
    machine = ChainOrder(Start(at.hash, at.number, at.weight), 128)
    for batch in data.draw(st.permutations([tree.root, *tree.blocks])):
        for event in machine.receive(batch):
            assert isinstance(event, ChainUpdate)
            keep = len(chain) - len(event.removed)
            assert tuple(chain[keep:]) == event.removed
            chain[keep:] = event.added
        machine.check()
    assert names(chain)[1:] == tree.heaviest()


@settings(max_examples=examples(150))
@given(trees(20), st.integers(0, 4))
def test_the_threshold_as_a_plain_model_has_it(tree: Tree, threshold: int) -> None:
    """Parents first, so nothing waits for a parent. The model holds the whole chain and never forgets a block."""
    machine = ChainOrder(start_of(tree), threshold)
    by_hash = {each.hash: each for each in (tree.root, *tree.blocks)}
    chain, final = [tree.root], 0
    for batch in tree.blocks:
        branch = [batch]
        while branch[0].parent not in {each.hash for each in chain}:
            branch.insert(0, by_hash[branch[0].parent])
        fork = next(index for index, each in enumerate(chain) if each.hash == branch[0].parent)
        above = max((each.weight for each in chain[fork + 1 :]), default=-1)
        if fork >= final and max(each.weight for each in branch) > above:
            chain[fork + 1 :] = branch
        final = max(final, len(chain) - 1 - threshold)
        machine.receive(batch)
        machine.check()
        head = machine.head
        assert head is not None
        assert head.hash == chain[-1].hash
        assert machine.statistics().chain_length <= threshold + 1


@given(trees(), st.data())
def test_without_a_start_block_the_chain_ends_on_the_heaviest_too(tree: Tree, data: st.DataObject) -> None:
    order = data.draw(st.permutations(tree.blocks))
    machine = ChainOrder(None, 128)
    chain = chain_of(machine, order)
    assert chain == tree.heaviest()[len(tree.heaviest()) - len(chain) :]
    assert bool(chain) == bool(order)
