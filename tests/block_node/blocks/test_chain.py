"""How blocks are linked (L2), and generated chains at L0 to L3."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.chain import ChainState
from block_node.blocks.errors import BlockFormatError, FailureKind, Level, SettingsError, VerificationFailed
from block_node.blocks.generator import FIXED_ITEMS, BlockShape, ChainGenerator, GeneratedBlock
from block_node.blocks.items import Item, ItemKind, make_item
from block_node.blocks.merkle import CURRENT, EMPTY_TREE, LEGACY, StreamingTree
from block_node.blocks.proofs import ProofKind
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import Verifier
from tests.support.blocks import own_verifier, signing_keys

CHAIN_LEVELS = Level.STRUCTURE | Level.MERKLE | Level.CHAIN


def blocks_of(count: int, seed: int = 0) -> list[GeneratedBlock]:
    return list(ChainGenerator(signing_keys(), seed=seed).blocks(count))


def failure_of(verifier: Verifier, items: tuple[Item, ...]) -> VerificationFailed:
    before = verifier.chain
    with pytest.raises(VerificationFailed) as failure:
        verifier.verify(items)
    assert verifier.chain is before
    return failure.value


@given(
    st.integers(1, 12),
    st.integers(FIXED_ITEMS, 40),
    st.integers(0, 300),
    st.integers(0, 300),
    st.booleans(),
    st.integers(0, 2**32),
)
@settings(max_examples=25)
def test_generated_chains_pass(
    count: int, item_count: int, item_bytes: int, record_bytes: int, legacy: bool, seed: int
) -> None:
    """Goal: chains of any length and shape pass L0 to L3, with all signatures. Method: random shapes in both layouts;
    the verifier's root is the generator's."""
    shape = BlockShape(
        item_count=item_count, item_bytes=item_bytes, record_bytes=record_bytes, scheme=LEGACY if legacy else CURRENT
    )
    verifier = own_verifier()
    for number, block in enumerate(ChainGenerator(signing_keys(), shape=shape, seed=seed).blocks(count)):
        result = verifier.verify(block.items, number)
        assert block.root in (result.root, *result.other_roots)
        assert number == 0 or result.root == block.root, "the footer of block 1 says how these are hashed"
        assert result.item_count == item_count
        assert result.proofs == (ProofKind.RECORD_FILE,)
        assert result.checked == Level.STRUCTURE | Level.MERKLE | Level.RECORD_PROOF


def test_the_same_seed_gives_the_same_items() -> None:
    """Goal: a chain can be made again. Method: twice the same seed, and another one; the keys stay the same, so even
    the proofs are."""
    assert blocks_of(3) == blocks_of(3)
    assert blocks_of(1)[0].root != blocks_of(1, seed=1)[0].root


def test_a_layout_may_change_within_a_chain() -> None:
    """Goal: legacy blocks and current ones link. Method: a chain of both, either way round."""
    generator, verifier = ChainGenerator(signing_keys()), own_verifier()
    for legacy in (True, True, False, False, True):
        generator.shape = BlockShape(scheme=LEGACY if legacy else CURRENT)
        verifier.verify(generator.next_block().items)
    assert verifier.chain.next_number == 5


def test_the_generator_makes_forks_and_goes_on() -> None:
    """Goal: chains of any shape. Method: back to block 2 with another seed: a fork that links; a generator in the
    middle of a known chain makes what the first one made."""
    generator, verifier = ChainGenerator(signing_keys()), own_verifier()
    for block in generator.blocks(2):
        verifier.verify(block.items)
    fork = verifier.chain
    third = generator.next_block()
    verifier.verify(third.items)
    other = ChainGenerator(signing_keys(), chain=fork, seed=5).next_block()
    assert (other.number, other.root != third.root) == (2, True)
    verifier.chain = fork
    verifier.verify(other.items)
    same = ChainGenerator(signing_keys(), chain=fork).next_block()
    assert same == third


@pytest.mark.parametrize("shape", [BlockShape(item_count=3), BlockShape(item_bytes=-1), BlockShape(record_bytes=-1)])
def test_shapes_that_no_block_has_are_refused(shape: BlockShape) -> None:
    """Goal: a wrong shape is told at once. Method: too few items, negative sizes; a chain that is not known."""
    with pytest.raises(SettingsError):
        ChainGenerator(signing_keys(), shape=shape)
    with pytest.raises(SettingsError, match="must know all blocks before it"):
        ChainGenerator(signing_keys(), chain=ChainState.starting_at(7))


def test_a_block_that_does_not_come_next_is_refused() -> None:
    """Goal: numbers have no gaps and no repeats, and a failure changes nothing. Method: one too far, one again, and
    then the right one."""
    blocks, verifier = blocks_of(3), own_verifier()
    verifier.verify(blocks[0].items)
    for wrong in (blocks[2], blocks[0]):
        failure = failure_of(verifier, wrong.items)
        assert (failure.kind, failure.reason) == (FailureKind.BAD_CHAIN_LINK, "block 1 comes next")
    verifier.verify(blocks[1].items)


def test_a_block_of_another_chain_is_refused() -> None:
    """Goal: the footer's roots are compared. Method: block 1 of another chain names another block 0; a block 2 whose
    previous root is right and whose tree is not."""
    mine, other, verifier = blocks_of(3), blocks_of(2, seed=1), own_verifier()
    verifier.verify(mine[0].items)
    failure = failure_of(verifier, other[1].items)
    assert (failure.kind, failure.level) == (FailureKind.BAD_CHAIN_LINK, Level.CHAIN)
    assert "as the root of the block before" in failure.reason
    verifier.verify(mine[1].items)
    wrong_tree = ChainGenerator(signing_keys(), chain=ChainState.from_roots([other[0].root, mine[1].root])).next_block()
    assert "as the root of all blocks" in failure_of(verifier, wrong_tree.items).reason
    verifier.verify(mine[2].items)


def test_block_0_names_the_empty_tree() -> None:
    """Goal: a chain from block 0 has nothing before it. Method: a block 0 that names a root before it."""
    first = ChainGenerator(signing_keys(), chain=ChainState(0, b"x" * 48, ())).next_block()
    assert failure_of(own_verifier(), first.items).kind is FailureKind.BAD_CHAIN_LINK
    assert own_verifier().verify(blocks_of(1)[0].items).previous_root == EMPTY_TREE


@pytest.mark.parametrize("start", [None, 3])
def test_a_chain_may_start_anywhere(start: int | None) -> None:
    """Goal: a node can begin at a later block, on trust, and is strict from there on. Method: from block 3; then a
    block 5 that does not link."""
    blocks, other = blocks_of(6), blocks_of(6, seed=1)
    books = AddressBooks.always(signing_keys().address_book)
    verifier = Verifier(VerifierSettings(), chain=ChainState.starting_at(start), address_books=books)
    for block in blocks[3:5]:
        verifier.verify(block.items)
    assert failure_of(verifier, other[5].items).kind is FailureKind.BAD_CHAIN_LINK
    verifier.verify(blocks[5].items)
    assert ChainState.starting_at(0) == ChainState()


def test_a_chain_that_may_start_anywhere_knows_all_blocks_from_block_0_on() -> None:
    """Goal: where the first block is block 0, nothing is left on trust. Method: the all-blocks root of block 2 is
    checked."""
    mine, other = blocks_of(2), blocks_of(2, seed=1)
    verifier = Verifier(VerifierSettings(), chain=ChainState.starting_at(None))
    for block in mine:
        verifier.verify(block.items)
    wrong_tree = ChainGenerator(signing_keys(), chain=ChainState.from_roots([other[0].root, mine[1].root])).next_block()
    assert "as the root of all blocks" in failure_of(verifier, wrong_tree.items).reason


def test_the_chain_survives_a_restart() -> None:
    """Goal: what is kept beside the blocks is enough to go on, and can be made again from their roots. Method: both
    after every block; then bytes that are no state."""
    blocks, verifier = blocks_of(9), own_verifier()
    for number, block in enumerate(blocks):
        verifier.verify(block.items)
        assert ChainState.decode(verifier.chain.encode()) == verifier.chain
        # Which of its roots the last block has, nothing says yet.
        known = ChainState.from_roots(each.root for each in blocks[:number])
        again = known.reopened(number, block.root, verifier.chain.open)
        assert msgspec.structs.replace(again, scheme=verifier.chain.scheme) == verifier.chain
        settled = verifier.chain.settled(block.root)
        assert (settled.peaks, settled.open) == (ChainState.from_roots(b.root for b in blocks[: number + 1]).peaks, ())
    assert ChainState.from_roots([]) == ChainState()
    many = [number.to_bytes(48, "big") for number in range(2500)]
    tree = StreamingTree()
    for root in many:
        tree.extend([root])
    assert ChainState.from_roots(many).peaks == tree.peaks()
    for wrong in (b"", b"x", verifier.chain.encode()[:-1]):
        with pytest.raises(BlockFormatError, match="no state of a chain"):
            ChainState.decode(wrong)


def test_going_back_is_setting_the_chain_back() -> None:
    """Goal: a block that could not be stored can come again. Method: the state before it, and the same block twice."""
    blocks, verifier = blocks_of(2), own_verifier()
    verifier.verify(blocks[0].items)
    before = verifier.chain
    verifier.verify(blocks[1].items)
    verifier.chain = before
    verifier.verify(blocks[1].items)


def test_blocks_may_be_verified_side_by_side() -> None:
    """Goal: publishers may send several blocks at once. Method: items of three blocks in turns, ended in reverse,
    linked in order."""
    blocks, verifier = blocks_of(3), own_verifier()
    begun = [verifier.begin_block(block.number) for block in blocks]
    for items in zip(*(block.items for block in blocks), strict=True):
        for verification, item in zip(begun, items, strict=True):
            verification.add([item])
    results = [verification.end() for verification in reversed(begun)]
    for result in reversed(results):
        verifier.link(result)
    assert verifier.chain.next_number == 3


def test_record_blocks_that_do_not_link_can_be_lived_with() -> None:
    """Goal: networks that were started anew from record files. Method: a second chain's block 2 behind block 1: refused
    by default; where record blocks need not link, the chain starts anew there, and its next block must link again."""
    mine, other = blocks_of(2), blocks_of(4, seed=1)
    lenient = Verifier(VerifierSettings(levels=CHAIN_LEVELS, link_record_blocks=False))
    for block in mine:
        lenient.verify(block.items)
    assert failure_of(lenient, other[3].items).reason == "block 2 comes next"
    lenient.verify(other[2].items)
    lenient.verify(other[3].items)
    assert lenient.chain.previous_root == other[3].root


def test_without_the_level_nothing_is_linked() -> None:
    """Goal: levels are switched. Method: two blocks of different chains, out of order, without L2."""
    verifier = Verifier(VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE))
    verifier.verify(blocks_of(3)[2].items)
    verifier.verify(blocks_of(1, seed=1)[0].items)


def test_a_changed_item_is_seen_by_the_next_block() -> None:
    """Goal: L2 is what holds the items of record blocks. Method: block 0 with another transaction passes by itself, and
    its block 1 does not."""
    blocks, verifier = blocks_of(2), own_verifier()
    items = list(blocks[0].items)
    items[3] = make_item(ItemKind.SIGNED_TRANSACTION, b"forged")
    verifier.verify(items)
    assert failure_of(verifier, blocks[1].items).kind is FailureKind.BAD_CHAIN_LINK
