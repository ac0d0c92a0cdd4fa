"""Records the newest block that publishers have offered while the node lacked earlier ones, and whether the node
approaches it: specs/block_publish.md, "Base Protocol". It fetches nothing; backfill does."""

from __future__ import annotations

from block_node.events import CatchUpStalled

CONTACTS_MAX = 3
"""How many contacts (offers of too high blocks) in a row without progress mean that the node is stalled."""
CONTACT_INTERVAL_S = 1.0
"""Offers within this time count as one contact, because several publishers often connect at once."""


class CatchUp:
    """The progress of the node toward the newest block that publishers have offered.

    Invariant: `target` is the highest offered block that was too high for the node and that the node has not reached.
    """

    def __init__(self) -> None:
        self.target: int | None = None
        self.stalled = False
        self._distance = 0
        self._contacts = 0
        self._contact_s = 0.0

    def offered(self, block_number: int, last_block: int | None, now_s: float) -> CatchUpStalled | None:
        """Records an offer of a block that is too high for the node. Returns a report when the node becomes stalled."""
        before = self.target
        self.target = block_number if before is None else max(before, block_number)
        distance = self.target - (-1 if last_block is None else last_block)
        if before is None or distance < self._distance:
            self.stalled = False
            self._distance, self._contacts, self._contact_s = distance, 0, now_s
            return None
        if now_s < self._contact_s + CONTACT_INTERVAL_S:
            return None
        self._contacts += 1
        self._distance, self._contact_s = distance, now_s
        if self.stalled or self._contacts < CONTACTS_MAX:
            return None
        self.stalled = True
        return CatchUpStalled(self.target, last_block, self._contacts)

    def reached(self, last_block: int) -> None:
        if self.target is not None and last_block >= self.target:
            self.target = None
            self.stalled = False
