"""The newest block that publishers have offered while the node was behind, and whether the node gets closer to it.

specs/block_publish.md, "Base Protocol": the node must record the offered number, keep trying to catch up to it, and
detect that it does not get closer with each connection. It fetches nothing; backfill does.
"""

from __future__ import annotations

import msgspec

CONTACTS_MAX = 3
"""The number of contacts in a row without progress after which the node reports that it is stalled."""
CONTACT_INTERVAL_S = 1.0
"""Offers within this many seconds count as one contact, because several publishers often connect at once."""


class Stalled(msgspec.Struct, frozen=True):
    """The node has not come closer to the target block in this number of contacts."""

    target_block: int
    contacts: int


class CatchUp:
    """The progress of the node toward the newest offered block.

    Invariant: `target` is the highest block that was offered and not reached, or None if the node is not behind.
    """

    def __init__(self) -> None:
        self.target: int | None = None
        self.stalled = False
        self._distance = 0
        self._contacts = 0
        self._contact_s = 0.0

    def offered(self, block_number: int, last_block: int | None, now_s: float) -> Stalled | None:
        """Notes that a publisher offered a block that is too high. Returns a report when the node becomes stalled, else
        None."""
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
        return Stalled(self.target, self._contacts)

    def reached(self, last_block: int) -> None:
        """Notes that the node has all blocks up to this one."""
        if self.target is not None and last_block >= self.target:
            self.target = None
            self.stalled = False
