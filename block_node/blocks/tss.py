"""The interface of an external verifier of threshold signatures (verification level L5).

A threshold signature is a hinTS signature with an aggregate Schnorr signature or a WRAPS proof. Only native libraries
can verify it. A program with such a library passes an object that implements `TssVerifier` to the block verifier.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class SignedRoot(msgspec.Struct, frozen=True):
    """A root hash of block `number` with its threshold signature, from the proof in block `proof_of`."""

    number: int
    proof_of: int
    root: bytes
    signature: bytes


class TssVerifier(Protocol):
    """A verifier of threshold signatures. It knows the id of the ledger that must have signed."""

    def verify_tss(self, signed: SignedRoot) -> bool:
        """Whether the signature is valid for `signed.root`. Called in the thread that ends the block, once for each
        possible root hash until one is signed. After an exception the block fails with `FailureKind.UNKNOWN_ERROR`."""
        ...
