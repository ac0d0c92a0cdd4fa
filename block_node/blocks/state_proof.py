"""Checks state proofs (verification level L4), which lead from the root hash of a block to that of a later block.

The signature is not checked here. The Merkle paths form a tree. Each path starts at a leaf or at the end of other
paths, and leads upwards over its siblings. The last one ends at the root hash of the later block. There are always five
steps from the root hash of block N to that of block N+1: four in the top tree (`merkle`), with 8 leaves as with 16, and
one that adds the timestamp. So the number of steps shows which block the proof leads to.
"""

from __future__ import annotations

from block_node.blocks.chain import Claim
from block_node.blocks.errors import FailureKind, Level, VerificationFailed
from block_node.blocks.hash_scheme import HashRules, RootCandidate, names_of
from block_node.blocks.proofs import FINAL_PATH, LeafKind, MerklePath, StateProof

STEPS_PER_BLOCK = 5
PATHS_MIN = 3


class _BadPaths(Exception):
    """A state proof whose paths do not form a valid tree."""


def check_state_proof(
    number: int, roots: tuple[RootCandidate, ...], rules: HashRules, proof: StateProof
) -> tuple[RootCandidate, Claim]:
    """Returns the root hash at which the proof starts, and its claim about a later block. Raises VerificationFailed."""
    if len(proof.paths) < PATHS_MIN:
        raise _failed(number, f"a state proof has {PATHS_MIN} paths or more, this one has {len(proof.paths)}")
    if not proof.signature:
        kind = FailureKind.MISSING_MANDATORY_FIELD
        raise VerificationFailed(kind, Level.STATE_PROOF, number, "its state proof has no signature")
    # The proof starts at the root hash of this block, and so decides between the possible root hashes.
    own = [index for index, path in enumerate(proof.paths) if path.leaf_kind is LeafKind.HASH]
    if len(own) != 1:
        raise _failed(number, f"its state proof starts at {len(own)} roots, not at one")
    start = proof.paths[own[0]].leaf
    root = next((each for each in roots if each.root == start), None)
    if root is None:
        raise _failed(number, f"its state proof starts at {start.hex()}, not at its root, which is {names_of(roots)}")
    try:
        resolved = _resolve(proof.paths, rules)
        steps = _steps(proof.paths, own[0])
    except _BadPaths as error:
        raise _failed(number, f"its state proof: {error}") from error
    if not steps or steps % STEPS_PER_BLOCK:
        raise _failed(number, f"its state proof has {steps} steps, which lead to no block's root")
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


def _failed(number: int, reason: str) -> VerificationFailed:
    return VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, number, reason)
