"""Goal: how a block is hashed is found out per block, since its header does not say.

Method: chains in both layouts under versions of every age; the roots again by a plain second reading, and vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import pytest

from block_node.blocks.chain import ChainState
from block_node.blocks.errors import FailureKind, Level, SettingsError, VerificationFailed
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock
from block_node.blocks.items import Item, ItemKind, item_kind, make_item, read_footer, read_header
from block_node.blocks.merkle import CURRENT, LEGACY, SCHEMES, HashRules, HashScheme
from block_node.blocks.proofs import ProofKind
from block_node.blocks.protobuf import bytes_field, number_field
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import Verifier
from tests.support.blocks import KnownSignatures, signing_keys

OLD = ((0, 3, 0), (0, 30, 0), (0, 73, 0))
VERSIONS = (*OLD, (0, 74, 0), (0, 78, 0))
SHA256 = HashScheme("sha256-16", HashRules(1, hashlib.sha256))
TALL = HashScheme("sha384-16-tall", CURRENT.rules, one_child_above=True)
"""Two that no network has yet: what one adds for a new scheme is such a line."""
VECTORS = {
    "sha384-16": "75218a4733fe997819f514e2313cec2b7407fc48d56b9047534cd640093fdb4b9901b9e2fdb53cecb8479236b40d8dbf",
    "sha384-8": "4a1de8c2bfc1af7785ad73426635d9a1db8e9bf84a7e61256855128a3428646858cf326d9fd99f886069798f7b6da66c",
    "sha256-16": "cfbb980b4246208ca99a2a61b1b481db500d29f05705aa95b9aa88540fe7a8e8",
}
"""The roots of block 0 of a chain of 10 items with seed 0."""


def chain(count: int, scheme: HashScheme, version: tuple[int, int, int] = (0, 78, 0)) -> list[GeneratedBlock]:
    shape = BlockShape(scheme=scheme, hapi_version=version)
    return list(ChainGenerator(signing_keys(), shape=shape).blocks(count))


def plain_root(items: Sequence[Item], name: str, positions: int, above: bool) -> bytes:
    """A block's root, written down from the description; it shares nothing with the code but the cutting of items."""

    def h(*parts: bytes) -> bytes:
        return hashlib.new(name, b"".join(parts)).digest()

    def tree(values: list[bytes]) -> bytes:
        if len(values) < 2:
            return values[0] if values else h(b"\0")
        left = 1 << (len(values) - 1).bit_length() - 1
        return h(b"\2", tree(values[:left]), tree(values[left:]))

    place = {1: 5, 2: 3, 3: 3, 4: 4, 5: 5, 6: 5, 7: 6, 10: 5, 11: 7}
    leaves: dict[int, list[bytes]] = {each: [] for each in range(3, 16)}
    for item in items:
        if item_kind(item) in place:
            leaves[place[item_kind(item)]].append(h(b"\0", item))
    footer = next(read_footer(item) for item in items if item_kind(item) == 12)
    values = [footer.previous_root, footer.all_blocks_root, footer.state_root, *map(tree, leaves.values())]
    top = tree(values[:positions])
    time = read_header(items[0]).timestamp
    assert time is not None
    return h(b"\2", h(b"\0", time), h(b"\1", top) if above else top)


@pytest.mark.parametrize(
    ("scheme", "name", "positions", "above"),
    [(CURRENT, "sha384", 16, False), (LEGACY, "sha384", 8, True), (SHA256, "sha256", 16, False)],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_roots_are_those_of_the_plain_reading(scheme: HashScheme, name: str, positions: int, above: bool) -> None:
    blocks = chain(3, scheme)
    assert [block.root for block in blocks] == [plain_root(b.items, name, positions, above) for b in blocks]
    assert blocks[0].root.hex() == VECTORS[scheme.name]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_any_version_in_any_layout_from_block_1_on(scheme: HashScheme, version: tuple[int, int, int]) -> None:
    """Wrapped record blocks have the version of their record file, which says nothing about how they are hashed."""
    blocks = chain(4, scheme, version)
    verifier = Verifier(VerifierSettings())
    results = [verifier.verify(block.items) for block in blocks]
    for block, result in zip(blocks, results, strict=True):
        assert block.root in (result.root, *result.other_roots)
        assert verifier.chain.next_number == 4
    assert [result.root for result in results[1:]] == [block.root for block in blocks[1:]], "what fitted is tried first"
    first = results[1].corrected or results[0].root
    assert first == blocks[0].root
    assert [result.corrected for result in results[2:]] == [b"", b""]


@pytest.mark.parametrize("version", OLD)
def test_a_known_root_decides_at_once(version: tuple[int, int, int]) -> None:
    for scheme in SCHEMES:
        blocks = chain(3, scheme, version)
        verifier = Verifier(VerifierSettings(known_roots={0: blocks[0].root}))
        result = verifier.verify(blocks[0].items)
        assert (result.root, result.other_roots) == (blocks[0].root, ())
        assert (verifier.chain.open, verifier.chain.scheme) == ((), scheme.name)
        for block in blocks[1:]:
            assert verifier.verify(block.items).root == block.root


def test_a_known_root_that_no_scheme_gives_is_refused_with_all_roots_named() -> None:
    block, legacy = chain(1, CURRENT)[0], chain(1, LEGACY)[0]
    verifier = Verifier(VerifierSettings(known_roots={0: b"x" * 48}))
    with pytest.raises(VerificationFailed) as caught:
        verifier.verify(block.items)
    assert caught.value.kind is FailureKind.BAD_ROOT
    for root in (block.root, legacy.root, b"x" * 48):
        assert root.hex() in caught.value.reason


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_block_that_continues_none_of_the_roots_is_refused_with_all_named(scheme: HashScheme) -> None:
    blocks = chain(3, scheme)
    shape = BlockShape(scheme=scheme)
    other = ChainGenerator(signing_keys(), shape=shape, seed=1)
    wrong = list(other.blocks(3))
    verifier = Verifier(VerifierSettings())
    verifier.verify(blocks[0].items)
    for number in (1, 2):
        before = verifier.chain
        with pytest.raises(VerificationFailed) as caught:
            verifier.verify(wrong[number].items)
        assert caught.value.kind is FailureKind.BAD_CHAIN_LINK
        for root in (chain(3, CURRENT)[0].root, chain(3, LEGACY)[0].root, wrong[0].root) if number == 1 else ():
            assert root.hex() in caught.value.reason
        assert blocks[number - 1].root.hex() in caught.value.reason
        assert verifier.chain is before
        verifier.verify(blocks[number].items)


def test_the_scheme_may_change_at_every_block() -> None:
    """Also where two changes follow each other; what the chain knows survives a restart at each block."""
    generator, verifier = ChainGenerator(signing_keys()), Verifier(VerifierSettings(levels=Level(7)))
    roots: list[bytes] = []
    for at, scheme in enumerate((LEGACY, CURRENT, LEGACY, LEGACY, CURRENT, CURRENT, LEGACY)):
        generator.shape = BlockShape(scheme=scheme)
        block = generator.next_block()
        result = verifier.verify(block.items)
        if result.corrected:
            assert result.corrected == roots[at - 1]
        roots.append(block.root)
        verifier.chain = ChainState.decode(verifier.chain.encode())
    assert verifier.chain.settled(roots[-1]).peaks == ChainState.from_roots(roots).peaks


def test_the_state_of_a_chain_of_an_earlier_version_is_read() -> None:
    """It has fields for one root of the last block only."""
    blocks = chain(3, CURRENT)
    state = ChainState.from_roots(block.root for block in blocks[:2])
    before = msgspec.msgpack.encode(
        {"next_number": 2, "previous_root": blocks[1].root, "peaks": state.peaks, "claims": ()}
    )
    verifier = Verifier(VerifierSettings(), chain=ChainState.decode(before))
    verifier.verify(blocks[2].items)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_threshold_signature_says_which_root_it_is(scheme: HashScheme) -> None:
    block = chain(1, scheme)[0]
    proof = number_field(1, 0) + bytes_field(ProofKind.TSS, bytes_field(1, b"signature"))
    items = [*block.items[:-1], make_item(ItemKind.PROOF, proof)]
    hook = KnownSignatures({(block.root, b"signature")})
    verifier = Verifier(VerifierSettings(levels=Level(7) | Level.TSS), tss=hook)
    result = verifier.verify(items)
    assert (result.root, result.other_roots, verifier.chain.scheme) == (block.root, (), scheme.name)


@pytest.mark.parametrize("scheme", [SHA256, TALL], ids=lambda scheme: scheme.name)
def test_a_new_scheme_is_one_value(scheme: HashScheme) -> None:
    """Without it such a chain is refused; with it everything holds, also another length of all roots."""
    blocks = chain(4, scheme)
    known = Verifier(VerifierSettings())
    if scheme is TALL:
        known.verify(blocks[0].items)
    with pytest.raises(VerificationFailed):
        known.verify(blocks[int(scheme is TALL)].items)
    verifier = Verifier(VerifierSettings(hash_schemes=(*SCHEMES, scheme), known_roots={0: blocks[0].root}))
    for block in blocks:
        assert verifier.verify(block.items).root == block.root
    assert verifier.chain.scheme == scheme.name
    spoilt = [*blocks[1].items]
    spoilt[1] += b"x"
    verifier.chain = ChainState.from_roots([])
    verifier.verify(blocks[0].items)
    with pytest.raises(VerificationFailed):
        verifier.verify(spoilt)


@pytest.mark.parametrize(
    "schemes",
    [(), (CURRENT, CURRENT), (CURRENT, HashScheme("x", HashRules(0, hashlib.sha256)))],
    ids=["none", "a name twice", "leaves that are not shared"],
)
def test_schemes_that_cannot_work_together(schemes: tuple[HashScheme, ...]) -> None:
    with pytest.raises(SettingsError, match="hash_schemes"):
        Verifier(VerifierSettings(hash_schemes=schemes))
