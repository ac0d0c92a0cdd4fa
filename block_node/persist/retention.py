from __future__ import annotations

import msgspec


class BlockRetention(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the stored blocks; None means no limit. The lowest blocks are deleted, but never the highest."""

    blocks: int | None = None
    size_bytes: int | None = None

    def is_exceeded(self, blocks: int, size_bytes: int) -> bool:
        return blocks > 1 and (
            (self.blocks is not None and blocks > self.blocks)
            or (self.size_bytes is not None and size_bytes > self.size_bytes)
        )
