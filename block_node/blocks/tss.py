"""The interface of an external verifier of threshold signatures (L5). It verifies nothing itself.

The signature is hinTS with an aggregate Schnorr signature or a WRAPS proof; only native libraries verify it. A program
that has such a library gives the block verifier an object of this type.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class SignedRoot(msgspec.Struct, frozen=True):
    """A root and its signature. `number` is the block with that root; `proof_of` the block whose proof it came in,
    which is an earlier one for a state proof."""

    number: int
    proof_of: int
    root: bytes
    signature: bytes


class TssVerifier(Protocol):
    """Checks threshold signatures against the ledger's id, which it knows."""

    def verify_tss(self, signed: SignedRoot) -> bool:
        """Whether the signature is the ledger's over `signed.root`. Called once per proof, in the thread that ends the
        block. An exception fails the block as `FailureKind.UNKNOWN_ERROR`."""
        ...
