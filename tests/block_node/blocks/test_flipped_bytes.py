"""One flipped byte anywhere in a real block fails.

What sees it: the items but the proofs are under the block's root, the root is under the next block's footer and under
the state proofs before it, and a proof is under its signature. By nature no level sees

- the threshold signatures, but L5;
- of the last record block, whose root no block names yet, what the RSA signatures do not cover: the header's version
  and time, the footer's state root, the record item's creation time. Where its root is known, they are seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from block_node.blocks.chain import ChainState
from block_node.blocks.errors import BlockFormatError, Level, VerificationFailed
from block_node.blocks.items import ItemKind, item_kind, item_prefix, split_block
from block_node.blocks.proofs import StateProof, TssProof, read_proof
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import Verifier
from tests.support.blocks import ALL_BUT_TSS, ROOTS, KnownSignatures, real_blocks, real_books, real_roots

PLACES = [(name, number) for name, roots in ROOTS.items() for number in range(len(roots))]
EVERY_BLOCK = pytest.mark.parametrize(("name", "number"), PLACES)


def spans(block: bytes) -> Iterator[tuple[int, int, int]]:
    """Each item's kind, and where it begins (with what frames it) and ends."""
    offset = 0
    for item in split_block(block):
        end = offset + len(item_prefix(len(item))) + len(item)
        yield item_kind(item), offset, end
        offset = end


def signature_span(block: bytes) -> range:
    """Where the threshold signature stands; nothing where there is none."""
    content = read_proof(list(split_block(block))[-1]).content
    if not isinstance(content, TssProof | StateProof):
        return range(0)
    assert content.signature
    start = block.rindex(content.signature)
    return range(start, start + len(content.signature))


def chains(shared_dir: Path, name: str) -> list[ChainState]:
    """Where the chain stands before each block, with what the state proofs before it claim."""
    settings = VerifierSettings(levels=ALL_BUT_TSS, accept_unchecked_proofs=True)
    verifier = Verifier(settings, address_books=real_books(shared_dir))
    states = []
    for block in real_blocks(shared_dir, name):
        states.append(verifier.chain)
        verifier.verify(split_block(block))
    return states


class Flips:
    """Flips bytes of one real block, and tells which changes nobody noticed."""

    def __init__(self, shared_dir: Path, name: str, number: int, *, known_roots: bool) -> None:
        self.blocks = real_blocks(shared_dir, name)
        self.number = number
        self.chain = chains(shared_dir, name)[number]
        self.books = real_books(shared_dir)
        self.block = self.blocks[number]
        self.last = number if known_roots else len(self.blocks) - 1
        self.settings = VerifierSettings(
            levels=ALL_BUT_TSS,
            accept_unchecked_proofs=name == "SCHNORR",
            known_roots=real_roots(shared_dir, name) if known_roots else {},
        )

    def passes(self, position: int, mask: int) -> bool:
        """Whether the block and those behind it pass with this byte changed."""
        block = bytearray(self.block)
        block[position] ^= mask
        verifier = Verifier(self.settings, chain=self.chain, address_books=self.books)
        try:
            verifier.verify(split_block(bytes(block)), self.number)
            for number in range(self.number + 1, self.last + 1):
                verifier.verify(split_block(self.blocks[number]), number)
        except (VerificationFailed, BlockFormatError):
            return False
        return True

    def unnoticed(self, positions: list[int], random: Random) -> list[int]:
        return [each for each in positions if self.passes(each, 1 << random.randrange(8))]


def sample(block: bytes, random: Random, count: int) -> list[int]:
    """Positions all over the block, but most of them in what is read: header, footer, proof, what frames items."""
    read: list[int] = []
    for kind, start, end in spans(block):
        read += range(start, end) if kind in (ItemKind.HEADER, ItemKind.FOOTER) else range(start, min(start + 24, end))
        if kind == ItemKind.PROOF:
            read += range(start, end)
    return sorted({*random.sample(read, min(count, len(read))), *random.sample(range(len(block)), count)})


@EVERY_BLOCK
def test_with_known_roots_every_block_fails_by_itself(shared_dir: Path, name: str, number: int) -> None:
    """Goal: whatever byte changes, that very block fails. Method: one bit at seeded places, the roots being known, as
    the table gives them; threshold signatures apart. `test_every_byte_of_every_block` leaves no place out."""
    random = Random(number)
    flips = Flips(shared_dir, name, number, known_roots=True)
    signature = signature_span(flips.block)
    positions = sample(flips.block, random, 120 if len(flips.block) < 100_000 else 40)
    outside = [each for each in positions if each not in signature]
    assert flips.unnoticed(outside, random) == []
    assert flips.passes(0, 0)


@EVERY_BLOCK
def test_without_known_roots_the_chain_fails(shared_dir: Path, name: str, number: int) -> None:
    """Goal: the levels see by themselves what the module's text says they see. Method: a bit at seeded places, and all
    blocks from that one on; what passes must be in the places that are named."""
    random = Random(number)
    flips = Flips(shared_dir, name, number, known_roots=False)
    unseen = set(signature_span(flips.block))
    if (name, number) == ("SOLO_4N", 4):
        unseen |= set(uncovered_of_the_last_record_block(flips.block))
    positions = [each for each in sample(flips.block, random, 40) if each not in unseen]
    assert flips.unnoticed(positions, random) == []


def uncovered_of_the_last_record_block(block: bytes) -> Iterator[int]:
    by_kind = {kind: (start, end) for kind, start, end in spans(block)}
    yield from range(*by_kind[ItemKind.HEADER])
    record = by_kind[ItemKind.RECORD_FILE][0]
    yield from range(record, record + 24)
    footer_end = by_kind[ItemKind.FOOTER][1]
    yield from range(footer_end - 50, footer_end)


@EVERY_BLOCK
def test_every_bit_of_what_a_proof_begins_with(shared_dir: Path, name: str, number: int) -> None:
    """Goal: a proof cannot be turned into one of another kind. Method: every bit of the first bytes of each proof,
    where its kind, its block and its lengths are."""
    flips = Flips(shared_dir, name, number, known_roots=True)
    _, start, _ = list(spans(flips.block))[-1]
    signature = signature_span(flips.block)
    bits = [(at, 1 << bit) for at in range(start, start + 14) if at not in signature for bit in range(8)]
    assert [place for place in bits if flips.passes(*place)] == []


@pytest.mark.soak
def test_every_bit_around_a_record_file(shared_dir: Path) -> None:
    """Goal: no place was missed by sampling. Method: every bit of the smallest block's header, footer and proof, and a
    bit in every tenth byte of its record file."""
    random = Random(4)
    flips = Flips(shared_dir, "SOLO_4N", 4, known_roots=True)
    for kind, start, end in spans(flips.block):
        if kind == ItemKind.RECORD_FILE:
            assert flips.unnoticed(list(range(start, end, 10)), random) == []
        else:
            bits = [(at, 1 << bit) for at in range(start, end) for bit in range(8)]
            assert [place for place in bits if flips.passes(*place)] == []


@pytest.mark.slow
def test_every_byte_of_a_state_proof(shared_dir: Path) -> None:
    """Goal: a state proof has no byte that may change, its signature apart. Method: every byte of that of block 4."""
    flips = Flips(shared_dir, "SCHNORR", 4, known_roots=True)
    _, start, end = list(spans(flips.block))[-1]
    signature = signature_span(flips.block)
    places = [each for each in range(start, end) if each not in signature]
    assert flips.unnoticed(places, Random(4)) == []


@pytest.mark.parametrize("number", range(6))
def test_an_external_verifier_sees_every_byte_of_the_threshold_signatures(shared_dir: Path, number: int) -> None:
    """Goal: with L5 nothing is left unseen. Method: an external verifier that knows the true pairs of root and
    signature, and a bit at seeded places of the signature."""
    flips = Flips(shared_dir, "SCHNORR", number, known_roots=True)
    span = signature_span(flips.block)
    roots = real_roots(shared_dir, "SCHNORR")
    hook = KnownSignatures({(roots[0 if number == 0 else 5], flips.block[span.start : span.stop])})
    settings = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.TSS)
    Verifier(settings, tss=hook).verify(split_block(flips.block))
    random = Random(number)
    for position in random.sample(span, 40):
        block = bytearray(flips.block)
        block[position] ^= 1 << random.randrange(8)
        with pytest.raises(VerificationFailed) as failure:
            Verifier(settings, tss=hook).verify(split_block(bytes(block)))
        assert failure.value.level is Level.TSS


@pytest.mark.soak
@EVERY_BLOCK
def test_every_byte_of_every_block(shared_dir: Path, name: str, number: int) -> None:
    """Goal and method as for the smallest block: every byte of each, some 10,000 of those above 100 KB."""
    random = Random(number)
    flips = Flips(shared_dir, name, number, known_roots=True)
    signature = signature_span(flips.block)
    outside = [each for each in range(len(flips.block)) if each not in signature]
    stride = 1 if len(flips.block) < 100_000 else len(flips.block) // 10_000
    assert flips.unnoticed(outside[::stride], random) == []
