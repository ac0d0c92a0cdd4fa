"""The protobuf wire format and the items that are looked into: written, read, and refused when they are irregular."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import (
    BlockFooter,
    ItemKind,
    item_content,
    item_kind,
    make_footer,
    make_header,
    make_item,
    read_footer,
    read_header,
    split_block,
)
from block_node.blocks.proofs import (
    BlockProof,
    ProofKind,
    RecordFileProof,
    RecordSignature,
    make_record_proof,
    read_proof,
)
from block_node.blocks.protobuf import bytes_field, number_field, read_fields, read_varint, varint
from tests.support.blocks import join_block

ROOT = bytes(range(48))


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_numbers_are_read_as_they_were_written(value: int, behind: bytes) -> None:
    """Goal: every number up to 64 bits. Method: write, read, with other bytes behind."""
    written = varint(value)
    assert read_varint(written + behind, 0) == (value, len(written))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "cut short"),
        ("80", "cut short"),
        ("ffffffffffffffffff", "cut short"),
        ("8000", "longer than it needs"),
        ("ff8000", "longer than it needs"),
        ("ffffffffffffffffff02", "more than 64 bits"),
        ("8080808080808080808001", "more than 64 bits"),
    ],
)
def test_irregular_numbers_are_refused(data: str, reason: str) -> None:
    """Goal: one form for each number. Method: cut, padded and oversized ones."""
    with pytest.raises(BlockFormatError, match=reason):
        read_varint(bytes.fromhex(data), 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("00", "no field number"),
        ("0b", "wire type 3"),
        ("0c", "wire type 4"),
        ("0e", "wire type 6"),
        ("0a05aabb", "5 bytes long, 2 are there"),
        ("0a", "cut short"),
        ("09aabb", "8 bytes long, 2 are there"),
    ],
)
def test_irregular_fields_are_refused(data: str, reason: str) -> None:
    """Goal: what no serializer writes is an error with a place. Method: one of each kind."""
    with pytest.raises(BlockFormatError, match=reason):
        list(read_fields(bytes.fromhex(data)))


def test_all_wire_types_are_read() -> None:
    """Goal: fields of later versions can be passed over. Method: one of each wire type in use."""
    data = number_field(1, 300) + bytes_field(2, b"ab") + b"\x19" + bytes(range(8)) + b"\x25\x01\x00\x00\x00"
    values = [
        (field, bytes(value) if isinstance(value, memoryview) else value) for field, _, value in read_fields(data)
    ]
    assert values == [(1, 300), (2, b"ab"), (3, int.from_bytes(bytes(range(8)), "little")), (4, 1)]


@given(st.lists(st.tuples(st.integers(1, 40), st.binary(max_size=300)), max_size=20))
def test_items_are_cut_as_they_were_joined(parts: list[tuple[int, bytes]]) -> None:
    """Goal: a block is its items, whatever kinds they are of. Method: make, join, cut."""
    items = [make_item(kind, content) for kind, content in parts]
    assert list(split_block(join_block(items))) == items
    assert [(item_kind(item), bytes(item_content(item))) for item in items] == parts


@given(
    st.integers(0, 2**64 - 1),
    st.tuples(st.integers(0, 99), st.integers(0, 2**31 - 1), st.integers(0, 9)),
    st.integers(0, 2**40),
    st.integers(0, 999_999_999),
)
def test_headers_are_read_as_they_were_made(
    number: int, version: tuple[int, int, int], seconds: int, nanos: int
) -> None:
    """Goal: number, version and timestamp. Method: make and read; the timestamp stays as it is serialized."""
    header = read_header(make_header(number, version, seconds, nanos))
    assert (header.number, header.hapi_version) == (number, version)
    assert header.timestamp == number_field(1, seconds) + number_field(2, nanos)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (number_field(3, 1) * 2, "field 3 twice"),
        (bytes_field(3, b""), "number is not a number"),
        (number_field(1, 1), "hapi_proto_version is not a field with a length"),
        (bytes_field(5, b""), "hash_algorithm is not a number"),
        (number_field(4, 5), "block_timestamp is not a field with a length"),
        (bytes_field(1, bytes_field(2, b"")), "hapi_proto_version is not a number"),
        (b"\x18", "cut short"),
    ],
)
def test_irregular_headers_are_refused(content: bytes, reason: str) -> None:
    """Goal: a header is known or refused. Method: one fault of each kind."""
    with pytest.raises(BlockFormatError, match=reason):
        read_header(make_item(ItemKind.HEADER, content))


def test_a_header_of_a_later_version_is_read() -> None:
    """Goal: new fields do no harm, since the root covers them. Method: one unknown field at the end."""
    header = make_header(7, (0, 99, 0), 5, 0)
    later = make_item(ItemKind.HEADER, bytes(item_content(header)) + bytes_field(15, b"new"))
    assert read_header(later) == read_header(header)


def test_footers_are_read_as_they_were_made() -> None:
    """Goal: the three roots. Method: make and read, one of them empty."""
    footer = BlockFooter(ROOT, ROOT[::-1], b"")
    assert read_footer(make_footer(footer)) == footer
    with pytest.raises(BlockFormatError, match="no field 4"):
        read_footer(make_item(ItemKind.FOOTER, bytes_field(4, ROOT)))
    with pytest.raises(BlockFormatError, match="field 1 twice"):
        read_footer(make_item(ItemKind.FOOTER, bytes_field(1, ROOT) * 2))


@given(st.lists(st.builds(RecordSignature, st.integers(0, 2**64 - 1), st.binary(max_size=400)), max_size=4))
def test_record_proofs_are_read_as_they_were_made(signatures: list[RecordSignature]) -> None:
    """Goal: version, node and signature. Method: make and read."""
    proof = RecordFileProof(6, tuple(signatures))
    assert read_proof(make_record_proof(9, proof)) == BlockProof(9, ProofKind.RECORD_FILE, proof)


def record(*fields: bytes) -> bytes:
    return bytes_field(ProofKind.RECORD_FILE, b"".join(fields))


def state(*fields: bytes) -> bytes:
    return bytes_field(ProofKind.STATE_PROOF, b"".join(fields))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "this one has 0"),
        (record() + state(), "this one has 2"),
        (record() * 2, "field 4 twice"),
        (number_field(4, 1), "signed_record_file_proof is not a field with a length"),
        (record(bytes_field(3, b"")), "no field 3"),
        (record(number_field(1, 6) * 2), "no field 1, or not twice"),
        (record(bytes_field(2, bytes_field(3, b""))), "signature has no field 3"),
        (record(bytes_field(2, number_field(2, 1) * 2)), "field 2 twice"),
        (bytes_field(ProofKind.TSS, bytes_field(2, b"")), "no field 2"),
        (state(bytes_field(3, b"")), "no second field 3"),
        (state(bytes_field(2, b"") * 2), "no second field 2"),
        (state(bytes_field(1, bytes_field(7, b""))), "path has no field 7"),
        (state(bytes_field(1, bytes_field(3, ROOT) + bytes_field(6, b""))), "path has no field 6, or not twice"),
        (state(bytes_field(1, number_field(2, 1 << 32))), "more than 32 bits"),
        (state(bytes_field(1, bytes_field(1, number_field(1, 2)))), "is_left is 2"),
        (state(bytes_field(1, bytes_field(1, number_field(3, 2)))), "sibling has no field 3"),
    ],
)
def test_irregular_proofs_are_refused(content: bytes, reason: str) -> None:
    """Goal: a proof has no byte that is passed over, since no root covers it. Method: one fault of each kind."""
    with pytest.raises(BlockFormatError, match=reason):
        read_proof(make_item(ItemKind.PROOF, content))


def test_a_proof_of_a_later_kind_is_left_as_it_is() -> None:
    """Goal: a new kind of proof is no parse error. Method: an unknown alternative."""
    proof = read_proof(make_item(ItemKind.PROOF, number_field(1, 3) + bytes_field(5, b"new")))
    assert (proof.number, proof.kind) == (3, ProofKind.UNRECOGNIZED)
