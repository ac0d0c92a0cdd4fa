"""The interface of an external verifier of threshold signatures (L5). It verifies nothing itself.

The signature is a hinTS signature with an aggregate Schnorr signature or a WRAPS proof, and only native libraries can
verify it. A program that has such a library passes an object of this type to the block verifier.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class SignedRoot(msgspec.Struct, frozen=True):
    """A root and its signature. `number` is the block that has this root. `proof_of` is the block whose proof contained
    the signature; with a state proof that is an earlier block."""

    number: int
    proof_of: int
    root: bytes
    signature: bytes


class TssVerifier(Protocol):
    """A verifier of threshold signatures. It knows the ledger's id, against which it checks them."""

    def verify_tss(self, signed: SignedRoot) -> bool:
        """Whether the signature is the ledger's signature of `signed.root`. The block verifier calls this once for each
        signed root, in the thread that ends the block. If it raises an exception, the block fails with
        `FailureKind.UNKNOWN_ERROR`."""
        ...
