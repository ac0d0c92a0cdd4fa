"""The consumer machine of applications that want each complete block at once, without a chain.

Blocks of forks are returned too. Blocks are taken from the normal feed (the application's topics) and from reorg
channels, each block once. A reorg channel, a topic with the blocks of one reorg, is read beside the normal feed from
its announcement on, until too many other reorgs were announced after it. The machine does no I/O."""

from __future__ import annotations

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.limits import DEFAULT_CONSUMER_LIMITS, ConsumerLimits
from cardinal_streams.machines import events
from cardinal_streams.machines.consumer_machine import NEW
from cardinal_streams.machines.events import Completed, ConsumerEvent
from cardinal_streams.machines.reading_again import RereadingConsumer
from cardinal_streams.message.messages import OF_REORGS, Reorg, ReorgAbandoned, ReorgComplete, decode
from cardinal_streams.prefixes import TRACK_ALL, Tracked


class UnorderedConsumer(RereadingConsumer):
    """The consumer machine without a chain, with the methods of `consumer_machine.ChainConsumer`.

    Instead of `ChainUpdate` and `Revert` it returns `Completed`. After a restart, a block can be returned again if its
    messages are delivered again. Invariant: `_unfinished` has, by hash, the returned blocks that the application has
    not finished."""

    def __init__(
        self,
        *,
        tracked: Tracked = TRACK_ALL,
        checkpoint: events.Checkpoint = NEW,
        limits: ConsumerLimits = DEFAULT_CONSUMER_LIMITS,
    ) -> None:
        super().__init__(tracked, checkpoint, limits)
        # The counts of messages and of completed blocks when the last reading of put-off blocks began. `_again`: the
        # number of messages that this reading took; None while it runs.
        self._began_again_at = self._completed_before = 0
        self._again: int | None = 0
        self._unfinished: dict[bytes, Completed] = {}
        self._open = {reorg.hash: reorg.number for reorg in checkpoint.open_reorgs}

    @property
    def feeds(self) -> events.Feeds:
        """The feeds that may be read now. While the application has too many unfinished blocks, no feed may be read."""
        if len(self._unfinished) >= self.limits.unfinished_max:
            return events.Feeds(normal=False, channels=())
        return events.Feeds(normal=True, channels=tuple(self._open))

    @property
    def channels(self) -> tuple[bytes, ...]:
        """The open reorg channels, by the hash of their common ancestor."""
        return tuple(self._open)

    def receive(self, key: bytes, value: bytes, source: str, offset: int) -> list[ConsumerEvent | Completed]:
        """Takes a message of the normal feed (the application's topics), and returns the events that it causes."""
        out: list[ConsumerEvent | Completed] = []
        try:
            message = decode(key, value, self.limits.message)
        except MessageError as error:
            return [self._bad_message(source, offset, error)]
        # Messages of blocks that were finished before the restart do not begin these blocks again.
        if self._reread.left and self._reread.is_done(message, source, offset):
            self._normal.skip(source, offset)
            return out
        for event in self._normal.receive(message, source, offset):
            if isinstance(event, Reorg):
                self._announce(event, out)
            # Ends of sections and old blocks mean nothing without a chain.
            elif not isinstance(event, ReorgComplete | ReorgAbandoned | events.Outdated):
                if isinstance(event, Completed):
                    self._unfinished[event.batch.hash] = event
                out.append(event)
        if self._normal.put_off.position and self._normal.may_read_again(at_end=False):
            self._read_again(out)
        return out

    def at_end(self) -> list[ConsumerEvent | Completed]:
        """Returns the events for the present end of all feeds: a `ReadAgain` if blocks were put off to save
        memory. If reading again has completed no block, it is repeated only after as many new messages as were read
        again: most of the put-off blocks may lack deleted messages."""
        out: list[ConsumerEvent | Completed] = []
        machine, statistics = self._normal, self._normal.statistics()
        if not machine.put_off.position:
            machine.keeps_oldest = False
            return out
        # The last reading ends here, so its length in messages is known now.
        since = statistics.messages - self._began_again_at
        if self._again is None:
            self._again = since
        # A reading that completed no block is repeated only after as many further messages as it took.
        is_useful = statistics.completed > self._completed_before
        if is_useful or since >= 2 * self._again or machine.may_read_again(at_end=True):
            self._completed_before, self._began_again_at, self._again = statistics.completed, statistics.messages, None
            machine.keeps_oldest = True
            self._read_again(out)
        else:
            # Until the next reading, the newest blocks stay in memory.
            machine.keeps_oldest = False
        return out

    def receive_history(self, key: bytes, value: bytes, source: str, offset: int) -> list[ConsumerEvent | Completed]:
        """Takes a message that is read again from a closed reorg channel (`Checkpoint.history`)."""
        self._channel_sources.put(source, None)
        return [] if key[:1] in OF_REORGS else self.receive(key, value, source, offset)

    def receive_reorg(
        self, ancestor: bytes, key: bytes, value: bytes, source: str, offset: int
    ) -> list[ConsumerEvent | Completed]:
        """Takes a message from the channel of the reorg with this common ancestor. Messages that begin or end a section
        are ignored, because a redundant producer can still write to the channel."""
        self._channel_sources.put(source, ancestor)
        return [] if key[:1] in OF_REORGS else self.receive(key, value, source, offset)

    def done(self, event: Completed) -> None:
        """Notes that the application has finished this block. Raises `ValueError` at a second call."""
        # The events are compared by identity: the same block can be returned twice.
        if self._unfinished.get(event.batch.hash) is not event:
            raise ValueError("this block is not among those that are unfinished")
        del self._unfinished[event.batch.hash]

    def checkpoint(self) -> events.Checkpoint:
        """Returns the checkpoint to save now, with which a consumer misses no incomplete or unfinished block."""
        made, needed = self._checkpoint(event.batch for event in self._unfinished.values())
        # Offsets of reorg channels are listed apart: in `open_reorgs`, or in `history` if closed and still needed.
        position, channels = made.position, dict(self._channel_sources)
        by_ancestor = {ancestor: position.get(source, 0) for source, ancestor in channels.items()}
        offsets = {reorg.hash: reorg.offset for reorg in self._before.open_reorgs} | by_ancestor
        closed = {source for source, ancestor in channels.items() if ancestor not in self._open}
        return msgspec.structs.replace(
            made,
            position={source: position[source] for source in position.keys() - channels.keys()},
            history={source: position[source] for source in closed & needed},
            open_reorgs=tuple(events.OpenReorg(hash_, n, offsets.get(hash_, 0)) for hash_, n in self._open.items()),
        )

    def why_incomplete(self, hash_: bytes) -> events.Missing:
        """Returns the messages that the block with this hash still lacks."""
        return self._normal.why_incomplete(hash_)

    def statistics(self) -> events.UnorderedStatistics:
        return events.UnorderedStatistics(
            reassembly=self._normal.statistics(),
            bad_messages=self._bad_messages,
            unfinished=len(self._unfinished),
            open_reorgs=len(self._open),
        )

    def check(self) -> None:
        self._normal.check()
        assert all(hash_ == event.batch.hash for hash_, event in self._unfinished.items())
        assert len(self._open) <= self.limits.announced_max

    def _read_again(self, out: list[ConsumerEvent | Completed]) -> None:
        event, of_channels = self._begin_again()
        out.append(event)
        # Closed channels are not read again: they are history.
        for source, offset in of_channels.items():
            ancestor = self._channel_sources.get(source)
            if ancestor in self._open:
                out.append(events.ReadAgain({source: offset}, ancestor))

    def _announce(self, reorg: Reorg, out: list[ConsumerEvent | Completed]) -> None:
        if reorg.hash in self._open:
            return
        # Reorgs have no end here, so the oldest channel makes room for a new one.
        if len(self._open) >= self.limits.announced_max:
            oldest = next(iter(self._open))
            del self._open[oldest]
            out.append(events.CloseReorgChannel(oldest))
        self._open[reorg.hash] = reorg.number
        out.append(events.OpenReorgChannel(reorg.hash, reorg.number))
