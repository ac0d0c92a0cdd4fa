"""CatchUp: watches the progress of the node toward the blocks that publishers offer (specs/block_publish.md, "Base
Protocol"). PluginWatch: notices plugins that hang. No I/O."""

from __future__ import annotations

from block_node.events import CatchUpStalled, NodeFailure

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
        return CatchUpStalled(self.target, last_block)

    def reached(self, last_block: int) -> None:
        if self.target is not None and last_block >= self.target:
            self.target = None
            self.stalled = False


class PluginWatch:
    """Notices a plugin that hangs: for `patience_s` seconds, a full plugin takes no event, or a backfilled block is not
    stored."""

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._patience_s = patience_s
        self._took_s = self._stored_s = now_s
        self._full_at: int | None = None
        self._awaited_block: int | None = None

    def check(self, now_s: float, *, full_at: int | None, awaited_block: int | None) -> NodeFailure | None:
        """Returns the failure of the node if a plugin hangs, else None. full_at: see `Facility.full_at`.

        awaited_block: the verified, backfilled block to be stored next."""
        # Plugins with much to do can be full, and have a block to store, at every single check. They hang only if they
        # are still at the same event, or at the same block.
        if full_at is None or full_at != self._full_at:
            self._took_s = now_s
        if awaited_block is None or awaited_block != self._awaited_block:
            self._stored_s = now_s
        self._full_at, self._awaited_block = full_at, awaited_block
        if min(self._took_s, self._stored_s) + self._patience_s > now_s:
            return None
        took_nothing = self._took_s < self._stored_s
        # The failure ends every stream, so the times start anew. Otherwise every tick would report the failure again.
        self._took_s = self._stored_s = now_s
        if took_nothing or awaited_block is None:
            return NodeFailure(f"the plugins took nothing for {self._patience_s:g} s")
        return NodeFailure(f"block {awaited_block} was not stored in {self._patience_s:g} s", True, awaited_block)
