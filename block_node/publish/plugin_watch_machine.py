"""Watches whether the plugins still work: whether they take items, and whether they store backfilled blocks. Pure.

A block that a publisher sends has its own deadlines (`block_node.publish.block_machine.BlockInFlight`). Without this
watch, a plugin that hangs while no block is in flight would never be noticed.
"""

from __future__ import annotations

from block_node.events import NodeFailed


class PluginWatch:
    """The last times at which the plugins took items, and at which no backfilled block waited to be stored.

    patience_s: how long, in seconds, either may take before the node counts as failed.
    """

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._patience_s = patience_s
        self._took_s = self._stored_s = now_s

    def check(self, now_s: float, *, is_full: bool, awaited_block: int | None) -> NodeFailed | None:
        """Returns the failure of the node, or None.

        is_full: whether the plugins take no items. awaited_block: a verified, backfilled block that must be stored
        next, or None.
        """
        if not is_full:
            self._took_s = now_s
        if awaited_block is None:
            self._stored_s = now_s
        if min(self._took_s, self._stored_s) + self._patience_s > now_s:
            return None
        took_nothing = self._took_s < self._stored_s
        # The failure ends every stream, so the times start anew. Otherwise every tick would report the failure again.
        self._took_s = self._stored_s = now_s
        if took_nothing or awaited_block is None:
            return NodeFailed(f"the plugins took nothing for {self._patience_s:g} s")
        return NodeFailed(f"block {awaited_block} was not stored in {self._patience_s:g} s", True, awaited_block)
