"""How a verifier is configured. It reads no configuration file."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from block_node.blocks.errors import Level, SettingsError
from block_node.blocks.hash_scheme import SCHEMES, HashScheme

ALL_BUT_TSS = Level.STRUCTURE | Level.MERKLE | Level.CHAIN | Level.RECORD_PROOF | Level.STATE_PROOF
PROOF_LEVELS = Level.RECORD_PROOF | Level.STATE_PROOF | Level.TSS


class VerifierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is checked, and how strictly.

    A proof of a kind whose level is off is not looked at. When proof levels are on, a block must have at least one
    proof that one of them checked, or with `accept_unchecked_proofs` one of a kind that is known; otherwise a publisher
    would get past the check of signatures with a proof of another kind.
    """

    levels: Level = Level.STRUCTURE | Level.MERKLE | Level.CHAIN
    accept_unchecked_proofs: bool = False

    known_roots: Mapping[int, bytes] = {}
    """Roots the operator knows from elsewhere, by block number: that block, and a state proof about it, must have that
    one."""

    hash_schemes: tuple[HashScheme, ...] = SCHEMES
    """By which a block may be hashed; the first one is tried first where nothing is known. See `docs/blocks.md`."""

    link_record_blocks: bool = True
    """Whether a block with nothing but a record-file proof must link too. Networks that were started anew from record
    files have such blocks whose chain does not link; the chain then starts anew there, on trust."""

    signatures_min: int = 1
    """Valid signatures that a record-file proof needs. The real block node asks for one."""

    skip_unknown_signers: bool = False
    """Whether a signature of a node that is not in the address book is passed over, as the real block node does, or
    fails the block. Passing over lets anybody add signatures, or take one away by changing its node's number."""

    block_bytes_max: int = 1 << 30
    items_max: int = 5_000_000
    """More than 400 MB, the largest block known, have of the usual size."""

    item_bytes_max: int = 128 << 20
    """Above the 125 MB that the largest message between real peers has."""

    small_item_bytes_max: int = 1 << 20
    """Of a header, a footer or a proof: they are held in memory whole. The largest real proof is below 5 KB."""

    proofs_max: int = 16
    claims_max: int = 1024
    """State proofs waiting for the block they resolve to."""

    @property
    def hash_sizes(self) -> set[int]:
        """Bytes that a root can have."""
        return {scheme.rules.size for scheme in self.hash_schemes}

    def check(self) -> None:
        """Raise SettingsError unless the values can work together."""
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
