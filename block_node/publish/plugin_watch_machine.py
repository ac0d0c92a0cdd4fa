"""Watches whether the plugins still accept items, and whether they still store backfilled blocks. No I/O."""

from __future__ import annotations

from block_node.events import NodeFailure


class PluginWatch:
    """Notices a plugin that hangs: for `patience_s` seconds, a full plugin takes no event, or a backfilled block is not
    stored. The blocks of publishers have deadlines of their own."""

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._patience_s = patience_s
        self._took_s = self._stored_s = now_s
        self._full_at: int | None = None
        self._awaited_block: int | None = None

    def check(self, now_s: float, *, full_at: int | None, awaited_block: int | None) -> NodeFailure | None:
        """Returns a failure of the node, or None.

        full_at: how many events the full plugins have taken; None if no plugin is full (`Facility.full_at`).
        awaited_block: the verified, backfilled block to be stored next.
        """
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
