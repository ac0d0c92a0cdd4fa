"""What the two consumer machines share when blocks were put off to save memory: the parts of their checkpoints, and the
beginning of another reading. The module `reread` recognises what need not be read again."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cardinal_streams.machines.consumer_events import Checkpoint, ReadAgain
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.machines.reread import NOTHING_READ, Reread


def begin_again(
    machine: Reassembler, reread: Reread, before: Checkpoint, channels: Collection[str]
) -> tuple[ReadAgain, Checkpoint, Reread, dict[str, int]]:
    """Begins to read again for what was put off. The messages of all other blocks that were read do not count again.

    `channels`: the sources that are reorg channels.
    Returns the event; `before` and `reread` as they are from now on; and by channel, from where it must be read again.
    """
    seen = machine.high_water()
    known = before.position | {source: offset + 1 for source, offset in seen.items()}
    ends = reread.read(seen)
    put_off = machine.begin_again({*known} - (set(channels) - machine.put_off.position.keys()))
    position = {
        source: min(offset, put_off.position.get(source, offset))
        for source, offset in (put_off.position | known).items()
        if source not in channels
    }
    of_channels = {source: offset for source, offset in put_off.position.items() if source in channels}
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
        # There are too many blocks to name them, so every message counts from the first of them on.
        read = {source: min(end, put_off.position.get(source, end)) for source, end in read.items()}
    return needed, {*machine.incomplete(), *(put_off.hashes or ())}, read
