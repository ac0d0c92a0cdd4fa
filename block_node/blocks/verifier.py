"""Verification of blocks, level by level, as their items arrive. It stores nothing and knows no publisher.

    verifier = Verifier(VerifierSettings(), chain=ChainState())
    block = verifier.begin_block(7)        several may be open at once, in any order
    block.add(items)                       as often as items come; `add_part` for an item in pieces
    result = block.end()                   all levels but the chain
    verifier.link(result)                  the chain: in block order; advances `verifier.chain`

What a publisher can cause is `VerificationFailed`: that block is over, and the verifier unharmed. Work happens in the
calling thread; memory is bounded by `VerifierSettings` and does not grow with the block.
"""

from __future__ import annotations

from collections.abc import Iterable

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.block_reader import BlockReader, ReadBlock
from block_node.blocks.chain import BlockResult, ChainState, Claim, check_claims, check_link, check_number
from block_node.blocks.errors import BlockFormatError, FailureKind, Level, SettingsError, VerificationFailed
from block_node.blocks.hook import SignedRoot, TssVerifier
from block_node.blocks.items import Item
from block_node.blocks.proofs import BlockProof, ProofKind, RecordFileProof, StateProof, TssProof, read_proof
from block_node.blocks.record_proof import check_record_proof
from block_node.blocks.settings import PROOF_LEVELS, VerifierSettings
from block_node.blocks.state_proof import check_state_proof


class Verifier:
    """Checks blocks at the levels of its settings. `chain` may be read and set at any time, for instance back to what
    it was before blocks that could not be stored."""

    def __init__(
        self,
        settings: VerifierSettings | None = None,
        *,
        chain: ChainState | None = None,
        address_books: AddressBooks | None = None,
        tss: TssVerifier | None = None,
    ) -> None:
        """Raises SettingsError where a level is on without what it needs."""
        self.settings = settings or VerifierSettings()
        self.settings.check()
        if self.settings.levels & Level.RECORD_PROOF and address_books is None:
            raise SettingsError("levels: RECORD_PROOF needs an address book")
        if self.settings.levels & Level.TSS and tss is None:
            raise SettingsError("levels: TSS needs an external verifier")
        self.chain = chain or ChainState()
        self._proofs = ProofChecks(self.settings, address_books, tss)

    def begin_block(self, number: int | None = None) -> BlockVerification:
        """Begin a block, whose header must have that number if one is given."""
        return BlockVerification(BlockReader(number, self.settings), self._proofs)

    def link(self, result: BlockResult) -> None:
        """Check that a block continues the chain, and advance it. Nothing changes when that fails."""
        chain = self.chain
        if self.settings.levels & Level.CHAIN:
            check_number(chain, result)
            try:
                check_link(chain, result)
            except VerificationFailed:
                if self.settings.link_record_blocks or set(result.proofs) != {ProofKind.RECORD_FILE}:
                    raise
                chain = ChainState(result.number, None, None, chain.claims)
        if self.settings.levels & Level.STATE_PROOF:
            check_claims(chain, result)
        self.chain = chain.advanced(result, self.settings.claims_max)

    def verify(self, items: Iterable[Item], number: int | None = None) -> BlockResult:
        """A whole block at all levels, the chain too."""
        block = self.begin_block(number)
        block.add(items)
        result = block.end()
        self.link(result)
        return result


class BlockVerification:
    """One block under verification. After a failure every further call raises that failure again."""

    def __init__(self, reader: BlockReader, proofs: ProofChecks) -> None:
        self._reader = reader
        self._proofs = proofs
        self._failure: VerificationFailed | None = None

    @property
    def number(self) -> int | None:
        """The block's number; None while neither the caller nor a header said one."""
        return self._reader.number

    @property
    def item_count(self) -> int:
        """Items so far."""
        return self._reader.item_count

    @property
    def size_bytes(self) -> int:
        """Bytes of the items so far."""
        return self._reader.size_bytes

    def add(self, items: Iterable[Item]) -> None:
        """The next whole items, in order. Fails as soon as it can."""
        self._check_failure()
        try:
            self._reader.add(items if isinstance(items, list | tuple) else list(items))
        except VerificationFailed as failure:
            self._failure = failure
            raise

    def add_part(self, part: bytes, *, last: bool) -> None:
        """The next piece of an item that is not held whole; the first piece begins it, `last` ends it."""
        self._check_failure()
        try:
            self._reader.add_part(part, last=last)
        except VerificationFailed as failure:
            self._failure = failure
            raise

    def end(self) -> BlockResult:
        """The block is complete: its result, at all levels but the chain."""
        self._check_failure()
        try:
            return self._proofs.check(self._reader.finish())
        except VerificationFailed as failure:
            self._failure = failure
            raise

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class ProofChecks:
    """What is checked once all items of a block are there: its root, and its proofs."""

    def __init__(self, settings: VerifierSettings, books: AddressBooks | None, tss: TssVerifier | None) -> None:
        self._settings = settings
        self._books = books
        self._tss = tss

    def check(self, block: ReadBlock) -> BlockResult:
        """The result of a block. Raises VerificationFailed."""
        number, levels = block.header.number, self._settings.levels
        known = self._settings.known_roots.get(number)
        if levels & Level.MERKLE and known is not None and known != block.root:
            reason = f"its root is {block.root.hex()}, which is known to be {known.hex()}"
            raise VerificationFailed(FailureKind.BAD_ROOT, Level.MERKLE, number, reason)
        checked = levels & (Level.STRUCTURE | Level.MERKLE)
        kinds: list[ProofKind] = []
        claims: list[Claim] = []
        for item in block.proofs:
            proof = self._read(item, number)
            kinds.append(proof.kind)
            if isinstance(proof.content, RecordFileProof):
                checked |= self._check_record_file(block, proof.content)
            elif isinstance(proof.content, StateProof):
                level, claim = self._check_state_proof(block, proof.content)
                checked |= level
                claims += claim
            elif isinstance(proof.content, TssProof):
                checked |= self._check_tss(SignedRoot(number, number, block.root, proof.content.signature))
        unchecked = levels & PROOF_LEVELS and not checked & PROOF_LEVELS
        if unchecked and not (self._settings.accept_unchecked_proofs and any(kinds)):
            names = ", ".join(kind.name for kind in kinds)
            reason = f"no level that is on checks its proofs ({names})"
            raise VerificationFailed(FailureKind.UNRECOGNIZED_PROOF_TYPE, Level.STRUCTURE, number, reason)
        return BlockResult(
            number,
            block.root,
            block.footer.previous_root,
            block.footer.all_blocks_root,
            block.item_count,
            block.size_bytes,
            checked,
            tuple(kinds),
            tuple(claims),
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

    def _check_record_file(self, block: ReadBlock, proof: RecordFileProof) -> Level:
        if not self._settings.levels & Level.RECORD_PROOF:
            return Level(0)
        number = block.header.number
        check_record_proof(
            number,
            proof,
            block.record_digest,
            self._books.find(number) if self._books else None,
            signatures_min=self._settings.signatures_min,
            skip_unknown=self._settings.skip_unknown_signers,
        )
        return Level.RECORD_PROOF

    def _check_state_proof(self, block: ReadBlock, proof: StateProof) -> tuple[Level, tuple[Claim, ...]]:
        number = block.header.number
        if not self._settings.levels & (Level.STATE_PROOF | Level.TSS):
            return Level(0), ()
        claim = check_state_proof(number, block.root, proof)
        if self._settings.known_roots.get(claim.target, claim.root) != claim.root:
            reason = f"its state proof resolves to {claim.root.hex()}, not to the known root of block {claim.target}"
            raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.STATE_PROOF, number, reason)
        signed = SignedRoot(claim.target, number, claim.root, proof.signature or b"")
        level = self._check_tss(signed)
        if self._settings.levels & Level.STATE_PROOF:
            return level | Level.STATE_PROOF, (claim,)
        return level, ()

    def _check_tss(self, signed: SignedRoot) -> Level:
        if not self._settings.levels & Level.TSS:
            return Level(0)
        assert self._tss is not None
        try:
            good = self._tss.verify_tss(signed)
        except Exception as error:
            reason = f"the external verifier failed: {error!r}"
            raise VerificationFailed(FailureKind.UNKNOWN_ERROR, Level.TSS, signed.proof_of, reason) from error
        if not good:
            reason = f"its signature of the root of block {signed.number} is not the ledger's"
            raise VerificationFailed(FailureKind.BAD_BLOCK_PROOF, Level.TSS, signed.proof_of, reason)
        return Level.TSS
