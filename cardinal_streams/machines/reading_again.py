"""The steps that both consumer machines share when blocks were put off to save memory: parts of checkpoints, and the
beginning of another reading. The module `reread` recognises messages of finished blocks."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cardinal_streams.machines.consumer_events import Checkpoint, ReadAgain
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.machines.reread import NOTHING_READ, Reread


def begin_again(
    machine: Reassembler, reread: Reread, before: Checkpoint, channels: Collection[str]
) -> tuple[ReadAgain, Checkpoint, Reread, dict[str, int]]:
    """Begins to read the messages of blocks again that the machine had to put off. Returns the event, the new `before`
    and `reread`, and by source the offset from which reorg channels must be read again."""
    # How far each source was read, before the machine forgets it.
    seen = machine.high_water()
    known = before.position | {source: offset + 1 for source, offset in seen.items()}
    ends = reread.read(seen)
    put_off = machine.begin_again({*known} - (set(channels) - machine.put_off.position.keys()))
    # Reading continues where it was, but for the sources with messages of these blocks.
    position = {
        source: min(offset, put_off.position.get(source, offset))
        for source, offset in (put_off.position | known).items()
        if source not in channels
    }
    of_channels = {source: offset for source, offset in put_off.position.items() if source in channels}
    # More blocks than could be named: then every message counts.
    if put_off.hashes is None:
        reread = NOTHING_READ
    else:
        blocks = {*put_off.hashes, *machine.incomplete()}
        reread = Reread(ends, reread.needed(blocks, machine.has_finished))
    return ReadAgain(position), msgspec.structs.replace(before, position=position), reread, of_channels


def needed_again(machine: Reassembler, reread: Reread) -> tuple[dict[str, int], set[bytes], dict[str, int]]:
    """Returns three parts of a checkpoint: by source, the lowest offset that is needed for blocks that are incomplete
    or put off; these blocks; and how far each source was read (`Checkpoint.read`)."""
    put_off = machine.put_off
    needed = machine.low_water()
    for source, offset in put_off.position.items():
        needed[source] = min(offset, needed.get(source, offset))
    read = reread.read(machine.high_water())
    if put_off.hashes is None:
        # There are too many blocks to name them, so all messages from their first one on count as unread.
        read = {source: min(end, put_off.position.get(source, end)) for source, end in read.items()}
    return needed, {*machine.incomplete(), *(put_off.hashes or ())}, read
