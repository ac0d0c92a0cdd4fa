"""RereadingConsumer: the steps that both consumer machines share. They read the messages of blocks again that were put
off to save memory, and list in checkpoints from where on messages are needed. The module `reread` recognises messages
of finished blocks."""

from __future__ import annotations

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.limits import ConsumerLimits
from cardinal_streams.machines.consumer_events import BadMessage, Checkpoint, ReadAgain
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.machines.reread import NOTHING_READ, Reread
from cardinal_streams.prefixes import Tracked
from cardinal_streams.recent import RecentMap


class RereadingConsumer:
    """The reassembler of the normal feed (the application's topics), and what was read of which source."""

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
        """Begins to read the messages of blocks again that the reassembler had to put off. Returns the event, and by
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

    def _needed_again(self) -> tuple[dict[str, int], set[bytes], dict[str, int]]:
        """Returns three parts of a checkpoint: by source, the lowest offset that is needed for blocks that are
        incomplete or put off; these blocks; and how far each source was read (`Checkpoint.read`)."""
        machine, put_off = self._normal, self._normal.put_off
        needed = machine.low_water()
        for source, offset in put_off.position.items():
            needed[source] = min(offset, needed.get(source, offset))
        read = self._reread.read(machine.high_water())
        if put_off.hashes is None:
            # There are too many blocks to name them, so all messages from their first one on count as unread.
            read = {source: min(end, put_off.position.get(source, end)) for source, end in read.items()}
        return needed, {*machine.incomplete(), *(put_off.hashes or ())}, read
