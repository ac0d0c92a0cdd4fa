"""How blocks are linked (L2): the state of a chain of blocks, and whether a block continues it. It hashes no items.

The footer of block N names two roots: the root of block N-1, and the root of the Merkle tree whose leaf values are the
roots of blocks 0 to N-1. In the footer of block 0 both are the root of the empty tree. A chain that starts at a later
block takes its first block on trust, and cannot know the tree over all roots.

A block has one possible root for each hash scheme (`hash_scheme`). If no known root and no proof says which root is the
right one, the chain keeps all of them open until the footer of the next block names one.

A state proof claims the root of a later block that has not arrived yet. The chain keeps such claims until that block
arrives.
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
"""The number of roots appended to the tree at once. A run of this size is folded several times as fast as single
roots."""


class Claim(msgspec.Struct, frozen=True):
    """A claim by a state proof: the proof of block `by` resolves to `root`, which must be the root of block
    `target`."""

    by: int
    target: int
    root: bytes


class BlockResult(msgspec.Struct, frozen=True):
    """The result of a block that passed every level except the chain.

    `checked` names the levels that found something to check. `roots` are the possible roots of the block, the most
    likely one first: only one if a known root or a proof decided, and none if `Level.MERKLE` is off. `size_bytes` is
    the total size of the items without the prefixes that frame them. A block with `claims` was proven by reference to a
    later block: its proof is settled when that later block passes. `corrected` is set by linking: the root of the block
    before, if it is not the root that was thought most likely; else empty.
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
        """The most likely root of the block; empty if no root was computed."""
        return self.roots[0].root if self.roots else b""

    @property
    def other_roots(self) -> tuple[bytes, ...]:
        """The less likely roots of the block: all possible roots but the first."""
        return tuple(each.root for each in self.roots[1:])


class ChainState(msgspec.Struct, frozen=True):
    """The state of a chain: everything that the next block must continue. It is an immutable value, so to go back is to
    keep the old value.

    `next_number` is None while any block may come first. `previous_root` and `peaks` (of the tree over all roots, see
    `StreamingTree.peaks`) are None while they are not known. `scheme` names the hash scheme of the last block whose
    scheme is known; empty if no scheme is known yet. `open` holds the possible roots of the last block while the right
    one is not known; meanwhile `previous_root` is the first of them, and `peaks` do not include that block.
    """

    next_number: int | None = 0
    previous_root: bytes | None = EMPTY_TREE
    peaks: tuple[bytes | None, ...] | None = ()
    claims: tuple[Claim, ...] = ()
    scheme: str = ""
    open: tuple[RootCandidate, ...] = ()

    @classmethod
    def starting_at(cls, number: int | None) -> ChainState:
        """Returns the state of a chain whose first block is `number`, or any block if `number` is None. The first block
        is taken on trust unless it is block 0."""
        return cls() if number == 0 else cls(number, None, None)

    @classmethod
    def from_roots(cls, roots: Iterable[bytes], rules: HashRules = SHA384) -> ChainState:
        """Returns the state of a chain whose blocks, from block 0 on, have these roots. It takes about a second per
        million roots."""
        tree = StreamingTree(rules)
        last, rest = EMPTY_TREE, iter(roots)
        while run := list(islice(rest, ROOTS_PER_RUN)):
            tree.extend(run)
            last = run[-1]
        return cls(tree.leaf_count, last, tree.peaks())

    def encode(self) -> bytes:
        """Serializes the state to bytes that can be stored beside the blocks."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ChainState:
        """Reads a state that `encode` serialized. Raises BlockFormatError if the bytes are no such state."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise BlockFormatError(f"no state of a chain: {error}") from error

    def without_claims(self) -> ChainState:
        """Returns the same state without the claims of unsettled state proofs. An operator uses this when a false claim
        blocks the chain."""
        return msgspec.structs.replace(self, claims=())

    def reopened(
        self, number: int, root: bytes, roots: tuple[RootCandidate, ...], rules: HashRules = SHA384
    ) -> ChainState:
        """Returns the state after block `number` was added again from storage.

        root: the most likely root of that block. roots: all its possible roots, while the right one is not known. The
        tree over all roots stays known only if this chain ends directly before that block.
        """
        peaks = self.peaks if self.next_number == number else None
        first = next((each.scheme for each in roots if each.root == root), "")
        if first:
            return ChainState(number + 1, root, peaks, self.claims, self.scheme, in_order(roots, first))
        return ChainState(
            number + 1, root, None if peaks is None else _grown(peaks, root, rules), self.claims, self.scheme
        )

    def settled(self, root: bytes, rules: HashRules = SHA384) -> ChainState:
        """Returns the state with `root` chosen from the open roots of the last block.

        rules: the rules that hash the tree over the roots of all blocks.
        """
        if not self.open:
            return self
        scheme = next(each.scheme for each in self.open if each.root == root)
        peaks = None if self.peaks is None else _grown(self.peaks, root, rules)
        return msgspec.structs.replace(self, previous_root=root, peaks=peaks, scheme=scheme, open=())

    def advanced(self, result: BlockResult, claims_max: int) -> ChainState:
        """Returns the state after one more block, which must have been checked. If the block before still has several
        possible roots, the most likely one, which is the first, is taken as its root.

        Raises VerificationFailed if there would be more than `claims_max` claims about blocks that have not arrived.
        """
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
    """Raises VerificationFailed unless the number of the block is the next number of the chain."""
    if chain.next_number is not None and result.number != chain.next_number:
        reason = f"block {chain.next_number} comes next"
        raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason)


def check_link(chain: ChainState, result: BlockResult) -> ChainState:
    """Checks that the footer names the blocks before it, and returns the chain with the root of its last block settled.

    Raises VerificationFailed if the footer names none of the roots that the last block may have, or a wrong root over
    all blocks.
    """
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
        # Block 0 has no block before it: its footer names the empty tree, hashed by the algorithm of block 0.
        return (result.rules.empty,)
    return tuple(each.root for each in chain.open) or (chain.previous_root,)


def settle_roots(result: BlockResult, chain: ChainState) -> BlockResult:
    """Returns the result with its possible roots ordered or reduced by what the chain knows. A claim of an earlier
    state proof decides the root. Otherwise the root by the scheme of the block before comes first, unless a proof of
    this block points to another."""
    roots = result.roots if result.claims else in_order(result.roots, chain.scheme)
    claimed = {claim.root for claim in chain.claims if claim.target == result.number}
    if claimed:
        roots = tuple(each for each in roots if each.root in claimed) or roots
    return result if roots is result.roots else msgspec.structs.replace(result, roots=roots)


def check_claims(chain: ChainState, result: BlockResult) -> None:
    """Raises VerificationFailed if state proofs contradict each other: an earlier claim and the root of this block, or
    an earlier claim and a claim of this block about the same later block.

    Only a check of the signatures, at `Level.TSS`, can tell which side is false.
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
