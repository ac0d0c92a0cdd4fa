"""The settings of a verifier. It reads no configuration file."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from block_node.blocks.errors import Level, SettingsError
from block_node.blocks.hash_scheme import SCHEMES, HashScheme

ALL_BUT_TSS = Level.STRUCTURE | Level.MERKLE | Level.CHAIN | Level.RECORD_PROOF | Level.STATE_PROOF
PROOF_LEVELS = Level.RECORD_PROOF | Level.STATE_PROOF | Level.TSS


class VerifierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a verifier: which levels it checks, and how strictly.

    A proof is not looked at if the level for its kind is off. When proof levels are on, a block must have at least one
    proof that one of these levels checked. Otherwise a publisher could avoid the check of signatures by sending a proof
    of another kind. With `accept_unchecked_proofs`, one proof of any known kind is enough, even an unchecked one.
    """

    levels: Level = Level.STRUCTURE | Level.MERKLE | Level.CHAIN
    accept_unchecked_proofs: bool = False

    known_roots: Mapping[int, bytes] = {}
    """Roots that the operator knows from another source, by block number. The block must have this root, and a state
    proof about the block must resolve to it."""

    hash_schemes: tuple[HashScheme, ...] = SCHEMES
    """The schemes by which a block may be hashed. The first scheme is tried first if nothing is known about a block.
    See `docs/blocks.md`."""

    link_record_blocks: bool = True
    """Whether a block that has only a record-file proof must link to the block before. Networks that were restarted
    from record files have such blocks that do not link. If this is False, the chain starts anew at such a block, on
    trust."""

    signatures_min: int = 1
    """The number of valid signatures that a record-file proof needs. The real block node needs one."""

    skip_unknown_signers: bool = False
    """Whether a signature of a node that is not in the address book is ignored, as the real block node does. Otherwise
    it fails the block. Ignoring lets anybody add signatures, or remove one by changing its node's number."""

    block_bytes_max: int = 1 << 30
    items_max: int = 5_000_000
    """The largest number of items in a block. The largest known block has 400 MB, and fewer items than this at their
    usual size."""

    item_bytes_max: int = 128 << 20
    """The largest size of an item. It is above the 125 MB of the largest message between real peers."""

    small_item_bytes_max: int = 1 << 20
    """The largest size of a header, a footer or a proof, which are held in memory whole. The largest real proof is
    below 5 KB."""

    proofs_max: int = 16
    claims_max: int = 1024
    """The largest number of state proofs that may wait for the block to whose root they resolve."""

    @property
    def hash_sizes(self) -> set[int]:
        """The possible sizes of a root, in bytes."""
        return {scheme.rules.size for scheme in self.hash_schemes}

    def check(self) -> None:
        """Raises SettingsError unless the values can work together."""
        if not self.levels & Level.STRUCTURE:
            raise SettingsError("levels: STRUCTURE cannot be switched off")
        needs_root = Level.CHAIN | Level.STATE_PROOF | Level.TSS
        if self.levels & needs_root and not self.levels & Level.MERKLE:
            raise SettingsError("levels: CHAIN, STATE_PROOF and TSS need MERKLE, which computes the root")
        for number, root in self.known_roots.items():
            if len(root) not in self.hash_sizes:
                sizes = " or ".join(map(str, sorted(self.hash_sizes)))
                raise SettingsError(f"known_roots: the root of block {number} has {len(root)} bytes, not {sizes}")
        if len({scheme.name for scheme in self.hash_schemes}) < len(self.hash_schemes) or not self.hash_schemes:
            raise SettingsError("hash_schemes: at least one, each with a name of its own")
        alike = {(scheme.rules.algorithm, scheme.rules.new, scheme.rules.leaf) for scheme in self.hash_schemes}
        if len(alike) > len({scheme.rules.algorithm for scheme in self.hash_schemes}):
            raise SettingsError("hash_schemes: those of one algorithm must hash leaves alike, since they share them")
        for name in ("signatures_min", "block_bytes_max", "items_max", "item_bytes_max", "small_item_bytes_max"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}: must be at least 1")
        if self.proofs_max < 1 or self.claims_max < 0:
            raise SettingsError("proofs_max must be at least 1, claims_max at least 0")
