"""State proofs (L4), made by hand for generated blocks, in both layouts, and broken in every way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.chain import ChainState, Claim
from block_node.blocks.errors import FailureKind, Level, VerificationFailed
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock
from block_node.blocks.items import Item, ItemKind, item_kind, make_item, read_footer, read_header
from block_node.blocks.merkle import (
    CURRENT,
    EMPTY_TREE,
    LEGACY,
    SHA384,
    HashScheme,
    RootCandidate,
    fold,
    place_of,
)
from block_node.blocks.proof_checks import check_state_proof
from block_node.blocks.proofs import (
    FINAL_PATH,
    LeafKind,
    MerklePath,
    ProofKind,
    RecordFileProof,
    Sibling,
    StateProof,
    make_record_proof,
)
from block_node.blocks.protobuf import bytes_field, number_field
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import Verifier
from tests.support.blocks import signing_keys

LEVELS = Level.STRUCTURE | Level.MERKLE | Level.CHAIN | Level.STATE_PROOF


class Step(NamedTuple):
    """What is beside the way from one block's root to the next one's."""

    siblings: list[Sibling]
    timestamp: bytes


leaf_hash, node_hash, one_child_hash = SHA384.leaf_hash, SHA384.node_hash, SHA384.one_child_hash


def step_to(block: GeneratedBlock, scheme: HashScheme = CURRENT) -> Step:
    """From the root of the block before up to the root of this one, worked out from its items."""
    header = read_header(block.items[0])
    footer = read_footer(block.items[-2])
    leaves: dict[int, list[bytes]] = {place: [] for place in range(3, scheme.positions)}
    for item in block.items[:-2]:
        leaves[place_of(item_kind(item)) or 0].append(leaf_hash(item))
    top = [footer.previous_root, footer.all_blocks_root, footer.state_root, *(fold(each) for each in leaves.values())]
    siblings, width = [], 1
    while width < scheme.positions:
        siblings.append(Sibling(False, fold(top[width : 2 * width])))
        width *= 2
    if scheme.one_child_above:
        siblings.append(Sibling(False, b""))
    assert header.timestamp is not None
    return Step(siblings, header.timestamp)


def state_proof(root: bytes, later: Sequence[GeneratedBlock], scheme: HashScheme = CURRENT) -> StateProof:
    """From a block's root to that of the last of the blocks behind it, as the real network builds them."""
    siblings: list[Sibling] = []
    steps = [step_to(block, scheme) for block in later]
    for step in steps[:-1]:
        siblings += [*step.siblings, Sibling(True, leaf_hash(step.timestamp))]
    siblings += steps[-1].siblings
    paths = (
        MerklePath((), 2, LeafKind.TIMESTAMP, steps[-1].timestamp),
        MerklePath(tuple(siblings), 2, LeafKind.HASH, root),
        MerklePath((), FINAL_PATH, LeafKind.JOIN, b""),
    )
    return StateProof(paths, b"signature")


def proof_item(number: int, proof: StateProof) -> Item:
    content = b""
    for path in proof.paths:
        fields = b"".join(
            bytes_field(1, number_field(1, each.is_left) + bytes_field(2, each.hash)) for each in path.siblings
        )
        fields += number_field(2, path.next_index)
        fields += bytes_field(path.leaf_kind, path.leaf) if path.leaf_kind else b""
        content += bytes_field(1, fields)
    if proof.signature is not None:
        content += bytes_field(2, bytes_field(1, proof.signature))
    return make_item(ItemKind.PROOF, number_field(1, number) + bytes_field(ProofKind.STATE_PROOF, content))


def chain(count: int, *, scheme: HashScheme = CURRENT) -> list[GeneratedBlock]:
    generator = ChainGenerator(signing_keys(), shape=BlockShape(item_count=9, scheme=scheme))
    return list(generator.blocks(count))


def with_state_proof(
    block: GeneratedBlock, later: Sequence[GeneratedBlock], scheme: HashScheme = CURRENT
) -> list[Item]:
    return [*block.items[:-1], proof_item(block.number, state_proof(block.root, later, scheme))]


@pytest.mark.parametrize("scheme", [CURRENT, LEGACY])
def test_a_chain_proven_by_its_last_block(scheme: HashScheme) -> None:
    """Goal: state proofs lead to the block they are about, in either layout. Method: blocks 0 to 3 proven by block 4,
    which settles all of them."""
    blocks = chain(5, scheme=scheme)
    verifier = Verifier(VerifierSettings(levels=LEVELS, accept_unchecked_proofs=True))
    for block in blocks[:-1]:
        result = verifier.verify(with_state_proof(block, blocks[block.number + 1 :], scheme))
        assert result.root == block.root, "the proof says which root it is"
        assert [(claim.target, claim.root) for claim in result.claims] == [(4, blocks[4].root)]
    waiting = verifier.chain.claims
    verifier.verify(blocks[4].items)
    assert (len(waiting), verifier.chain.claims) == (4, ())


def test_a_proof_that_starts_elsewhere_is_refused() -> None:
    """Goal: the proof must be of this block. Method: that of block 0 for block 1."""
    blocks = chain(3)
    verifier = Verifier(VerifierSettings(levels=LEVELS), chain=ChainState.starting_at(1))
    items = [*blocks[1].items[:-1], proof_item(1, state_proof(blocks[0].root, blocks[1:]))]
    with pytest.raises(VerificationFailed, match="not at its root") as failure:
        verifier.verify(items)
    assert (failure.value.kind, failure.value.level) == (FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF)


def test_the_block_that_is_claimed_must_have_that_root() -> None:
    """Goal: a claim that does not come true fails, and nothing changes; the operator can do without it. Method: block
    0 proven by a block 1 of another chain; then its own block 1; then without the claim; also over a restart."""
    blocks = chain(2)
    other = ChainGenerator(signing_keys(), chain=ChainState.from_roots([blocks[0].root]), seed=9).next_block()
    verifier = Verifier(VerifierSettings(levels=LEVELS, accept_unchecked_proofs=True))
    verifier.verify(with_state_proof(blocks[0], [other]))
    verifier.chain = ChainState.decode(verifier.chain.encode())
    before = verifier.chain
    with pytest.raises(VerificationFailed, match="state proof of block 0 resolves to") as failure:
        verifier.verify(blocks[1].items)
    assert (failure.value.kind, failure.value.number) == (FailureKind.BAD_BLOCK_PROOF, 1)
    assert verifier.chain is before
    verifier.chain = before.without_claims()
    verifier.verify(blocks[1].items)


def test_claims_must_not_contradict_each_other() -> None:
    """Goal: two proofs about one block agree. Method: block 0 proven by one block 2, block 1 by another."""
    blocks = chain(3)
    other = ChainGenerator(signing_keys(), chain=ChainState.from_roots([each.root for each in blocks[:2]]), seed=9)
    verifier = Verifier(VerifierSettings(levels=LEVELS))
    verifier.verify(with_state_proof(blocks[0], blocks[1:]))
    with pytest.raises(VerificationFailed, match="different roots of block 2"):
        verifier.verify(with_state_proof(blocks[1], [other.next_block()]))


def test_claims_are_bounded_and_known_roots_are_asked() -> None:
    """Goal: claims cost bounded memory, and are compared with what the operator knows. Method: one claim too many;
    a claim about a block whose root is known, right and wrong."""
    blocks = chain(3)
    verifier = Verifier(VerifierSettings(levels=LEVELS, claims_max=1))
    verifier.verify(with_state_proof(blocks[0], blocks[1:]))
    with pytest.raises(VerificationFailed) as failure:
        verifier.verify(with_state_proof(blocks[1], blocks[2:]))
    assert failure.value.kind is FailureKind.LIMIT_EXCEEDED
    for root, good in ((blocks[2].root, True), (EMPTY_TREE, False)):
        knowing = Verifier(VerifierSettings(levels=LEVELS, known_roots={2: root}))
        if good:
            knowing.verify(with_state_proof(blocks[0], blocks[1:]))
        else:
            with pytest.raises(VerificationFailed, match="not to the known root of block 2"):
                knowing.verify(with_state_proof(blocks[0], blocks[1:]))


ROOT = b"r" * 48
HASH = b"h" * 48
UP = Sibling(False, HASH)


def path(next_index: int, kind: LeafKind = LeafKind.JOIN, leaf: bytes = b"", *siblings: Sibling) -> MerklePath:
    return MerklePath(siblings, next_index, kind, leaf)


OWN = path(2, LeafKind.HASH, ROOT, UP, UP, UP, UP)
TIME = path(2, LeafKind.TIMESTAMP, b"t")
MEETING = path(3, LeafKind.TIMESTAMP, b"t")
END = path(FINAL_PATH)


def check(number: int, proof: StateProof) -> Claim:
    """Of a block that may have another root, too, or the one that the proof starts at."""
    roots = (RootCandidate("other", HASH), RootCandidate("right", ROOT))
    root, claim = check_state_proof(number, roots, SHA384, proof)
    assert root == roots[1]
    return claim


def test_the_plain_proof_resolves() -> None:
    """Goal: what is broken below is good. Method: those paths, worked out by hand; and a way over single children."""
    value = ROOT
    for _ in range(4):
        value = node_hash(value, HASH)
    claim = check(7, StateProof((TIME, OWN, END), b"s"))
    assert (claim.by, claim.target, claim.root) == (7, 8, node_hash(leaf_hash(b"t"), value))
    single = (path(1, LeafKind.HASH, ROOT, UP, UP, UP), path(2, LeafKind.JOIN), path(FINAL_PATH))
    value = ROOT
    for _ in range(3):
        value = node_hash(value, HASH)
    claim = check(7, StateProof(single, b"s"))
    assert (claim.target, claim.root) == (8, one_child_hash(one_child_hash(value)))


BROKEN: dict[str, tuple[tuple[MerklePath, ...], str]] = {
    "two paths": ((OWN, END), "3 paths or more"),
    "no root": ((TIME, path(2, LeafKind.BLOCK_ITEM, b"x"), END), "starts at 0 roots"),
    "two roots": ((OWN, OWN, END), "starts at 2 roots"),
    "no end": ((TIME, OWN, path(3)), "goes on at path 3 of 3"),
    "an end too early": ((TIME, OWN, END, END), "path 2 is the end, and 4 are there"),
    "backwards": ((TIME, path(0, LeafKind.HASH, ROOT), END), "goes on at path 0"),
    "to itself": ((TIME, path(1, LeafKind.HASH, ROOT), END), "goes on at path 1"),
    "three meet": ((MEETING, MEETING, path(3, LeafKind.HASH, ROOT), END), "3 paths meet in path 3"),
    "a leaf where paths meet": ((path(1, LeafKind.TIMESTAMP, b"t"), OWN, END), "has a leaf of its own"),
    "nothing meets": ((path(2), OWN, END), "0 paths meet in path 0"),
    "short sibling": ((TIME, path(2, LeafKind.HASH, ROOT, Sibling(False, b"x")), END), "has 1 bytes, not 48"),
    "single child to the left": ((TIME, path(2, LeafKind.HASH, ROOT, Sibling(True, b"")), END), "has 0 bytes"),
    "half way": ((TIME, path(2, LeafKind.HASH, ROOT, UP, UP), END), "has 3 steps"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_paths_are_refused(name: str) -> None:
    """Goal: paths that form no tree are no proof. Method: one fault each."""
    paths, reason = BROKEN[name]
    with pytest.raises(VerificationFailed) as failure:
        check(7, StateProof(paths, b"s"))
    assert failure.value.kind is FailureKind.BAD_BLOCK_PROOF
    assert reason in failure.value.reason


@pytest.mark.parametrize("signature", [None, b""])
def test_a_proof_without_a_signature_is_refused(signature: bytes | None) -> None:
    """Goal: a claim that nobody signed is none, whoever checks signatures. Method: none, and an empty one."""
    with pytest.raises(VerificationFailed) as failure:
        check(7, StateProof((TIME, OWN, END), signature))
    assert failure.value.kind is FailureKind.MISSING_MANDATORY_FIELD


def test_all_proofs_of_a_block_must_pass() -> None:
    """Goal: a good proof does not make up for a bad one. Method: a good state proof with a record-file proof that
    nobody signed, in both orders, and without the level that would see it."""
    blocks = chain(2)
    items = with_state_proof(blocks[0], blocks[1:])
    unsigned = make_record_proof(0, RecordFileProof(6, ()))
    both: list[Callable[[], list[Item]]] = [lambda: [*items, unsigned], lambda: [*items[:-1], unsigned, items[-1]]]
    books = AddressBooks.always(signing_keys().address_book)
    for make in both:
        with pytest.raises(VerificationFailed, match="0 nodes signed"):
            Verifier(VerifierSettings(levels=LEVELS | Level.RECORD_PROOF), address_books=books).verify(make())
        assert Verifier(VerifierSettings(levels=LEVELS)).verify(make()).checked & Level.STATE_PROOF
