"""What a block must be like before anything is proven (L0), and items that come in pieces."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.errors import FailureKind, Level, SettingsError, VerificationFailed
from block_node.blocks.generator import BlockShape, ChainGenerator
from block_node.blocks.items import BlockFooter, Item, ItemKind, make_footer, make_header, make_item
from block_node.blocks.merkle import SHA384
from block_node.blocks.protobuf import bytes_field, number_field
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import BlockVerification, Verifier
from tests.support.blocks import own_verifier, signing_keys

ROOT = bytes(SHA384.size)


def good_block(shape: BlockShape | None = None) -> list[Item]:
    return list(ChainGenerator(signing_keys(), shape=shape).next_block().items)


def failure_of(
    items: list[Item], number: int | None = 0, settings: VerifierSettings | None = None
) -> VerificationFailed:
    with pytest.raises(VerificationFailed) as failure:
        Verifier(settings).verify(items, number)
    return failure.value


Change = Callable[[list[Item]], list[Item]]

# The good block: header, round header, event header, transaction, result, output, state changes, record file, footer,
# proof.
CHANGES: dict[str, tuple[Change, FailureKind, str]] = {
    "no items": (lambda b: [], FailureKind.MISSING_MANDATORY_ITEM, "no header"),
    "no header": (lambda b: b[1:], FailureKind.MISSING_MANDATORY_ITEM, "begins with an item 3"),
    "footer first": (lambda b: b[-2:], FailureKind.MISSING_MANDATORY_ITEM, "does not begin with a header"),
    "no footer": (lambda b: b[:-2], FailureKind.MISSING_MANDATORY_ITEM, "no footer"),
    "no proof": (lambda b: b[:-1], FailureKind.MISSING_MANDATORY_ITEM, "no proof"),
    "proof before footer": (lambda b: [*b[:-2], b[-1], b[-2]], FailureKind.MISSING_MANDATORY_ITEM, "before the footer"),
    "two headers": (lambda b: [b[0], *b], FailureKind.BAD_STRUCTURE, "two headers"),
    "header late": (lambda b: [*b, b[0]], FailureKind.BAD_STRUCTURE, "two headers"),
    "two footers": (lambda b: [*b[:-1], b[-2], b[-1]], FailureKind.BAD_STRUCTURE, "two footers"),
    "two record files": (lambda b: [*b[:-2], b[-3], *b[-2:]], FailureKind.BAD_STRUCTURE, "two record files"),
    "item after footer": (lambda b: [*b[:-1], b[1], b[-1]], FailureKind.BAD_STRUCTURE, "item 3 follows the footer"),
    "item after proof": (lambda b: [*b, b[3]], FailureKind.BAD_STRUCTURE, "item 4 follows the footer"),
    "too many proofs": (lambda b: [*b, *[b[-1]] * 16], FailureKind.LIMIT_EXCEEDED, "more than 16 proofs"),
    "empty item": (lambda b: [b[0], b"", *b[1:]], FailureKind.UNABLE_TO_PARSE, "cut short"),
    "item of one byte": (lambda b: [b[0], b"\x12", *b[1:]], FailureKind.UNABLE_TO_PARSE, "cut short"),
    "no field": (lambda b: [b[0], b"\x08\x01", *b[1:]], FailureKind.UNABLE_TO_PARSE, "does not start with tag 8"),
    "byte too few": (lambda b: [*b[:3], b[3][:-1], *b[4:]], FailureKind.UNABLE_TO_PARSE, "lacks 1"),
    "byte too many": (lambda b: [*b[:3], b[3] + b"x", *b[4:]], FailureKind.UNABLE_TO_PARSE, "1 bytes follow"),
    "two fields": (lambda b: [*b[:3], b[3] + b[4], *b[5:]], FailureKind.UNABLE_TO_PARSE, "bytes follow"),
    "header of two fields": (lambda b: [b[0] + b[1], *b[1:]], FailureKind.UNABLE_TO_PARSE, "this one has 2"),
    "filtered item": (lambda b: [b[0], make_item(8, b"x"), *b[1:]], FailureKind.UNSUPPORTED_ITEM_TYPE, "items 8"),
    "redacted item": (lambda b: [b[0], make_item(19, b"x"), *b[1:]], FailureKind.UNSUPPORTED_ITEM_TYPE, "items 19"),
    "item 13": (lambda b: [b[0], make_item(13, b"x"), *b[1:]], FailureKind.UNSUPPORTED_ITEM_TYPE, "items 13"),
    "item 21": (lambda b: [b[0], make_item(21, b"x"), *b[1:]], FailureKind.UNSUPPORTED_ITEM_TYPE, "items 21"),
    "header cut": (lambda b: [make_item(1, b"\x1a"), *b[1:]], FailureKind.UNABLE_TO_PARSE, "cut short"),
    "no timestamp": (
        lambda b: [make_item(1, bytes_field(1, number_field(2, 78))), *b[1:]],
        FailureKind.MISSING_MANDATORY_FIELD,
        "no timestamp",
    ),
    "unknown hash algorithm": (
        lambda b: [make_header(0, (0, 78, 0), 1, 0, 1), *b[1:]],
        FailureKind.UNSUPPORTED_STREAM_FORMAT,
        "hash algorithm 1, which is not known",
    ),
    "foreign number": (lambda b: [make_header(1, (0, 78, 0), 1, 0), *b[1:]], FailureKind.BAD_STRUCTURE, "says 1"),
    "proof of another block": (
        lambda b: [*b[:-1], make_item(9, number_field(1, 1) + bytes_field(4, b""))],
        FailureKind.BAD_BLOCK_PROOF,
        "proof of block 1",
    ),
    "proof of nothing": (lambda b: [*b[:-1], make_item(9, b"")], FailureKind.UNABLE_TO_PARSE, "alternatives"),
    "no previous root": (
        lambda b: [*b[:-2], make_footer(BlockFooter(b"", ROOT, ROOT)), b[-1]],
        FailureKind.MISSING_MANDATORY_FIELD,
        "no previous root",
    ),
    "no all-blocks root": (
        lambda b: [*b[:-2], make_footer(BlockFooter(ROOT, b"", ROOT)), b[-1]],
        FailureKind.MISSING_MANDATORY_FIELD,
        "no all-blocks root",
    ),
    "short root": (
        lambda b: [*b[:-2], make_footer(BlockFooter(ROOT, ROOT, ROOT[:-1])), b[-1]],
        FailureKind.UNABLE_TO_PARSE,
        "has 47 bytes",
    ),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_block_that_is_not_in_order_is_refused(name: str) -> None:
    """Goal: every rule of structure has its failure. Method: one change each to a block that passes."""
    change, kind, reason = CHANGES[name]
    failure = failure_of(change(good_block()))
    assert (failure.kind, failure.level) == (kind, Level.STRUCTURE)
    assert reason in failure.reason


def test_the_unchanged_block_passes() -> None:
    """Goal: the changes are what fails above. Method: the block they start from."""
    result = own_verifier().verify(good_block(), 0)
    assert (result.number, result.item_count) == (0, 10)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (VerifierSettings(items_max=9), "more than 9 items"),
        (VerifierSettings(block_bytes_max=1000), "more than 1000 bytes"),
        (VerifierSettings(small_item_bytes_max=100), "item 12 is larger than 100"),
    ],
)
def test_limits_are_kept_before_anything_is_done(settings: VerifierSettings, reason: str) -> None:
    """Goal: a block over the limits is refused, whole or in pieces. Method: limits below what the block has."""
    failure = failure_of(good_block(), settings=settings)
    assert (failure.kind, reason in failure.reason) == (FailureKind.LIMIT_EXCEEDED, True)


def test_a_failure_stays() -> None:
    """Goal: a block that failed cannot be gone on with. Method: every call after a failure raises that failure; the
    verifier itself goes on."""
    verifier, block = own_verifier(), good_block()
    begun = verifier.begin_block(0)
    begun.add(block[:2])
    with pytest.raises(VerificationFailed) as first:
        begun.add([b""])
    for call in (lambda: begun.add(block[2:]), lambda: begun.add_part(b"", last=True), begun.end):
        with pytest.raises(VerificationFailed) as again:
            call()
        assert again.value is first.value
    assert verifier.verify(block).number == 0


def test_the_number_is_taken_from_the_header_where_none_was_announced() -> None:
    """Goal: a reader of files need not know the number. Method: the property before and after the header."""
    begun = own_verifier().begin_block()
    before = begun.number
    begun.add(good_block())
    assert (before, begun.number, begun.item_count, begun.end().number) == (None, 0, 10, 0)


def feed_parts(begun: BlockVerification, items: list[Item], sizes: Callable[[], int]) -> None:
    """Each item in parts, or whole where the first part is all of it."""
    for item in items:
        at = 0
        while True:
            size = max(1, sizes())
            begun.add_part(item[at : at + size], last=at + size >= len(item))
            at += size
            if at >= len(item):
                break


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_parts_of_any_size_give_the_same_result(seed: int, part_max: int) -> None:
    """Goal: it does not matter how items come. Method: the same block in parts of random sizes."""
    block, random = good_block(), Random(seed)
    verifier = own_verifier()
    begun = verifier.begin_block(0)
    feed_parts(begun, block, lambda: random.randint(1, part_max))
    assert begun.end() == own_verifier().verify(block)


@pytest.mark.parametrize("part", [1, 5000, 65_536, 65_537, 100_000, 1 << 20])
@pytest.mark.parametrize("shape", [BlockShape(item_count=6, item_bytes=200_000), BlockShape(record_bytes=200_000)])
def test_large_items_in_parts_are_proven_too(part: int, shape: BlockShape) -> None:
    """Goal: items above what is held come out the same, record files with their signatures. Method: large items in
    parts around the bound; parts of one byte at the end of an item only, since they are slow."""
    block = good_block(shape)
    begun = own_verifier().begin_block(0)
    if part == 1:
        for item in block:
            begun.add_part(item[:-3], last=False)
            for at in range(-3, -1):
                begun.add_part(item[at : at + 1], last=False)
            begun.add_part(item[-1:], last=True)
    else:
        feed_parts(begun, block, lambda: part)
    assert begun.end() == own_verifier().verify(block)


@pytest.mark.parametrize("size", [100, 200_000])
def test_parts_that_make_no_item_are_refused(size: int) -> None:
    """Goal: an item in parts must be what it says. Method: too short, too long, not finished, another one in between,
    the end in between; below and above what is held."""
    item = make_item(ItemKind.TRACE_DATA, bytes(size))

    def attempt(*calls: Callable[[BlockVerification], object]) -> VerificationFailed:
        begun = own_verifier().begin_block(0)
        begun.add(good_block()[:1])
        for call in calls[:-1]:
            call(begun)
        with pytest.raises(VerificationFailed) as failure:
            calls[-1](begun)
        return failure.value

    begin = item[: size - 20]
    for failure in (
        attempt(lambda b: b.add_part(begin, last=True)),
        attempt(lambda b: b.add_part(begin, last=False), lambda b: b.add_part(bytes(60), last=True)),
        attempt(lambda b: b.add_part(begin, last=False), lambda b: b.add([item])),
        attempt(lambda b: b.add_part(begin, last=False), lambda b: b.end()),
        attempt(lambda b: b.add_part(b"", last=True)),
    ):
        assert (failure.kind, failure.level) == (FailureKind.UNABLE_TO_PARSE, Level.STRUCTURE)


def test_parts_are_bounded() -> None:
    """Goal: nobody makes us hold much. Method: a proof without end, an item that says it is huge, more bytes than a
    block may have; each fails long before it is all there."""
    settings = VerifierSettings(small_item_bytes_max=100_000, item_bytes_max=1 << 20, block_bytes_max=3 << 20)

    def fed(item: bytes, count: int) -> str:
        begun = Verifier(settings).begin_block(0)
        begun.add(good_block()[:1])
        parts = [item, *[bytes(70_000)] * (count - 1)]
        for part in parts[:-1]:
            begun.add_part(part, last=False)
        with pytest.raises(VerificationFailed) as failure:
            begun.add_part(parts[-1], last=False)
        assert failure.value.kind is FailureKind.LIMIT_EXCEEDED
        return failure.value.reason

    large = make_item(ItemKind.PROOF, bytes(4_000_000))[:70_000]
    assert "item 9 is larger than 100000" in fed(large, 2)
    assert "item 11 is larger than 1048576" in fed(make_item(ItemKind.TRACE_DATA, bytes(4_000_000))[:70_000], 1)
    begun = Verifier(settings).begin_block(0)
    begun.add(good_block()[:1])
    third = [make_item(ItemKind.TRACE_DATA, bytes((1 << 20) - 4))]
    begun.add(third * 2)
    with pytest.raises(VerificationFailed, match="more than 3145728 bytes"):
        begun.add(third)


def test_items_that_are_in_no_tree_are_passed_over() -> None:
    """Goal: kinds of later versions that are not hashed do not change the root. Method: the same block with an
    item 20; an item 28 is in a tree, and changes it."""
    block = good_block()
    result = own_verifier().verify([block[0], make_item(20, b"later"), *block[1:]])
    assert result.root == own_verifier().verify(block).root
    extension = own_verifier().verify([block[0], make_item(28, b"later"), *block[1:]])
    assert extension.root != result.root


def test_without_the_root_only_structure_is_checked() -> None:
    """Goal: levels are switched. Method: L0 alone takes a block whose items were changed, and gives no root."""
    block = good_block()
    block[3] = make_item(ItemKind.SIGNED_TRANSACTION, b"changed")
    result = Verifier(VerifierSettings(levels=Level.STRUCTURE)).verify(block)
    assert (result.root, result.checked) == (b"", Level.STRUCTURE)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (VerifierSettings(levels=Level.MERKLE), "STRUCTURE cannot be switched off"),
        (VerifierSettings(levels=Level.STRUCTURE | Level.CHAIN), "need MERKLE"),
        (VerifierSettings(levels=Level.STRUCTURE | Level.RECORD_PROOF), "needs an address book"),
        (VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.TSS), "needs an external verifier"),
        (VerifierSettings(known_roots={3: b"short"}), "the root of block 3 has 5 bytes"),
        (VerifierSettings(signatures_min=0), "signatures_min: must be at least 1"),
        (VerifierSettings(proofs_max=0), "proofs_max must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: VerifierSettings, reason: str) -> None:
    """Goal: a configuration that would check nothing is no configuration. Method: one contradiction each."""
    with pytest.raises(SettingsError, match=reason):
        Verifier(settings)


def test_known_roots_are_compared() -> None:
    """Goal: the operator's root decides. Method: the true root, and another one."""
    block = good_block()
    root = own_verifier().verify(block).root
    assert Verifier(VerifierSettings(known_roots={0: root})).verify(block).root == root
    failure = failure_of(block, settings=VerifierSettings(known_roots={0: ROOT}))
    assert (failure.kind, failure.level) == (FailureKind.BAD_ROOT, Level.MERKLE)
