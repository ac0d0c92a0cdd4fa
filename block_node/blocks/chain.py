"""How blocks are linked: where a chain stands, and whether a block continues it (L2). It hashes no items.

The footer of block N names the root of block N-1, and the root of the tree over the roots of blocks 0 to N-1, taken as
they are. For block 0 both are the empty tree's. A chain that starts elsewhere takes its first block on trust, and
cannot know the second of these.

A block has a root by each hash scheme that may be meant (`hash_scheme`). Where no known root and no proof says which
one it is, all are kept open here until the next block's footer names one of them.

A state proof is a claim about a block that is not there yet: its root. Claims are kept here until that block comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from block_node.blocks.errors import BlockFormatError, FailureKind, Level, VerificationFailed
from block_node.blocks.hash_scheme import SHA384, HashRules, RootCandidate, in_order, names_of
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

    `roots` are those that it may have: one where a known root or a proof said which, none where `Level.MERKLE` is off;
    else the first one is the most likely. `size_bytes` is that of the items, without what frames them. A block with
    `claims` was proven by reference to a later block: it is settled when that one passes. `corrected`: of a block that
    was linked, the root of the block before where that is not the one that was most likely; else empty.
    """

    number: int
    roots: tuple[RootCandidate, ...]
    previous_root: bytes
    all_blocks_root: bytes
    item_count: int
    size_bytes: int
    checked: Level
    proofs: tuple[ProofKind, ...]
    claims: tuple[Claim, ...] = ()
    rules: HashRules = SHA384
    corrected: bytes = b""

    @property
    def root(self) -> bytes:
        """The root, or the most likely one; empty where there is none."""
        return self.roots[0].root if self.roots else b""

    @property
    def other_roots(self) -> tuple[bytes, ...]:
        """The less likely ones."""
        return tuple(each.root for each in self.roots[1:])


class ChainState(msgspec.Struct, frozen=True):
    """What the next block must continue. A value: going back is keeping the old one.

    `next_number` is None while any block may come first. `previous_root` and `peaks` (of the tree over all roots, see
    `StreamingTree.peaks`) are None while they are not known. `scheme`: of the last block of which it is known; empty
    before. `open`: the roots that the last block may have, while that is not known; `previous_root` is the first of
    them then, and `peaks` are those without that block.
    """

    next_number: int | None = 0
    previous_root: bytes | None = EMPTY_TREE
    peaks: tuple[bytes | None, ...] | None = ()
    claims: tuple[Claim, ...] = ()
    scheme: str = ""
    open: tuple[RootCandidate, ...] = ()

    @classmethod
    def starting_at(cls, number: int | None) -> ChainState:
        """A chain whose first block is `number`, or any for None, taken on trust unless it is block 0."""
        return cls() if number == 0 else cls(number, None, None)

    @classmethod
    def from_roots(cls, roots: Iterable[bytes], rules: HashRules = SHA384) -> ChainState:
        """The chain of the blocks from 0 on with these roots. About a second per million."""
        tree = StreamingTree(rules)
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

    def reopened(
        self, number: int, root: bytes, roots: tuple[RootCandidate, ...], rules: HashRules = SHA384
    ) -> ChainState:
        """Behind one more block, which has this root as far as is known, or else another one of these.

        The tree over all roots is known where this chain ends before that block.
        """
        peaks = self.peaks if self.next_number == number else None
        first = next((each.scheme for each in roots if each.root == root), "")
        if first:
            return ChainState(number + 1, root, peaks, self.claims, self.scheme, in_order(roots, first))
        return ChainState(
            number + 1, root, None if peaks is None else _grown(peaks, root, rules), self.claims, self.scheme
        )

    def settled(self, root: bytes, rules: HashRules = SHA384) -> ChainState:
        """The same chain, now that the root of its last block is known to be one of those that are open.

        rules: by which the roots of all blocks are hashed.
        """
        if not self.open:
            return self
        scheme = next(each.scheme for each in self.open if each.root == root)
        peaks = None if self.peaks is None else _grown(self.peaks, root, rules)
        return msgspec.structs.replace(self, previous_root=root, peaks=peaks, scheme=scheme, open=())

    def advanced(self, result: BlockResult, claims_max: int) -> ChainState:
        """The chain after a block, which must have been checked. The root of the block before is known by now."""
        chain = self.settled(self.open[0].root, result.rules) if self.open else self
        peaks = chain.peaks
        if peaks is None and result.number == 0:
            peaks = ()
        if len(result.roots) == 1 and peaks is not None:
            peaks = _grown(peaks, result.root, result.rules)
        elif not result.roots:
            peaks = None
        claims = (*(each for each in chain.claims if each.target > result.number), *result.claims)
        if len(claims) > claims_max:
            reason = f"{len(claims)} state proofs wait for their block, {claims_max} may"
            raise VerificationFailed(FailureKind.LIMIT_EXCEEDED, Level.STATE_PROOF, result.number, reason)
        is_open = len(result.roots) > 1
        scheme = chain.scheme if is_open or not result.roots else result.roots[0].scheme
        number = result.number + 1
        return ChainState(number, result.root or None, peaks, claims, scheme, result.roots if is_open else ())


def _grown(peaks: tuple[bytes | None, ...], root: bytes, rules: HashRules) -> tuple[bytes | None, ...]:
    tree = StreamingTree.from_peaks(peaks, rules)
    tree.extend([root])
    return tree.peaks()


def check_number(chain: ChainState, result: BlockResult) -> None:
    """Raise VerificationFailed unless the block is the one that comes next."""
    if chain.next_number is not None and result.number != chain.next_number:
        reason = f"block {chain.next_number} comes next"
        raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason)


def check_link(chain: ChainState, result: BlockResult) -> ChainState:
    """The chain with the root of its last block settled. Raises VerificationFailed unless the footer names the blocks
    before it, by one of the roots that the last of them may have."""
    if chain.previous_root is not None and result.previous_root not in _last_roots(chain, result):
        reason = f"its footer names {result.previous_root.hex()} as the root of the block before, which has "
        reason += names_of(chain.open) if chain.open else chain.previous_root.hex()
        raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason)
    chain = chain.settled(result.previous_root, result.rules)
    if chain.peaks is not None:
        root = StreamingTree.from_peaks(chain.peaks, result.rules).root()
        if result.all_blocks_root != root:
            reason = f"its footer names {_short(result.all_blocks_root)} as the root of all blocks, which is "
            raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason + _short(root))
    return chain


def _last_roots(chain: ChainState, result: BlockResult) -> tuple[bytes | None, ...]:
    if chain.next_number == 0:
        # No block is before it: the tree without leaves, by the algorithm of this block.
        return (result.rules.empty,)
    return tuple(each.root for each in chain.open) or (chain.previous_root,)


def settle_roots(result: BlockResult, chain: ChainState) -> BlockResult:
    """The result with what the chain knows about its root: a claim decides; else the scheme of the block before is the
    most likely one, unless a proof of the block says another."""
    roots = result.roots if result.claims else in_order(result.roots, chain.scheme)
    claimed = {claim.root for claim in chain.claims if claim.target == result.number}
    if claimed:
        roots = tuple(each for each in roots if each.root in claimed) or roots
    return result if roots is result.roots else msgspec.structs.replace(result, roots=roots)


def check_claims(chain: ChainState, result: BlockResult) -> None:
    """Raise VerificationFailed where state proofs contradict: earlier ones this block's root, or its own the earlier.

    Which side is false cannot be told without checking the signature, at `Level.TSS`.
    """
    for claim in chain.claims:
        if claim.target == result.number and claim.root not in [each.root for each in result.roots]:
            reason = f"the state proof of block {claim.by} resolves to {_short(claim.root)} for it, "
            reason += f"its root is {names_of(result.roots)}"
            raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, result.number, reason)
        for own in result.claims:
            if own.target == claim.target and own.root != claim.root:
                reason = (
                    f"its state proof and that of block {claim.by} resolve to different roots of block {own.target}"
                )
                raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, result.number, reason)


def _short(root: bytes) -> str:
    return root[:8].hex() or "nothing"
