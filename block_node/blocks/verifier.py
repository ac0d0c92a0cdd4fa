"""Verifies blocks level by level while their items arrive. It stores nothing.

    verifier = Verifier(VerifierSettings(), chain=ChainState())
    block = verifier.begin_block(7)        several blocks can be open at once, in any order
    block.add(items)                       called for each group of items; `add_part` takes an item in pieces
    result = block.end()                   all levels except the chain
    verifier.link(result)                  the chain level: in block order; advances the state of the chain

A fault in a block raises `VerificationFailed`. Only this block has failed, and the verifier can still be used. All work
runs in the calling thread. `VerifierSettings` limits the memory, which does not grow with the block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.block_reader import BlockReader
from block_node.blocks.chain import BlockResult, ChainState, Claim, check_claims, check_link, settle_roots
from block_node.blocks.errors import BlockFormatError, FailureKind, Level, SettingsError, VerificationFailed
from block_node.blocks.items import Item
from block_node.blocks.merkle import RootCandidate, in_order, names_of
from block_node.blocks.proof_checks import check_record_proof, check_state_proof
from block_node.blocks.proofs import BlockProof, ProofKind, RecordFileProof, StateProof, TssProof, read_proof
from block_node.blocks.settings import PROOF_LEVELS, VerifierSettings


class SignedRoot(msgspec.Struct, frozen=True):
    """A root hash of block `number` with its threshold signature, from the proof in block `proof_of`."""

    number: int
    proof_of: int
    root: bytes
    signature: bytes


class TssVerifier(Protocol):
    """The interface of an external verifier of threshold signatures (hinTS with an aggregate Schnorr signature or a
    WRAPS proof), which only native libraries can verify. It knows the id of the ledger that must have signed."""

    def verify_tss(self, signed: SignedRoot) -> bool:
        """Whether the signature is valid for `signed.root`. Called in the thread that ends the block, once for each
        possible root hash until one is signed. After an exception the block fails with `FailureKind.UNKNOWN_ERROR`."""
        ...


class Verifier:
    """Verifies the blocks of a chain at the levels that the settings switch on. `chain` is the state after the last
    linked block. The caller can set it, for example back to an earlier state if blocks could not be stored."""

    def __init__(
        self,
        settings: VerifierSettings | None = None,
        *,
        chain: ChainState | None = None,
        address_books: AddressBooks | None = None,
        tss: TssVerifier | None = None,
    ) -> None:
        """`Level.RECORD_PROOF` needs `address_books`, and `Level.TSS` needs `tss`. Raises SettingsError."""
        self.settings = settings or VerifierSettings()
        self.settings.check()
        if self.settings.levels & Level.RECORD_PROOF and address_books is None:
            raise SettingsError("levels: RECORD_PROOF needs an address book")
        if self.settings.levels & Level.TSS and tss is None:
            raise SettingsError("levels: TSS needs an external verifier")
        self.chain = chain or ChainState()
        self._books = address_books
        self._tss = tss

    def begin_block(self, number: int | None = None) -> BlockVerification:
        return BlockVerification(self, number)

    def link(self, result: BlockResult) -> BlockResult:
        """Checks that a block continues the chain, and advances the chain by the block. Returns the result with its
        root hashes in order of likelihood. `corrected` has the right root hash of the preceding block, if the chain had
        assumed a wrong one.

        Raises VerificationFailed if a check fails. In this case the chain does not change.
        """
        chain, corrected = self.chain, b""
        # The footer must fit the chain. Record blocks may begin a chain of their own where the settings allow it.
        if self.settings.levels & Level.CHAIN:
            if chain.next_number is not None and result.number != chain.next_number:
                reason = f"block {chain.next_number} comes next"
                raise VerificationFailed(FailureKind.BAD_CHAIN_LINK, Level.CHAIN, result.number, reason)
            try:
                settled = check_link(chain, result)
                if chain.open and settled.previous_root != chain.previous_root:
                    corrected = settled.previous_root or b""
                chain = settled
            except VerificationFailed:
                if self.settings.link_record_blocks or set(result.proofs) != {ProofKind.RECORD_FILE}:
                    raise
                chain = ChainState(result.number, None, None, chain.claims, chain.scheme)
        # Earlier state proofs are compared before the chain changes.
        if self.settings.levels & Level.STATE_PROOF:
            check_claims(chain, result)
        result = settle_roots(result, chain)
        self.chain = chain.advanced(result, self.settings.claims_max)
        return msgspec.structs.replace(result, corrected=corrected) if corrected else result

    def verify(self, items: Iterable[Item], number: int | None = None) -> BlockResult:
        block = self.begin_block(number)
        block.add(list(items))
        return self.link(block.end())

    # The checks of a whole block.

    def check(self, block: BlockReader) -> BlockResult:
        """Checks a block at all levels except the chain. The root hash by the scheme of the chain comes first."""
        number, levels = block.header.number, self.settings.levels
        known = self.settings.known_roots.get(number)
        roots = in_order(block.roots, self.chain.scheme)
        # A known root hash decides at once which of the possible ones is right.
        if levels & Level.MERKLE and known is not None:
            roots = tuple(each for each in roots if each.root == known)
            if not roots:
                reason = f"its root is {names_of(block.roots)}, which is known to be {known.hex()}"
                raise VerificationFailed(FailureKind.BAD_ROOT, Level.MERKLE, number, reason)
        checked = levels & (Level.STRUCTURE | Level.MERKLE)
        kinds: list[ProofKind] = []
        claims: list[Claim] = []
        # Each proof is checked at the levels that are on. It can leave fewer possible root hashes.
        for item in block.proofs:
            proof = self._read(item, number)
            kinds.append(proof.kind)
            level, roots, claimed = self._check_proof(block, roots, proof.content)
            checked |= level
            claims += claimed
        # A block is not proved if no level that is on has checked one of its proofs.
        unchecked = levels & PROOF_LEVELS and not checked & PROOF_LEVELS
        if unchecked and not (self.settings.accept_unchecked_proofs and any(kinds)):
            names = ", ".join(kind.name for kind in kinds)
            reason = f"no level that is on checks its proofs ({names})"
            raise VerificationFailed(FailureKind.UNRECOGNIZED_PROOF_TYPE, Level.STRUCTURE, number, reason)
        return BlockResult(
            number=number,
            roots=roots,
            previous_root=block.footer.previous_root,
            all_blocks_root=block.footer.all_blocks_root,
            item_count=block.item_count,
            size_bytes=block.size_bytes,
            checked=checked,
            proofs=tuple(kinds),
            claims=tuple(claims),
            rules=block.rules,
        )

    def _read(self, item: Item, number: int) -> BlockProof:
        try:
            proof = read_proof(item)
        except BlockFormatError as error:
            raise VerificationFailed(FailureKind.UNABLE_TO_PARSE, Level.STRUCTURE, number, str(error)) from error
        if proof.number != number:
            reason = f"it has a proof of block {proof.number}"
            raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STRUCTURE, number, reason)
        return proof

    def _check_proof(
        self,
        block: BlockReader,
        roots: tuple[RootCandidate, ...],
        proof: RecordFileProof | StateProof | TssProof | None,
    ) -> tuple[Level, tuple[RootCandidate, ...], tuple[Claim, ...]]:
        """Checks one proof at the levels that are on. Returns the levels at which it was checked, the root hashes that
        remain possible, the likeliest first, and the claim about a later block. Raises VerificationFailed."""
        number, levels = block.header.number, self.settings.levels
        if isinstance(proof, RecordFileProof) and levels & Level.RECORD_PROOF:
            check_record_proof(
                number,
                proof,
                block.record_digest,
                self._books.find(number) if self._books else None,
                signatures_min=self.settings.signatures_min,
                skip_unknown=self.settings.skip_unknown_signers,
            )
            return Level.RECORD_PROOF, roots, ()
        if isinstance(proof, TssProof) and levels & Level.TSS:
            # Only the root hash that is signed remains.
            for each in roots:
                if self._is_signed(SignedRoot(number, number, each.root, proof.signature)):
                    return Level.TSS, (each,), ()
            raise _not_signed(SignedRoot(number, number, roots[0].root, proof.signature))
        if not isinstance(proof, StateProof) or not levels & (Level.STATE_PROOF | Level.TSS):
            return Level(0), roots, ()
        root, claim = check_state_proof(number, roots, block.rules, proof)
        if self.settings.known_roots.get(claim.target, claim.root) != claim.root:
            reason = f"its state proof resolves to {claim.root.hex()}, not to the known root of block {claim.target}"
            raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, number, reason)
        # With a checked signature, only the root hash at which the proof starts remains; else it comes first.
        roots = in_order(roots, root.scheme)
        if levels & Level.TSS:
            signed = SignedRoot(claim.target, number, claim.root, proof.signature or b"")
            if not self._is_signed(signed):
                raise _not_signed(signed)
            roots = (root,)
        return levels & (Level.STATE_PROOF | Level.TSS), roots, (claim,) if levels & Level.STATE_PROOF else ()

    def _is_signed(self, signed: SignedRoot) -> bool:
        """Whether the external verifier accepts a signature. Raises VerificationFailed if it raises an exception."""
        assert self._tss is not None
        try:
            return bool(self._tss.verify_tss(signed))
        except Exception as error:
            reason = f"the external verifier failed: {error!r}"
            raise VerificationFailed(FailureKind.UNKNOWN_ERROR, Level.TSS, signed.proof_of, reason) from error


class BlockVerification(BlockReader):
    """The verification of one block."""

    def __init__(self, verifier: Verifier, number: int | None) -> None:
        super().__init__(number, verifier.settings)
        self._verifier = verifier

    def end(self) -> BlockResult:
        """Ends a complete block, and checks it at all levels except the chain. Raises VerificationFailed."""
        self.finish()
        try:
            return self._verifier.check(self)
        except VerificationFailed as failure:
            self._failure = failure
            raise


def _not_signed(signed: SignedRoot) -> VerificationFailed:
    reason = f"its signature of the root of block {signed.number} is not the ledger's"
    return VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.TSS, signed.proof_of, reason)
