"""Checks whether a block continues a chain (verification level L2), and keeps the state of the chain.

The footer of block N names the root hash of block N-1, and that of the all-blocks tree, whose leaves are the root
hashes of blocks 0 to N-1. In block 0 both are the root hash of an empty tree. If a chain starts at a later block, that
block is accepted without this check, and the all-blocks tree is unknown. A block has one possible root hash for each
hash scheme (`HashScheme`). If nothing decides between them, the chain keeps all until the next footer names one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from block_node.blocks.errors import BlockFormatError, FailureKind, Level, VerificationFailed
from block_node.blocks.merkle import EMPTY_TREE, SHA384, HashRules, RootCandidate, StreamingTree, in_order, names_of
from block_node.blocks.proofs import ProofKind

ROOTS_PER_RUN = 1024
"""The number of root hashes that are added at once to the all-blocks tree, several times as fast as one by one."""


class Claim(msgspec.Struct, frozen=True):
    by: int
    target: int
    root: bytes


class BlockResult(msgspec.Struct, frozen=True):
    """The result of verifying one block.

    roots: the possible root hashes of the block (one for each hash scheme), the most likely one first. Empty if
    `Level.MERKLE` is off.
    previous_root, all_blocks_root: the root hashes of the preceding and of all earlier blocks, by the footer.
    size_bytes: the total size of the items. checked: the levels at which something was checked.
    claims: root hashes of later blocks, as state proofs of this block claim them.
    corrected: the right root hash of the preceding block, if the chain had assumed another one (`Verifier.link`).
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
        return self.roots[0].root if self.roots else b""

    @property
    def other_roots(self) -> tuple[bytes, ...]:
        return tuple(each.root for each in self.roots[1:])


class ChainState(msgspec.Struct, frozen=True):
    """The state at the end of a chain, which is all that is needed to check the next block. It never changes: to go
    back to an earlier state, keep the old value.

    next_number: None means that any block can come next.
    previous_root: the root hash of the last block, or the most likely one if `open` is not empty. None if unknown.
    peaks: the hashes that represent the all-blocks tree, see `StreamingTree.peaks`. None if unknown. If `open` is not
    empty, the tree does not have the root hash of the last block yet.
    claims: the claims of state proofs about blocks that have not arrived yet.
    scheme: the hash scheme of the last block whose scheme is certain. Empty if no scheme is certain yet.
    open: the possible root hashes of the last block, while it is not certain which one is right. Otherwise empty.
    """

    next_number: int | None = 0
    previous_root: bytes | None = EMPTY_TREE
    peaks: tuple[bytes | None, ...] | None = ()
    claims: tuple[Claim, ...] = ()
    scheme: str = ""
    open: tuple[RootCandidate, ...] = ()

    @classmethod
    def starting_at(cls, number: int | None) -> ChainState:
        """Returns the initial state of a chain. The link of a first block other than block 0 is not checked."""
        return cls() if number == 0 else cls(number, None, None)

    @classmethod
    def from_roots(cls, roots: Iterable[bytes], rules: HashRules = SHA384) -> ChainState:
        """Returns the state of a chain from block 0 on, from all its root hashes. A million hashes take a second."""
        tree = StreamingTree(rules)
        last, rest = EMPTY_TREE, iter(roots)
        while run := list(islice(rest, ROOTS_PER_RUN)):
            tree.extend(run)
            last = run[-1]
        return cls(tree.leaf_count, last, tree.peaks())

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ChainState:
        """Parses a state that `encode` serialized. Raises BlockFormatError."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise BlockFormatError(f"no state of a chain: {error}") from error

    def without_claims(self) -> ChainState:
        """Returns the state without claims, for an operator whose chain refuses a block because of a false claim."""
        return msgspec.structs.replace(self, claims=())

    def reopened(
        self, number: int, root: bytes, roots: tuple[RootCandidate, ...], rules: HashRules = SHA384
    ) -> ChainState:
        """Returns the state after the stored block `number`, whose possible root hashes were computed again; `roots` is
        empty if `root` is certain. The peaks remain known only if `number` is the next block."""
        peaks = self.peaks if self.next_number == number else None
        first = next((each.scheme for each in roots if each.root == root), "")
        if first:
            return ChainState(number + 1, root, peaks, self.claims, self.scheme, in_order(roots, first))
        return ChainState(
            number + 1, root, None if peaks is None else _grown(peaks, root, rules), self.claims, self.scheme
        )

    def settled(self, root: bytes, rules: HashRules = SHA384) -> ChainState:
        """Returns the state after `root` was chosen as the right root hash of the last block."""
        if not self.open:
            return self
        scheme = next(each.scheme for each in self.open if each.root == root)
        peaks = None if self.peaks is None else _grown(self.peaks, root, rules)
        return msgspec.structs.replace(self, previous_root=root, peaks=peaks, scheme=scheme, open=())

    def advanced(self, result: BlockResult, claims_max: int) -> ChainState:
        """Returns the state after one more, checked block. Raises VerificationFailed if too many claims wait."""
        # If `open` is set, the footer of this block was not checked: the likeliest root hash of the last block counts.
        chain = self.settled(self.open[0].root, result.rules) if self.open else self
        # The tree grows only by a certain root hash. After a block without any root hash, the tree is unknown.
        peaks = chain.peaks
        if peaks is None and result.number == 0:
            peaks = ()
        if len(result.roots) == 1 and peaks is not None:
            peaks = _grown(peaks, result.root, result.rules)
        elif not result.roots:
            peaks = None
        # Claims about this block are settled. Claims of this block wait for later blocks.
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


def check_link(chain: ChainState, result: BlockResult) -> ChainState:
    """Checks the two root hashes in the footer of a block, as far as the chain knows them. Returns the chain, in which
    the right root hash of the preceding block is now certain. Raises VerificationFailed."""
    if chain.next_number == 0:
        # Block 0 has no block before it: its footer names the empty tree, hashed by the algorithm of block 0.
        possible: tuple[bytes | None, ...] = (result.rules.empty,)
    else:
        possible = tuple(each.root for each in chain.open) or (chain.previous_root,)
    # The footer must name a possible root hash of the last block, and settles which one is right.
    if chain.previous_root is not None and result.previous_root not in possible:
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


def settle_roots(result: BlockResult, chain: ChainState) -> BlockResult:
    """Returns the result with its root hashes in order of likelihood. If an earlier state proof claims a root hash for
    this block, only that one remains. Otherwise the root hash by the scheme of the preceding block comes first, unless
    a state proof of this block decides."""
    roots = result.roots if result.claims else in_order(result.roots, chain.scheme)
    claimed = {claim.root for claim in chain.claims if claim.target == result.number}
    if claimed:
        roots = tuple(each for each in roots if each.root in claimed) or roots
    return result if roots is result.roots else msgspec.structs.replace(result, roots=roots)


def check_claims(chain: ChainState, result: BlockResult) -> None:
    """Raises VerificationFailed if an earlier state proof claims another root hash for this block, or if it and a proof
    of this block contradict each other about a later block. Only signatures (`Level.TSS`) show which one is wrong."""
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
