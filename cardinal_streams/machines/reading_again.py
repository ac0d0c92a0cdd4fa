"""RereadingConsumer: the steps that both consumer machines share. They read again the messages of blocks that were put
off to save memory, and list in checkpoints from where on messages are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.limits import ConsumerLimits, RecentMap
from cardinal_streams.machines.events import BadMessage, Checkpoint, ReadAgain
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import Message, Ping, Reorg, ReorgAbandoned, ReorgComplete
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked

OF_NO_BLOCK = (Reorg, ReorgComplete, ReorgAbandoned, Ping)


class Reread:
    """Recognises repeated messages of finished blocks, when sources are read again after a restart, or for blocks that
    were put off. Such a block would be begun anew and never become complete, since not all its messages come again. So
    a message before the offset up to which its source was read (`read`) counts only if its block is still needed.
    Invariant: `left` has the sources that were not read again to their earlier ends, with these ends."""

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


class RereadingConsumer:
    """The reassembler of the normal feed (the application's topics), and the offsets read so far, by source."""

    def __init__(
        self, tracked: Tracked, checkpoint: Checkpoint, limits: ConsumerLimits, *, keeps_oldest: bool = False
    ) -> None:
        self.limits = limits
        self._before = checkpoint
        self._normal = Reassembler(tracked, limits.reassembly, keeps_oldest=keeps_oldest)
        self._normal.resume_given_up(checkpoint.given_up, checkpoint.read)
        self._reread = Reread(checkpoint.read, checkpoint.needed)
        # By source of a reorg channel, the hash of the common ancestor; None for channels in a checkpoint's history.
        self._channel_sources: RecentMap[str, bytes | None] = RecentMap(limits.reorgs_max)
        for source in checkpoint.history:
            self._channel_sources.put(source, None)
        self._bad_messages = 0

    def _bad_message(self, source: str, offset: int, error: MessageError) -> BadMessage:
        self._bad_messages += 1
        return BadMessage(source, offset, error)

    def _begin_again(self) -> tuple[ReadAgain, dict[str, int]]:
        """Begins to read again the messages of blocks that the reassembler had to put off. Returns the event, and by
        source the offset from which reorg channels must be read again."""
        machine, channels = self._normal, self._channel_sources.keys()
        # How far each source was read, before the reassembler forgets it.
        seen = machine.high_water()
        known = self._before.position | {source: offset + 1 for source, offset in seen.items()}
        ends = self._reread.read(seen)
        put_off = machine.begin_again({*known} - (channels - machine.put_off.position.keys()))
        # Reading continues where it was, but for the sources with messages of these blocks.
        position = {
            source: min(offset, put_off.position.get(source, offset))
            for source, offset in (put_off.position | known).items()
            if source not in channels
        }
        of_channels = {source: offset for source, offset in put_off.position.items() if source in channels}
        # More blocks than could be named: then every message counts.
        if put_off.hashes is None:
            self._reread = NOTHING_READ
        else:
            blocks = {*put_off.hashes, *machine.incomplete()}
            self._reread = Reread(ends, self._reread.needed(blocks, machine.has_finished))
        self._before = msgspec.structs.replace(self._before, position=position)
        return ReadAgain(position), of_channels

    def _checkpoint(self, held: Iterable[CompleteBatch]) -> tuple[Checkpoint, set[str]]:
        """Returns a checkpoint from which a consumer has the complete blocks in `held` and those that are incomplete or
        put off, with the offsets of reorg channels in `position`; and the sources whose offset is still needed."""
        machine, put_off = self._normal, self._normal.put_off
        # 1. By source, the lowest offset that is needed for these blocks.
        needed, blocks = machine.low_water(), {*machine.incomplete(), *(put_off.hashes or ())}
        places = [put_off.position]
        for batch in held:
            blocks.add(batch.hash)
            places.append(batch.offsets)
        for source, offset in (each for place in places for each in place.items()):
            needed[source] = min(offset, needed.get(source, offset))
        # 2. Reading continues after the last read message, or at the first needed message. A source that brought no
        # message since keeps its old offset.
        seen = machine.high_water()
        before = self._before.position | self._before.history
        position = before | {source: offset + 1 for source, offset in seen.items()}
        for source, offset in needed.items():
            position[source] = min(offset, position.get(source, offset))
        # 3. How far each source was read. If there are too many put-off blocks to name them, all messages from their
        # first one on count as unread.
        read = self._reread.read(seen)
        if put_off.hashes is None:
            read = {source: min(end, put_off.position.get(source, end)) for source, end in read.items()}
        hashes = self._reread.needed(blocks, machine.has_finished)
        made = Checkpoint(start=None, position=position, read=read, needed=hashes, given_up=machine.given_up())
        return made, needed.keys() | (before.keys() - seen.keys())
