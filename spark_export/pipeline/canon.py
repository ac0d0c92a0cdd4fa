"""Finds the canonical chain in a set of complete blocks, by hashes, parents, numbers and weights.

The result equals that of `cardinal_streams.ChainOrder` without a limit for the depth of reorgs, and does not depend on
the order of the blocks. At each fork, the branch with the heaviest block wins; of equally heavy branches, the branch
whose heaviest block was stored first.

Blocks that descend from the same root form a component. The canonical chain is in the component of the start block, if
one is given. Otherwise it is in the component of a genesis block, whose parent hash is all zeros; without a genesis
block, in the component with the most blocks. Blocks that would connect the other components to the chain are missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

CANONICAL: Final = "canonical"
"""The block is on the canonical chain."""
REORGED: Final = "reorged"
"""The block is not on the canonical chain: another branch won, or its number is not greater than the number of its
parent."""
WAITING: Final = "waiting"
"""The block is not connected to the canonical chain, and can join it when missing blocks arrive."""
INCOMPLETE: Final = "incomplete"
"""Messages of the block are missing. The search for the canonical chain ignores it."""
ZERO_HASH: Final = bytes(32)
WINDOW: Final = 4096
"""A settled block (`mark_descendants`) is at least this many block numbers below the newest canonical block."""


@dataclass(frozen=True, slots=True)
class BlockLink:
    """The position of a complete block in the tree of blocks. weight: the weight of the chain up to this block."""

    hash: bytes
    parent: bytes
    number: int
    weight: int
    stored_us: int = 0


@dataclass(frozen=True, slots=True)
class CanonState:
    """The state of a block: CANONICAL, REORGED or WAITING.

    fork_number: the number of the latest canonical ancestor of a reorged block, if known.
    """

    state: str
    fork_number: int | None = None


Rank: TypeAlias = tuple[int, int, bytes]

ON_CHAIN, ON_WAIT, LOST = CanonState(CANONICAL), CanonState(WAITING), CanonState(REORGED)


def mark_chain(blocks: Iterable[BlockLink], start: bytes | None = None) -> dict[bytes, CanonState]:
    """Finds the canonical chain. Returns the state of each block by its hash.

    start: the hash of a block on the canonical chain, or of the parent of its first block; None if unknown.
    """
    known = {block.hash: block for block in blocks}
    marks: dict[bytes, CanonState] = {}
    tree: dict[bytes, BlockLink] = {}
    for block in known.values():
        parent = known.get(block.parent)
        if parent is not None and parent.number >= block.number:
            marks[block.hash] = LOST
        else:
            tree[block.hash] = block
    children: dict[bytes, list[BlockLink]] = {}
    for block in tree.values():
        children.setdefault(block.parent, []).append(block)
    components = {root: _descendants(root, children) for root in children if root not in tree}
    if not components:
        return marks
    main = _choose(components, start)
    head = _mark_main(components.pop(main) if main is not None else [], children, main, marks)
    # Other components are not connected to the chain. A heavier one can win when the missing blocks arrive, so all its
    # blocks wait. Of any other component, the blocks whose numbers are in the range of the chain have lost.
    for members in components.values():
        may_win = head is None or max(block.weight for block in members) > head[2]
        for block in members:
            passed = head is not None and head[0] <= block.number <= head[1]
            marks[block.hash] = LOST if passed and not may_win else ON_WAIT
    return marks


def mark_descendants(
    blocks: Iterable[BlockLink], known: Mapping[bytes, CanonState], changed: Collection[bytes], settled: bytes
) -> dict[bytes, CanonState] | None:
    """Finds the states of a settled block (canonical, far below the head) and of its descendants. If all changed blocks
    are among these, its branch only gets heavier, and all other blocks keep their states.

    Returns None if the states depend on other blocks: then `mark_chain` needs the whole chain.

    blocks: at least the settled block, all blocks with greater numbers, and all reorged ones.
    known: the states so far. changed: the blocks that are new, or whose time of storage has changed.
    """
    children: dict[bytes, list[BlockLink]] = {}
    found: list[BlockLink] = []
    for block in blocks:
        # Publishers choose the hashes, so the parent of the settled block can also be its descendant.
        if block.hash == settled:
            found.append(block)
        else:
            children.setdefault(block.parent, []).append(block)
    found += _descendants(settled, children)
    hashes = {block.hash for block in found}
    if not hashes.issuperset(changed) or settled not in hashes:
        return None
    marks = mark_chain(found, settled)
    # A block whose number is not greater than its parent's is cut off from the chain, with its descendants. Their
    # states depend on the whole chain.
    if any(mark in (ON_WAIT, LOST) for mark in marks.values()):
        return None
    # A block without a connection to the chain is reorged only while the chain reaches its number. A branch that wins
    # may be shorter than the branch before it.
    head = max(block.number for block in found if marks[block.hash] == ON_CHAIN)
    others = (block for siblings in children.values() for block in siblings if block.hash not in hashes)
    if any(known.get(block.hash) == LOST and block.number > head for block in others):
        return None
    return marks


def find_settled(blocks: Iterable[BlockLink], marks: Mapping[bytes, CanonState]) -> BlockLink | None:
    """Returns the newest settled block; None if the chain is too short, or if a block waits."""
    chain = [block for block in blocks if marks.get(block.hash) == ON_CHAIN]
    if not chain or any(mark == ON_WAIT for mark in marks.values()):
        return None
    head = max(block.number for block in chain)
    return max((each for each in chain if each.number <= head - WINDOW), key=lambda each: each.number, default=None)


def _descendants(root: bytes, children: dict[bytes, list[BlockLink]]) -> list[BlockLink]:
    found = list(children.get(root, ()))
    for block in found:
        found.extend(children.get(block.hash, ()))
    return found


def _choose(components: dict[bytes, list[BlockLink]], start: bytes | None) -> bytes | None:
    """Returns the key of the component with the canonical chain: the parent of its first blocks. None: no component."""
    if start is not None:
        containing = (root for root, members in components.items() if any(block.hash == start for block in members))
        return start if start in components else next(containing, None)
    if ZERO_HASH in components:
        return ZERO_HASH
    ranked = {root: (len(blocks), max(_rank(block)[1:] for block in blocks)) for root, blocks in components.items()}
    return max(components, key=ranked.__getitem__)


def _rank(block: BlockLink) -> Rank:
    return (block.weight, -block.stored_us, block.hash)


def _mark_main(
    members: list[BlockLink], children: dict[bytes, list[BlockLink]], root: bytes | None, marks: dict[bytes, CanonState]
) -> tuple[int, int, int] | None:
    """Marks the blocks of the component with the canonical chain, in which parents come before children.

    Returns the first and last number of the chain and its greatest weight; None if there are no blocks.
    """
    if not members or root is None:
        return None
    heaviest: dict[bytes, Rank] = {}
    for block in reversed(members):
        heaviest[block.hash] = max([_rank(block), *(heaviest[child.hash] for child in children.get(block.hash, ()))])
    chain: list[BlockLink] = []
    at = root
    while following := children.get(at):
        chain.append(max(following, key=lambda child: heaviest[child.hash]))
        at = chain[-1].hash
        marks[at] = ON_CHAIN
    numbers = {block.hash: block.number for block in chain}
    for block in members:
        if block.hash not in numbers:
            parent = marks.get(block.parent)
            fork = numbers.get(block.parent, None if parent is None else parent.fork_number)
            marks[block.hash] = CanonState(REORGED, fork)
    return chain[0].number, chain[-1].number, max(block.weight for block in chain)
