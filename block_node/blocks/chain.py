"""How blocks are linked: where a chain stands, and whether a block continues it (L2). It hashes no items.

The footer of block N names the root of block N-1, and the root of the tree over the roots of blocks 0 to N-1, taken as
they are. For block 0 both are the empty tree's. A chain that starts elsewhere takes its first block on trust, and
cannot know the second of these.

A state proof is a claim about a block that is not there yet: its root. Claims are kept here until that block comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from block_node.blocks.errors import BlockFormatError, FailureKind, Level, VerificationFailed
from block_node.blocks.merkle import EMPTY_TREE, StreamingTree
from block_node.blocks.proofs import ProofKind

ROOTS_PER_RUN = 1024
"""Runs of this size are folded several times as fast as single roots."""


class Claim(msgspec.Struct, frozen=True):
    """The state proof of block `by` resolves to `root`, which must be the root of block `target`."""

    by: int
    target: int
    root: bytes


class BlockResult(msgspec.Struct, frozen=True):
    """A block that passed all levels but the chain; `checked` names those that found something to check.

    `root` is empty where `Level.MERKLE` is off. `size_bytes` is that of the items, without what frames them. A block
    with `claims` was proven by reference to a later block: it is settled when that one passes.
    """

    number: int
    root: bytes
    previous_root: bytes
    all_blocks_root: bytes
    item_count: int
    size_bytes: int
    checked: Level
    proofs: tuple[ProofKind, ...]
    claims: tuple[Claim, ...] = ()


class ChainState(msgspec.Struct, frozen=True):
    """What the next block must continue. A value: going back is keeping the old one.

    `next_number` is None while any block may come first. `previous_root` and `peaks` (of the tree over all roots, see
    `StreamingTree.peaks`) are None while they are not known.
    """

    next_number: int | None = 0
    previous_root: bytes | None = EMPTY_TREE
    peaks: tuple[bytes | None, ...] | None = ()
    claims: tuple[Claim, ...] = ()

    @classmethod
    def starting_at(cls, number: int | None) -> ChainState:
        """A chain whose first block is `number`, or any for None, taken on trust unless it is block 0."""
        return cls() if number == 0 else cls(number, None, None)

    @classmethod
    def from_roots(cls, roots: Iterable[bytes]) -> ChainState:
        """The chain of the blocks from 0 on with these roots. About a second per million."""
        tree = StreamingTree()
        last, rest = EMPTY_TREE, iter(roots)
        while run := list(islice(rest, ROOTS_PER_RUN)):
            tree.extend(run)
            last = run[-1]
        return cls(tree.leaf_count, last, tree.peaks())

    def encode(self) -> bytes:
        """As bytes, to be kept beside the blocks."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ChainState:
        """What `encode` made. Raises BlockFormatError for anything else."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise BlockFormatError(f"no state of a chain: {error}") from error

    def without_claims(self) -> ChainState:
        """The same chain without the claims of unsettled state proofs: the operator's way out where they are false."""
        return msgspec.structs.replace(self, claims=())

    def advanced(self, result: BlockResult, claims_max: int) -> ChainState:
        """The chain after a block, which must have been checked."""
        peaks = self.peaks
        if peaks is not None:
            tree = StreamingTree.from_peaks(peaks)
            tree.extend([result.root])
            peaks = tree.peaks()
        elif result.number == 0:
            peaks = (result.root,)
        claims = (*(each for each in self.claims if each.target > result.number), *result.claims)
        if len(claims) > claims_max:
            reason = f"{len(claims)} state proofs wait for their block, {claims_max} may"
            raise VerificationFailed(FailureKind.LIMIT_EXCEEDED, Level.STATE_PROOF, result.number, reason)
        return ChainState(result.number + 1, result.root or None, peaks, claims)


def check_number(chain: ChainState, result: BlockResult) -> None:
    """Raise VerificationFailed unless the block is the one that comes next."""
    if chain.next_number is not None and result.number != chain.next_number:
        reason = f"block {chain.next_number} comes next"
        raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason)


def check_link(chain: ChainState, result: BlockResult) -> None:
    """Raise VerificationFailed unless the block's footer names the blocks before it."""
    if chain.previous_root is not None and result.previous_root != chain.previous_root:
        reason = f"its footer names {_short(result.previous_root)} as the root of the block before, which has "
        reason += _short(chain.previous_root)
        raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason)
    if chain.peaks is not None:
        root = StreamingTree.from_peaks(chain.peaks).root()
        if result.all_blocks_root != root:
            reason = f"its footer names {_short(result.all_blocks_root)} as the root of all blocks, which is "
            raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason + _short(root))


def check_claims(chain: ChainState, result: BlockResult) -> None:
    """Raise VerificationFailed where state proofs contradict: earlier ones this block's root, or its own the earlier.

    Which side is false cannot be told without checking the signature, at `Level.TSS`.
    """
    for claim in chain.claims:
        if claim.target == result.number and claim.root != result.root:
            reason = f"the state proof of block {claim.by} resolves to {_short(claim.root)} for it, "
            reason += f"its root is {_short(result.root)}"
            raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, result.number, reason)
        for own in result.claims:
            if own.target == claim.target and own.root != claim.root:
                reason = (
                    f"its state proof and that of block {claim.by} resolve to different roots of block {own.target}"
                )
                raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, result.number, reason)


def _short(root: bytes) -> str:
    return root[:8].hex() or "nothing"
