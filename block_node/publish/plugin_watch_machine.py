"""Watches whether the plugins still accept items, and whether they still store backfilled blocks. No I/O."""

from __future__ import annotations

from block_node.events import NodeFailure


class PluginWatch:
    """Notices a plugin that hangs: for `patience_s` seconds, the plugins accept no items, or a backfilled block is not
    stored. The blocks of publishers have deadlines of their own."""

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._patience_s = patience_s
        self._took_s = self._stored_s = now_s

    def check(self, now_s: float, *, is_full: bool, awaited_block: int | None) -> NodeFailure | None:
        """Returns a failure of the node, or None. awaited_block: the verified, backfilled block to be stored next."""
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
            return NodeFailure(f"the plugins took nothing for {self._patience_s:g} s")
        return NodeFailure(f"block {awaited_block} was not stored in {self._patience_s:g} s", True, awaited_block)
