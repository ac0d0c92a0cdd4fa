"""Whatever a publisher sends, the answer is a result or a typed failure; proofs of later kinds; a hook that fails."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.chain import BlockResult, ChainState
from block_node.blocks.errors import BlockFormatError, FailureKind, Level, VerificationFailed
from block_node.blocks.generator import ChainGenerator
from block_node.blocks.items import Item, ItemKind, make_item, split_block
from block_node.blocks.proofs import ProofKind
from block_node.blocks.protobuf import bytes_field, number_field
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import SignedRoot, Verifier
from tests.support.blocks import ALL_BUT_TSS, own_verifier, signing_keys
from tests.support.examples import examples


def good_block() -> list[Item]:
    return list(ChainGenerator(signing_keys()).next_block().items)


def mutated(items: list[Item], random: Random) -> list[Item]:
    """The items with a few changes: bytes, order, missing and foreign items."""
    items = list(items)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(items)) if items else 0
        change = random.randrange(7)
        if not items or change == 0:
            items.insert(at, random.randbytes(random.randrange(30)))
        elif change == 1:
            del items[at]
        elif change == 2:
            items.insert(random.randrange(len(items)), items[at])
        elif change == 3:
            items[at] = items[at][: random.randrange(len(items[at]) + 1)]
        elif change == 4:
            items.insert(at, make_item(random.randrange(1, 45), random.randbytes(random.randrange(200))))
        elif items[at]:
            changed = bytearray(items[at])
            changed[random.randrange(len(changed))] = random.randrange(256)
            items[at] = bytes(changed)
    return items


@given(st.integers(0, 2**64))
@settings(max_examples=examples(200))
def test_changed_blocks_fail_as_blocks_fail(seed: int) -> None:
    """Goal: no input makes the verifier raise anything else, nor moves the chain when it fails. Method: changed blocks,
    whole and in pieces: the same outcome."""
    random = Random(seed)
    items = mutated(good_block(), random)
    outcomes: list[BlockResult | FailureKind] = []
    for in_parts in (False, True):
        verifier = own_verifier()
        try:
            block = verifier.begin_block(0)
            if in_parts:
                for item in items:
                    cut = random.randrange(len(item) + 1)
                    block.add_part(item[:cut], last=False)
                    block.add_part(item[cut:], last=True)
            else:
                block.add(items)
            result = block.end()
            verifier.link(result)
            outcomes.append(result)
        except VerificationFailed as failure:
            assert verifier.chain == ChainState()
            outcomes.append(failure.kind)
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=200))
@settings(max_examples=examples(150))
def test_any_bytes_are_items_or_an_error(data: bytes) -> None:
    """Goal: bytes from a peer raise BlockFormatError or are items. Method: any bytes, as a block and as each item that
    is looked into."""
    try:
        items = list(split_block(data))
    except BlockFormatError:
        items = []
    good = good_block()
    for item in (*items, make_item(ItemKind.HEADER, data), make_item(ItemKind.FOOTER, data)):
        kind_of_failure([item, *good[1:]])
        kind_of_failure([good[0], item, *good[1:]])
    assert kind_of_failure([*good[:-1], make_item(ItemKind.PROOF, data)])


def kind_of_failure(items: list[Item]) -> FailureKind | None:
    """None for a block that passes, as one with another good header does. Whatever else is raised is a finding."""
    try:
        own_verifier().verify(items)
    except VerificationFailed as failure:
        return failure.kind
    return None


def test_a_proof_of_a_later_kind_stands_for_nothing() -> None:
    """Goal: a kind of proof that is not known does no harm beside one that is checked, and does not replace it. Method:
    beside the good one, alone, also where unchecked proofs are accepted, and alone where no proof level is on."""
    block = good_block()
    later = make_item(ItemKind.PROOF, bytes_field(5, b"later"))
    result = own_verifier().verify([*block, later])
    assert result.proofs == (ProofKind.RECORD_FILE, ProofKind.UNRECOGNIZED)
    with pytest.raises(VerificationFailed) as failure:
        own_verifier().verify([*block[:-1], later])
    assert failure.value.kind is FailureKind.UNRECOGNIZED_PROOF_TYPE
    books = AddressBooks.always(signing_keys().address_book)
    lenient = VerifierSettings(levels=ALL_BUT_TSS, accept_unchecked_proofs=True)
    with pytest.raises(VerificationFailed, match="UNRECOGNIZED"):
        Verifier(lenient, address_books=books).verify([*block[:-1], later])
    assert Verifier().verify([*block[:-1], later]).proofs == (ProofKind.UNRECOGNIZED,)


def test_an_external_verifier_that_fails_fails_the_block() -> None:
    """Goal: no exception of foreign code gets out, and none passes a block. Method: one that raises."""

    class Failing:
        def verify_tss(self, signed: SignedRoot) -> bool:
            raise OSError(f"no library for block {signed.number}")

    levels = Level.STRUCTURE | Level.MERKLE | Level.TSS
    signed = make_item(ItemKind.PROOF, number_field(1, 0) + bytes_field(ProofKind.TSS, bytes_field(1, b"s")))
    with pytest.raises(VerificationFailed, match="no library for block 0") as failure:
        Verifier(VerifierSettings(levels=levels), tss=Failing()).verify([*good_block()[:-1], signed])
    assert (failure.value.kind, failure.value.level) == (FailureKind.UNKNOWN_ERROR, Level.TSS)
