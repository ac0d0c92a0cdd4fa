"""Parses block proofs strictly, and serializes record-file proofs. It does not check whether a proof is valid.

The root hash of a block does not cover the proofs. So every field must be known and in its shortest form, and every
field that is not a list occurs at most once. A proof of an unknown kind is accepted without parsing its content.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import Item, ItemKind, item_content, make_item
from block_node.blocks.protobuf import (
    Value,
    bytes_field,
    bytes_value,
    number_field,
    number_value,
    read_fields,
    read_fields_once,
)

FINAL_PATH = 0xFFFF_FFFF


class ProofKind(IntEnum):
    """The kinds of block proofs: the field numbers in `BlockProof`. UNRECOGNIZED stands for kinds of later versions."""

    UNRECOGNIZED = 0
    TSS = 2
    STATE_PROOF = 3
    RECORD_FILE = 4


class TssProof(msgspec.Struct, frozen=True):
    signature: bytes


class Sibling(msgspec.Struct, frozen=True):
    """The hash that a path combines with its own hash. Without a sibling, it is empty and `is_left` is False."""

    is_left: bool
    hash: bytes


class LeafKind(IntEnum):
    """The kinds of values at which a path starts. JOIN: the path has no leaf, and starts where other paths end."""

    JOIN = 0
    HASH = 3
    STATE_ITEM = 4
    BLOCK_ITEM = 5
    TIMESTAMP = 6


class MerklePath(msgspec.Struct, frozen=True):
    """A path of a state proof. It leads upwards in a Merkle tree, to the start of path `next_index`, or to the root if
    `next_index` is `FINAL_PATH`."""

    siblings: tuple[Sibling, ...]
    next_index: int
    leaf_kind: LeafKind
    leaf: bytes


class StateProof(msgspec.Struct, frozen=True):
    """A proof that leads from the root hash of this block to that of a later block, which the signature covers."""

    paths: tuple[MerklePath, ...]
    signature: bytes | None


class RecordSignature(msgspec.Struct, frozen=True):
    node_id: int
    signature: bytes


class RecordFileProof(msgspec.Struct, frozen=True):
    version: int
    signatures: tuple[RecordSignature, ...]


class BlockProof(msgspec.Struct, frozen=True):
    number: int
    kind: ProofKind
    content: TssProof | StateProof | RecordFileProof | None


def read_proof(item: Item) -> BlockProof:
    """Parses a proof item. Raises BlockFormatError if it is not in strict form."""
    # Besides the number, a proof has exactly one alternative, whose field number is its kind.
    number = 0
    found: list[tuple[int, int, Value]] = []
    for field, wire, value in read_fields_once(item_content(item), "the proof"):
        if field == 1:
            number = number_value(wire, value, "block")
        else:
            found.append((field, wire, value))
    if len(found) != 1:
        raise BlockFormatError(f"a proof has one of its alternatives, this one has {len(found)}")
    field, wire, value = found[0]
    if field == ProofKind.TSS:
        return BlockProof(number, ProofKind.TSS, TssProof(_read_tss(bytes_value(wire, value, "signed_block_proof"))))
    if field == ProofKind.STATE_PROOF:
        state_proof = _read_state_proof(bytes_value(wire, value, "block_state_proof"))
        return BlockProof(number, ProofKind.STATE_PROOF, state_proof)
    if field == ProofKind.RECORD_FILE:
        record_proof = _read_record_proof(bytes_value(wire, value, "signed_record_file_proof"))
        return BlockProof(number, ProofKind.RECORD_FILE, record_proof)
    return BlockProof(number, ProofKind.UNRECOGNIZED, None)


def make_record_proof(number: int, proof: RecordFileProof) -> Item:
    content = number_field(1, proof.version)
    for each in proof.signatures:
        content += bytes_field(2, bytes_field(1, each.signature) + number_field(2, each.node_id))
    return make_item(ItemKind.PROOF, number_field(1, number) + bytes_field(ProofKind.RECORD_FILE, content))


def _read_tss(data: memoryview) -> bytes:
    signature = b""
    for field, wire, value in read_fields_once(data, "the signed block proof"):
        if field != 1:
            raise BlockFormatError(f"a signed block proof has no field {field}")
        signature = bytes(bytes_value(wire, value, "block_signature"))
    return signature


def _read_state_proof(data: memoryview) -> StateProof:
    paths = []
    signature = None
    for field, wire, value in read_fields(data):
        content = bytes_value(wire, value, f"field {field} of a state proof")
        if field == 1:
            paths.append(_read_path(content))
        elif field == 2 and signature is None:
            signature = _read_tss(content)
        else:
            raise BlockFormatError(f"a state proof has no second field {field}")
    return StateProof(tuple(paths), signature)


def _read_path(data: memoryview) -> MerklePath:
    siblings = []
    next_index: int | None = None
    leaf: tuple[LeafKind, bytes] | None = None
    for field, wire, value in read_fields(data):
        if field == 1:
            siblings.append(_read_sibling(bytes_value(wire, value, "a sibling")))
        elif field == 2 and next_index is None:
            next_index = number_value(wire, value, "next_path_index")
            if next_index > FINAL_PATH:
                raise BlockFormatError("next_path_index has more than 32 bits")
        elif 3 <= field <= 6 and leaf is None:
            leaf = LeafKind(field), bytes(bytes_value(wire, value, "a leaf"))
        else:
            raise BlockFormatError(f"a path has no field {field}, or not twice")
    kind, content = leaf or (LeafKind.JOIN, b"")
    return MerklePath(tuple(siblings), next_index or 0, kind, content)


def _read_sibling(data: memoryview) -> Sibling:
    is_left, hash_ = 0, b""
    for field, wire, value in read_fields_once(data, "a sibling"):
        if field == 1:
            is_left = number_value(wire, value, "is_left")
        elif field == 2:
            hash_ = bytes(bytes_value(wire, value, "hash"))
        else:
            raise BlockFormatError(f"a sibling has no field {field}")
    if is_left > 1:
        raise BlockFormatError(f"is_left is {is_left}, not 0 or 1")
    return Sibling(bool(is_left), hash_)


def _read_record_proof(data: memoryview) -> RecordFileProof:
    version: int | None = None
    signatures = []
    for field, wire, value in read_fields(data):
        if field == 1 and version is None:
            version = number_value(wire, value, "version")
        elif field == 2:
            signatures.append(_read_signature(bytes_value(wire, value, "a record file signature")))
        else:
            raise BlockFormatError(f"a record file proof has no field {field}, or not twice")
    return RecordFileProof(version or 0, tuple(signatures))


def _read_signature(data: memoryview) -> RecordSignature:
    signature, node_id = b"", 0
    for field, wire, value in read_fields_once(data, "a record file signature"):
        if field == 1:
            signature = bytes(bytes_value(wire, value, "signatures_bytes"))
        elif field == 2:
            node_id = number_value(wire, value, "node_id")
        else:
            raise BlockFormatError(f"a record file signature has no field {field}")
    return RecordSignature(node_id, signature)
