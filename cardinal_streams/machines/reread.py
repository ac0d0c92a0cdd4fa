"""What comes again after a restart, and was done with before. It reads nothing.

Reading goes on at the lowest offset that is still needed of each source, so much else comes again. Of a block that is
done with, some messages lie behind that offset and others before it: it would begin anew, never be complete, and hold
its sources' positions where it began. So a checkpoint says how far each source was read, and which blocks were still
needed; of what lies before that, only messages of those blocks count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cardinal_streams.message.types import Message, Ping, Reorg, ReorgComplete

OF_NO_BLOCK = (Reorg, ReorgComplete, Ping)


class Reread:
    """`read` maps sources to the offset up to which they were read before, `needed` has the hashes of blocks.

    Invariant: `left` has the sources of which no delivery was new yet.
    """

    __slots__ = ("_needed", "left")

    def __init__(self, read: Mapping[str, int], needed: Iterable[bytes]) -> None:
        self.left = dict(read)
        self._needed = frozenset(needed)

    def is_done(self, message: Message, source: str, offset: int) -> bool:
        """Whether the message is of a block that was done with before. The offsets of a source grow."""
        end = self.left.get(source)
        if end is None or isinstance(message, OF_NO_BLOCK):
            return False
        if offset >= end:
            del self.left[source]
            return False
        return message.hash not in self._needed

    def read(self, high_water: Mapping[str, int]) -> dict[str, int]:
        """How far each source was read by now, before or again."""
        read = {source: offset + 1 for source, offset in high_water.items()}
        for source, end in self.left.items():
            read[source] = max(end, read.get(source, 0))
        return read

    def needed(self, known: Iterable[bytes], is_finished: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """The blocks that are needed by now: those known, and those that have still to come again."""
        to_come = (hash_ for hash_ in self._needed if not is_finished(hash_)) if self.left else ()
        return tuple(sorted({*known, *to_come}))


NOTHING_READ = Reread({}, ())
