"""Checks record-file proofs (verification level L3) and state proofs (L4), and no other item of their block.

A record-file proof has RSA signatures over the record file in the block:

    message   = SHA-384(int32 big endian 6 | field 2 of the RecordFileItem, as it is serialized)
    signature = RSA, PKCS#1 v1.5, SHA-384 of the message: the digest is hashed once more

The record file can be most of a large block. So it is hashed piece by piece as it arrives, and never kept in memory.

A state proof leads from the root hash of a block to that of a later block. Its Merkle paths form a tree: each path
starts at a leaf or at the end of other paths, and leads upwards over its siblings. The last one ends at the root hash
of the later block. There are always five steps from the root hash of block N to that of block N+1: four in the top tree
(`merkle`), with 8 leaves as with 16, and one that adds the timestamp. So the number of steps shows which block the
proof leads to. The signature of a state proof is not checked here.
"""

from __future__ import annotations

from hashlib import sha384

from block_node.blocks.address_book import AddressBook
from block_node.blocks.chain import Claim
from block_node.blocks.errors import BlockFormatError, FailureKind, Level, VerificationFailed
from block_node.blocks.merkle import HashRules, RootCandidate, names_of
from block_node.blocks.proofs import FINAL_PATH, LeafKind, MerklePath, RecordFileProof, RecordSignature, StateProof
from block_node.blocks.protobuf import BYTES, read_varint

RECORD_VERSION = 6

CONTENTS_FIELD = 2
HEAD_BYTES_MAX = 20
"""The largest size of the tag and length of a field together: at most ten bytes each."""
STEPS_PER_BLOCK = 5
PATHS_MIN = 3


class RecordFileReader:
    """Computes the digest that the nodes sign, from the content of a `RecordFileItem` in pieces of any size.

    Invariant: `_left` is the number of bytes of the current field that have not arrived. `_head` has the incomplete tag
    and length of the next field.
    """

    def __init__(self) -> None:
        self._hash = sha384(RECORD_VERSION.to_bytes(4, "big"))
        self._head = b""
        self._left = 0
        self._hashing = False
        self._found = False

    def feed(self, piece: bytes | memoryview) -> None:
        """Processes the next piece. Raises BlockFormatError."""
        view = memoryview(piece)
        while view:
            # The content of the current field comes first.
            if self._left:
                taken = view[: self._left]
                if self._hashing:
                    self._hash.update(taken)
                self._left -= len(taken)
                view = view[len(taken) :]
                continue
            # A tag or a length may be cut by the end of the piece.
            before = len(self._head)
            self._head += bytes(view[: HEAD_BYTES_MAX - before])
            used = self._maybe_begin_field()
            if used is None:
                return
            self._head = b""
            view = view[used - before :]

    def digest(self) -> bytes | None:
        """Returns the digest that the nodes sign, or None if the item has no record file. Raises BlockFormatError."""
        if self._left or self._head:
            raise BlockFormatError("the record file item is cut short")
        return self._hash.digest() if self._found else None

    def _maybe_begin_field(self) -> int | None:
        # The last byte of a number is below 0x80.
        if sum(byte < 0x80 for byte in self._head) < 2:
            if len(self._head) >= HEAD_BYTES_MAX:
                raise BlockFormatError("a field of the record file item has no length")
            return None
        tag, used = read_varint(self._head, 0)
        if tag & 7 != BYTES or not tag >> 3:
            raise BlockFormatError(f"a record file item has no field with tag {tag}")
        self._left, used = read_varint(self._head, used)
        self._hashing = tag >> 3 == CONTENTS_FIELD
        if self._hashing and self._found:
            raise BlockFormatError("the record file item has two record files")
        self._found = self._found or self._hashing
        return used


def check_record_proof(
    number: int,
    proof: RecordFileProof,
    digest: bytes | None,
    book: AddressBook | None,
    *,
    signatures_min: int,
    skip_unknown: bool,
) -> None:
    """Checks a record-file proof. digest: None if the block has no record file. book: None if no address book is valid
    for it.

    At least `signatures_min` nodes must have signed, and every checked signature must be valid. As in the reference
    block node, signatures with only zero bytes are ignored. With `skip_unknown`, signatures of unknown nodes are
    ignored, too. Raises VerificationFailed.
    """
    if proof.version != RECORD_VERSION:
        reason = f"record file version {proof.version} is not supported, only {RECORD_VERSION}"
        raise _failed(number, FailureKind.UNSUPPORTED_STREAM_FORMAT, reason)
    if digest is None:
        raise _failed(number, FailureKind.MISSING_MANDATORY_ITEM, "it has a record-file proof and no record file")
    if book is None:
        raise _failed(number, FailureKind.MISSING_VERIFICATION_DATA, "there is no address book for it")
    # The address book has loaded cryptography already, so this import costs nothing.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA384

    valid: set[RecordSignature] = set()
    for each in proof.signatures:
        # An identical signature is checked only once, so that a publisher cannot waste time with copies.
        if each in valid or not any(each.signature):
            continue
        key = book.find_key(each.node_id)
        if key is None and skip_unknown:
            continue
        if key is None:
            reason = f"node {each.node_id} signed it, and is not in the address book"
            raise _failed(number, FailureKind.MISSING_VERIFICATION_DATA, reason)
        try:
            key.verify(each.signature, digest, PKCS1v15(), SHA384())
        except InvalidSignature as error:
            reason = f"the signature of node {each.node_id} is not one over its record file"
            raise _failed(number, FailureKind.BAD_BLOCK_PROOF, reason) from error
        valid.add(each)
    # A node counts once, even if it signed twice.
    signers = len({each.node_id for each in valid})
    if signers < signatures_min:
        reason = f"{signers} nodes signed its record file, {signatures_min} must"
        raise _failed(number, FailureKind.BAD_BLOCK_PROOF, reason)


def _failed(number: int, kind: FailureKind, reason: str) -> VerificationFailed:
    return VerificationFailed(kind, Level.RECORD_PROOF, number, reason)


class _BadPaths(Exception):
    """The error of a state proof whose paths do not form a valid tree."""


def check_state_proof(
    number: int, roots: tuple[RootCandidate, ...], rules: HashRules, proof: StateProof
) -> tuple[RootCandidate, Claim]:
    """Returns the root hash at which the proof starts, and its claim about a later block. Raises VerificationFailed."""
    if len(proof.paths) < PATHS_MIN:
        raise _bad_state_proof(number, f"a state proof has {PATHS_MIN} paths or more, this one has {len(proof.paths)}")
    if not proof.signature:
        kind = FailureKind.MISSING_MANDATORY_FIELD
        raise VerificationFailed(kind, Level.STATE_PROOF, number, "its state proof has no signature")
    # The proof starts at the root hash of this block, and so decides between the possible root hashes.
    own = [index for index, path in enumerate(proof.paths) if path.leaf_kind is LeafKind.HASH]
    if len(own) != 1:
        raise _bad_state_proof(number, f"its state proof starts at {len(own)} roots, not at one")
    start = proof.paths[own[0]].leaf
    root = next((each for each in roots if each.root == start), None)
    if root is None:
        raise _bad_state_proof(
            number, f"its state proof starts at {start.hex()}, not at its root, which is {names_of(roots)}"
        )
    try:
        resolved = _resolve(proof.paths, rules)
        steps = _steps(proof.paths, own[0])
    except _BadPaths as error:
        raise _bad_state_proof(number, f"its state proof: {error}") from error
    if not steps or steps % STEPS_PER_BLOCK:
        raise _bad_state_proof(number, f"its state proof has {steps} steps, which lead to no block's root")
    return root, Claim(number, number + steps // STEPS_PER_BLOCK, resolved)


def _resolve(paths: tuple[MerklePath, ...], rules: HashRules) -> bytes:
    """Returns the root hash at which the paths end. The end of a path is the root of the tree, or the beginning of a
    path that stands later in the list, so one pass is enough. Raises _BadPaths if the paths do not form a tree."""
    arrived: list[list[bytes]] = [[] for _ in paths]
    for index, path in enumerate(paths):
        value = _start(index, path, arrived[index], rules)
        for sibling in path.siblings:
            if not sibling.hash and not sibling.is_left:
                value = rules.one_child_hash(value)
            elif len(sibling.hash) != rules.size:
                raise _BadPaths(f"a sibling of path {index} has {len(sibling.hash)} bytes, not {rules.size}")
            else:
                node = (sibling.hash, value) if sibling.is_left else (value, sibling.hash)
                value = rules.node_hash(*node)
        if path.next_index == FINAL_PATH:
            if index != len(paths) - 1:
                raise _BadPaths(f"path {index} is the end, and {len(paths)} are there")
            return value
        if not index < path.next_index < len(paths):
            raise _BadPaths(f"path {index} goes on at path {path.next_index} of {len(paths)}")
        arrived[path.next_index].append(value)
    raise _BadPaths("no path is the end")


def _start(index: int, path: MerklePath, arrived: list[bytes], rules: HashRules) -> bytes:
    if path.leaf_kind is LeafKind.JOIN:
        if not 1 <= len(arrived) <= 2:
            raise _BadPaths(f"{len(arrived)} paths meet in path {index}")
        return rules.node_hash(*arrived) if len(arrived) == 2 else rules.one_child_hash(arrived[0])
    if arrived:
        raise _BadPaths(f"paths meet in path {index}, which has a leaf of its own")
    if path.leaf_kind is not LeafKind.HASH:
        return rules.leaf_hash(path.leaf)
    return path.leaf


def _steps(paths: tuple[MerklePath, ...], index: int) -> int:
    """Returns the number of levels from the leaf of path `index` to the root. `_resolve` must have accepted `paths`."""
    steps = len(paths[index].siblings)
    while (index := paths[index].next_index) != FINAL_PATH:
        steps += 1 + len(paths[index].siblings)
    return steps


def _bad_state_proof(number: int, reason: str) -> VerificationFailed:
    return VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, number, reason)
