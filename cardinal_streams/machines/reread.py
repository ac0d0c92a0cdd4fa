"""Recognises messages that come again after a restart although their block is finished. This module reads no messages
itself.

After a restart, each source is read from the lowest offset that is still needed, so messages of finished blocks come
again. Some messages of such a block may lie before that offset: the block would begin anew, never become complete, and
hold its sources' positions. A checkpoint therefore says how far each source was read, and which blocks were still
needed. Before that offset, only messages of those blocks count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cardinal_streams.message.types import Message, Ping, Reorg, ReorgComplete

OF_NO_BLOCK = (Reorg, ReorgComplete, Ping)


class Reread:
    """Recognises repeated messages of finished blocks. `read` maps each source to the offset up to which it was read
    before. `needed` has the hashes of the blocks that were still needed.

    Invariant: `left` has the sources that have not delivered a new message yet.
    """

    __slots__ = ("_needed", "left")

    def __init__(self, read: Mapping[str, int], needed: Iterable[bytes]) -> None:
        self.left = dict(read)
        self._needed = frozenset(needed)

    def is_done(self, message: Message, source: str, offset: int) -> bool:
        """Whether the message is part of a block that was finished before. The offsets of a source must grow from call
        to call."""
        end = self.left.get(source)
        if end is None or isinstance(message, OF_NO_BLOCK):
            return False
        if offset >= end:
            del self.left[source]
            return False
        return message.hash not in self._needed

    def read(self, high_water: Mapping[str, int]) -> dict[str, int]:
        """By source, the offset up to which it was read, before or after the restart."""
        read = {source: offset + 1 for source, offset in high_water.items()}
        for source, end in self.left.items():
            read[source] = max(end, read.get(source, 0))
        return read

    def needed(self, known: Iterable[bytes], is_finished: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """The hashes of the blocks that are still needed: those in `known`, and those whose messages have still to come
        again."""
        to_come = (hash_ for hash_ in self._needed if not is_finished(hash_)) if self.left else ()
        return tuple(sorted({*known, *to_come}))


NOTHING_READ = Reread({}, ())
