"""Notes what must be read again, and recognises messages of finished blocks that arrive again.

After a restart, or for blocks that were put off to save memory, each source ("topic:partition") is read from the lowest
offset that is still needed. Some messages of finished blocks then arrive again, but not always all of such a block: it
would be begun again, never become complete, and the saved offsets would no longer grow. So a checkpoint has the offset
up to which each source was read (`read`), and the blocks that were still needed (`needed`): a message before that
offset is used only if its block is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cardinal_streams.message.types import Message, Ping, Reorg, ReorgAbandoned, ReorgComplete

OF_NO_BLOCK = (Reorg, ReorgComplete, ReorgAbandoned, Ping)


class Reread:
    """Recognises repeated messages of finished blocks. Invariant: `left` has the sources that were not read again to
    their earlier ends, with these ends."""

    def __init__(self, read: Mapping[str, int], needed: Iterable[bytes]) -> None:
        self.left = dict(read)
        self._needed = frozenset(needed)

    def is_done(self, message: Message, source: str, offset: int) -> bool:
        """Whether the message is part of a block that was finished before. Offsets of a source must grow."""
        end = self.left.get(source)
        if end is None or isinstance(message, OF_NO_BLOCK):
            return False
        if offset >= end:
            del self.left[source]
            return False
        return message.hash not in self._needed

    def read(self, high_water: Mapping[str, int]) -> dict[str, int]:
        """Returns, by source, the offset up to which it was read, before or after the restart. high_water: by source,
        the highest offset that was read after the restart."""
        read = {source: offset + 1 for source, offset in high_water.items()}
        for source, end in self.left.items():
            read[source] = max(end, read.get(source, 0))
        return read

    def needed(self, known: Iterable[bytes], is_finished: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """Returns the hashes of the blocks in `known`, and of blocks whose messages must still arrive again."""
        to_come = (hash_ for hash_ in self._needed if not is_finished(hash_)) if self.left else ()
        return tuple(sorted({*known, *to_come}))


NOTHING_READ = Reread({}, ())


class PutOff:
    """The blocks that were dropped to save memory, and that must be read again."""

    def __init__(self, hashes_max: int) -> None:
        self._hashes_max = hashes_max
        # By source, the lowest offset of a message of these blocks; and their hashes, or None if there are too many.
        self.position: dict[str, int] = {}
        self.hashes: set[bytes] | None = set()

    def add(self, hash_: bytes, offsets: Mapping[str, int]) -> None:
        if self.hashes is not None:
            self.hashes.add(hash_)
            if len(self.hashes) > self._hashes_max:
                self.hashes = None
        for source, offset in offsets.items():
            self.position[source] = min(offset, self.position.get(source, offset))
