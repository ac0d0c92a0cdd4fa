from __future__ import annotations

from collections.abc import Mapping

import msgspec

from block_node.blocks.errors import Level, SettingsError
from block_node.blocks.merkle import SCHEMES, HashScheme

PROOF_LEVELS = Level.RECORD_PROOF | Level.STATE_PROOF | Level.TSS


class VerifierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a verifier: the verification levels that are on, and how strict they are.

    If a level for a kind of proof (RECORD_PROOF, STATE_PROOF or TSS) is on, at least one proof of a block must have
    been checked. Otherwise a publisher could avoid the check of signatures by sending a proof of another kind. With
    `accept_unchecked_proofs`, one proof of any known kind is enough, even if it was not checked.
    """

    levels: Level = Level.STRUCTURE | Level.MERKLE | Level.CHAIN
    accept_unchecked_proofs: bool = False

    known_roots: Mapping[int, bytes] = {}
    """Root hashes that the operator knows from another source, by block number. The block must have this root hash, and
    a state proof that leads to the block must end at this root hash."""

    hash_schemes: tuple[HashScheme, ...] = SCHEMES
    """The hash schemes by which a block can be hashed, the likeliest first. See `docs/blocks.md`."""

    link_record_blocks: bool = True
    """Whether a block with only a record-file proof must continue the chain. If False, the chain starts again at such a
    block: some networks were restarted from record files."""

    signatures_min: int = 1
    """The number of nodes whose valid signatures a record-file proof needs. The reference block node needs one."""

    skip_unknown_signers: bool = False
    """Whether a signature of a node that is not in the address book is ignored, as in the reference block node, or
    makes the block invalid. If True, a sender of the block can add signatures of unknown nodes, and can make a valid
    signature ignored by changing its node number."""

    block_bytes_max: int = 1 << 30
    items_max: int = 5_000_000
    """The most items of a block. The largest known block has 400 MB, and fewer items."""

    item_bytes_max: int = 128 << 20
    """The largest item. The largest message between reference block nodes is smaller: 125 MB."""

    small_item_bytes_max: int = 1 << 20
    """The largest size of a header, footer or proof: these are kept in memory. All known proofs are below 5 KB."""

    proofs_max: int = 16
    claims_max: int = 1024
    """The largest number of state proofs that lead to blocks which have not arrived yet."""

    @property
    def hash_sizes(self) -> set[int]:
        return {scheme.rules.size for scheme in self.hash_schemes}

    def check(self) -> None:
        """Raises SettingsError if a setting is invalid, or if two settings contradict each other."""
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
