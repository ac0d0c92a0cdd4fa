"""The plugin that verifies blocks while their items arrive, and publishes the results. The checks are in `blocks`.

Blocks from publishers continue the chain. A block from a backfill is verified as a whole. If it is the next block
of the chain, it continues the chain, too. Otherwise it must have the root hash that the block after it names. If a
block of the chain could not be stored, or the node or this plugin failed, the chain is reset to the last block on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from block_node.blocks.chain import BlockResult, ChainState
from block_node.blocks.errors import FailureKind, Level, VerificationFailed
from block_node.blocks.merkle import names_of
from block_node.blocks.verifier import BlockVerification, Verifier
from block_node.events import (
    BackfilledBlockNotification,
    BlockBegun,
    BlockDropped,
    BlockEnded,
    BlockOrigin,
    ItemEvent,
    NodeFailure,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin


class Verification(Plugin):
    """The plugin that verifies blocks. Invariant: `_unstored` has the root hash of each block by which the chain has
    grown since its last reset, until a block with this number and root hash is stored."""

    name: ClassVar[str] = "verification"

    def __init__(self, facility: Facility, verifier: Verifier, durable_chain: Callable[[], ChainState]) -> None:
        super().__init__(facility)
        self._verifier = verifier
        self._durable_chain = durable_chain
        self._attempt = 0
        self._block: BlockVerification | None = None
        self._unstored: dict[int, bytes] = {}

    def started(self) -> None:
        super().started()
        self._go_back()

    def handle_items(self, event: ItemEvent) -> None:
        # Items are ignored if the beginning of their attempt did not come here, or if the attempt has failed.
        if isinstance(event, BlockBegun):
            self._attempt, self._block = event.attempt, self._verifier.begin_block(event.block_number)
        elif self._block is None or event.attempt != self._attempt:
            return
        elif isinstance(event, BlockDropped):
            self._block = None
        else:
            try:
                if isinstance(event, BlockEnded):
                    result = self._verifier.link(self._block.end())
                    self._block = None
                    self._publish_success(result, event.attempt, BlockOrigin.PUBLISHER)
                else:
                    self._block.add(event.items, event.piece)
            except VerificationFailed as failure:
                self._block = None
                self._publish_failure(event.block_number, event.attempt, BlockOrigin.PUBLISHER, failure)

    def handle_notification(self, notification: Notification) -> None:
        if isinstance(notification, BackfilledBlockNotification):
            self._verify_whole(notification)
        elif isinstance(notification, PersistedNotification):
            self._persisted(notification)
        elif isinstance(notification, NodeFailure):
            self._block = None
            self._go_back()

    def _persisted(self, notification: PersistedNotification) -> None:
        number, next_number = notification.block_number, self._verifier.chain.next_number
        # The block was verified before the last reset of the chain. If it is stored, the chain goes on after it.
        if next_number is not None and number >= next_number:
            self._go_back()
        elif notification.succeeded:
            # If the root hash differs, another block was stored, and the failure of the block of the chain follows.
            if self._unstored.get(number) == notification.root:
                del self._unstored[number]
        elif number in self._unstored:
            # Only a block of the chain takes the chain back. If a failed block of history did so, the chain would lose
            # the newest blocks, which are still being stored, and refuse the right next block of a publisher.
            self._go_back()

    def _go_back(self) -> None:
        self._verifier.chain = self._durable_chain()
        self._unstored.clear()

    def _verify_whole(self, backfilled: BackfilledBlockNotification) -> None:
        number, next_number = backfilled.block_number, self._verifier.chain.next_number
        # A block that is too high, or is being stored already, cannot be verified now; nobody is to blame.
        reason = None
        if next_number is not None and number > next_number:
            reason = f"block {next_number} comes first"
        elif backfilled.roots or next_number is None:
            # If the chain names the root hash of this block, no other block can be stored under this number.
            reason = None
        elif (self._durable_chain().next_number or 0) <= number < next_number:
            reason = "it is being stored"
        if reason is not None:
            failure = FailureKind.CANCELLED.value
            self.facility.publish(
                VerificationNotification(
                    number, 0, backfilled.source, False, failure=failure, informational=True, reason=reason
                )
            )
            return
        # Only the next block continues the chain. An older block is verified on its own.
        block = self._verifier.begin_block(number)
        try:
            block.add(backfilled.items)
            result = _with_roots(block.end(), backfilled.roots)
            continues = next_number is None or number == next_number
            if continues:
                result = self._verifier.link(result)
        except VerificationFailed as error:
            self._publish_failure(number, 0, backfilled.source, error)
        else:
            self._publish_success(result, 0, backfilled.source, continues=continues)

    def _publish_success(
        self, result: BlockResult, attempt: int, source: BlockOrigin, *, continues: bool = True
    ) -> None:
        if continues:
            self._unstored[result.number] = result.root
        state = self._verifier.chain.encode() if continues else b""
        self.facility.publish(
            VerificationNotification(
                result.number,
                attempt,
                source,
                True,
                result.root,
                verifier_state=state,
                previous_root=result.previous_root,
                other_roots=result.other_roots,
                corrected_root=result.corrected,
            )
        )

    def _publish_failure(self, number: int, attempt: int, source: BlockOrigin, failure: VerificationFailed) -> None:
        next_number = self._verifier.chain.next_number
        # The block was verified from another source in the meantime, so nobody caused this failure.
        superseded = failure.kind is FailureKind.BAD_CHAIN_LINK and next_number is not None and number < next_number
        self.facility.publish(
            VerificationNotification(
                number,
                attempt,
                source,
                False,
                failure=failure.kind.value,
                informational=superseded or failure.kind is FailureKind.CANCELLED,
                reason=str(failure),
            )
        )


def _with_roots(result: BlockResult, roots: tuple[bytes, ...]) -> BlockResult:
    """Returns the result with only those root hashes that are in `roots`, if any are given. Raises VerificationFailed
    if none is left."""
    if not roots:
        return result
    fitting = tuple(each for each in result.roots if each.root in roots)
    if not fitting:
        named = " or ".join(root.hex() for root in roots)
        reason = f"its root is {names_of(result.roots)}, and the footer of the block above names {named}"
        raise VerificationFailed(FailureKind.BAD_ROOT, Level.CHAIN, result.number, reason)
    return msgspec.structs.replace(result, roots=fitting)
