"""Recorded blocks of a real network pass at every level that their table names."""

from __future__ import annotations

from pathlib import Path

import pytest

from block_node.blocks.chain import ChainState
from block_node.blocks.errors import Level, VerificationFailed
from block_node.blocks.items import ItemKind, item_content, item_kind, make_item, split_block
from block_node.blocks.proofs import ProofKind, RecordFileProof, StateProof, TssProof, read_proof
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import Verifier
from tests.support.blocks import ALL_BUT_TSS, ROOTS, KnownSignatures, join_block, real_blocks, real_books, real_roots

BOTH = pytest.mark.parametrize("name", list(ROOTS))


@BOTH
def test_items_and_their_frame_are_the_same_bytes_again(shared_dir: Path, name: str) -> None:
    """Goal: nothing is lost by cutting a block into items. Method: cut and join; each item from kind and content."""
    for block in real_blocks(shared_dir, name):
        items = list(split_block(block))
        assert join_block(items) == block
        assert [make_item(item_kind(item), bytes(item_content(item))) for item in items] == items


@BOTH
def test_every_root_is_the_published_one(shared_dir: Path, name: str) -> None:
    """Goal: L1 is right. Method: the roots of all blocks against the table."""
    assert [root.hex()[:16] for root in real_roots(shared_dir, name).values()] == ROOTS[name]


def test_record_blocks_pass_all_levels(shared_dir: Path) -> None:
    """Goal: SOLO_4N passes roots, links, all-blocks roots and all 15 signatures. Method: the whole chain at L0 to L4,
    where a single bad signature would fail its block."""
    verifier = Verifier(VerifierSettings(levels=ALL_BUT_TSS, signatures_min=3), address_books=real_books(shared_dir))
    signatures = 0
    for number, block in enumerate(real_blocks(shared_dir, "SOLO_4N")):
        items = list(split_block(block))
        result = verifier.verify(items, number)
        assert result.checked == Level.STRUCTURE | Level.MERKLE | Level.RECORD_PROOF
        assert (result.proofs, result.item_count) == ((ProofKind.RECORD_FILE,), 4)
        assert result.size_bytes == sum(map(len, items))
        proof = read_proof(items[-1]).content
        assert isinstance(proof, RecordFileProof)
        signatures += len(proof.signatures)
    assert signatures == 15
    assert verifier.chain.next_number == 5


def test_state_proofs_resolve_to_the_root_of_block_5(shared_dir: Path) -> None:
    """Goal: SCHNORR passes roots, links, all-blocks roots and L4. Method: the whole chain, and what the proofs of
    blocks 1 to 4 claim."""
    settings = VerifierSettings(levels=ALL_BUT_TSS, accept_unchecked_proofs=True)
    verifier = Verifier(settings, address_books=real_books(shared_dir))
    roots = real_roots(shared_dir, "SCHNORR")
    counts = []
    for number, block in enumerate(real_blocks(shared_dir, "SCHNORR")):
        result = verifier.verify(split_block(block), number)
        counts.append(result.item_count)
        if number in (0, 5):
            assert (result.proofs, result.claims) == ((ProofKind.TSS,), ())
        else:
            assert result.checked & Level.STATE_PROOF
            assert [(claim.by, claim.target, claim.root) for claim in result.claims] == [(number, 5, roots[5])]
            assert len(verifier.chain.claims) == number
    assert counts == [3744, 417, 851, 261, 254, 264]
    assert verifier.chain.claims == ()


def test_a_block_without_a_proof_that_is_checked_is_refused(shared_dir: Path) -> None:
    """Goal: a proof that nobody checks does not stand for one. Method: a TSS block while L3 and L4 are on, not L5."""
    verifier = Verifier(VerifierSettings(levels=ALL_BUT_TSS), address_books=real_books(shared_dir))
    with pytest.raises(VerificationFailed, match="no level that is on checks its proofs"):
        verifier.verify(split_block(real_blocks(shared_dir, "SCHNORR")[0]))


def test_an_external_verifier_is_asked_about_every_threshold_signature(shared_dir: Path) -> None:
    """Goal: L5 decides on TSS proofs and on the signature in state proofs. Method: a verifier that knows the signatures
    of blocks 0 and 5; then one that knows none."""
    blocks, roots = real_blocks(shared_dir, "SCHNORR"), real_roots(shared_dir, "SCHNORR")
    known = set()
    for number in (0, 5):
        proof = read_proof(list(split_block(blocks[number]))[-1]).content
        assert isinstance(proof, TssProof)
        known.add((roots[number], proof.signature))
    settings = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.CHAIN | Level.TSS)
    hook = KnownSignatures(known)
    verifier = Verifier(settings, tss=hook)
    for block in blocks:
        assert verifier.verify(split_block(block)).checked & Level.TSS
    assert [(each.proof_of, each.number) for each in hook.asked] == [(0, 0), (1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    for number, block in enumerate(blocks):
        refusing = Verifier(settings, tss=KnownSignatures(set()), chain=ChainState.starting_at(number))
        with pytest.raises(VerificationFailed, match="is not the ledger's") as failure:
            refusing.verify(split_block(block))
        assert failure.value.level is Level.TSS


def test_the_proofs_are_of_the_kinds_the_table_says(shared_dir: Path) -> None:
    """Goal: proofs are read whole. Method: what stands in the state proof of block 1."""
    items = list(split_block(real_blocks(shared_dir, "SCHNORR")[1]))
    assert item_kind(items[-1]) == ItemKind.PROOF
    proof = read_proof(items[-1])
    assert proof.number == 1
    assert isinstance(proof.content, StateProof)
    assert [len(path.siblings) for path in proof.content.paths] == [0, 19, 0]
    assert len(proof.content.signature or b"") == 2920
