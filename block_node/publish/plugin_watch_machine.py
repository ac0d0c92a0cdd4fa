"""Whether the plugins still work: they take items, and they store blocks that came by backfill. Pure.

A block that a publisher sends has deadlines of its own (`block_node.publish.block_machine.BlockInFlight`). Without this
watch, a plugin that hangs with nothing in flight would never be noticed.
"""

from __future__ import annotations

from block_node.events import NodeFailed


class PluginWatch:
    """When the plugins were last seen to take items, and when no backfilled block last waited to be stored.

    patience_s: how long either may take before the node has failed.
    """

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._patience_s = patience_s
        self._took_s = self._stored_s = now_s

    def check(self, now_s: float, *, is_full: bool, awaited_block: int | None) -> NodeFailed | None:
        """The failure, if there is one now.

        is_full: the plugins take no items. awaited_block: a block that came by backfill, was verified, and is to be
        stored next.
        """
        if not is_full:
            self._took_s = now_s
        if awaited_block is None:
            self._stored_s = now_s
        if min(self._took_s, self._stored_s) + self._patience_s > now_s:
            return None
        took_nothing = self._took_s < self._stored_s
        # Every stream ends with the failure, so the plugins have their time anew; else each tick would report it.
        self._took_s = self._stored_s = now_s
        if took_nothing or awaited_block is None:
            return NodeFailed(f"the plugins took nothing for {self._patience_s:g} s")
        return NodeFailed(f"block {awaited_block} was not stored in {self._patience_s:g} s", True, awaited_block)
