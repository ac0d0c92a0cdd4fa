"""The consumer machine: it takes messages and returns updates of the chain, even across reorgs beyond the threshold.

Specification, "Reorg Handling". The machine does no I/O: other code, its shell, reads topics and saves checkpoints.

    normal feed ──► Reassembler ──► ChainOrder ──► ChainUpdate, Revert
                       │ Reorg          ▲
                       ▼                │ the blocks of the active reorg
    reorg channel ► ReorgProtocol ──────┘

The normal feed is the application's topics. A Reorg message on it announces a reorg channel, a topic with the blocks of
one reorg, which is opened when the chain has reached the common ancestor. At the Reorg message on the channel itself,
the chain goes back to the ancestor, and takes blocks only from the channel until its ReorgComplete. Meanwhile, complete
blocks of the normal feed wait. `reorg_machine` has the rest of the protocol. A consumer that begins with the state that
`checkpoint` returns repeats no finished update, skips none, and has all blocks that the next reorg can remove."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.limits import DEFAULT_CONSUMER_LIMITS, ConsumerLimits
from cardinal_streams.machines import reorg_machine
from cardinal_streams.machines.chain_order_machine import ChainOrder
from cardinal_streams.machines.events import (
    ChainEvent,
    ChainUpdate,
    Checkpoint,
    Completed,
    ConsumerEvent,
    ConsumerStatistics,
    Dropped,
    DropReason,
    Evicted,
    Feeds,
    Gap,
    LeftOut,
    Missing,
    OpenReorg,
    Outdated,
    ReadAgain,
    ReassemblyEvent,
    Revert,
    Start,
)
from cardinal_streams.machines.reading_again import NOTHING_READ, RereadingConsumer
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import OF_REORGS, Reorg, ReorgAbandoned, ReorgComplete, decode
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import TRACK_ALL, Tracked

NEW = Checkpoint(start=None)


class ChainConsumer(RereadingConsumer):
    """The consumer machine: it takes messages and returns updates of the chain; see the module's docstring.

    `checkpoint`: the state with which the consumer continues. By default the chain begins with the lowest block: of all
    blocks that are complete at the end of the log, or of the first `held_max` complete blocks.
    `wanted`: the only hash that is accepted for a block number. `tracked`: the block keys to collect.

    Invariant: complete blocks wait in `_held` only while a reorg is active, or before the chain begins."""

    def __init__(
        self,
        *,
        reorg_threshold: int,
        tracked: Tracked = TRACK_ALL,
        checkpoint: Checkpoint = NEW,
        wanted: Mapping[int, bytes] | None = None,
        limits: ConsumerLimits = DEFAULT_CONSUMER_LIMITS,
    ) -> None:
        super().__init__(tracked, checkpoint, limits, keeps_oldest=checkpoint.start is not None)
        self._start = checkpoint.start
        self._tracked = tracked
        # The lowest number of the blocks that were put off. A block of a fork below the head counts as infinity.
        self._put_off_from: float | None = None
        # The head when reading again began.
        self._head_before: Start | None = None
        # The chain at the end of the log, and the sets of blocks that have waited there with this chain.
        self._states_seen: tuple[frozenset[bytes], set[frozenset[bytes]]] = (frozenset(), set())
        # By source, the offset up to which the source must be read again before the chain has all blocks that it had.
        self._to_reread = {
            source: end for source, end in checkpoint.read.items() if checkpoint.position.get(source, end) < end
        }
        self._needed_before = checkpoint.needed
        # The number of the first block of a chain that began without a start block.
        self._first_number: int | None = None
        # The lowest number of a block that the application has finished, also before a restart.
        self._first_done = math.inf if checkpoint.start is None else checkpoint.first_number
        self._chain = ChainOrder(
            checkpoint.start, reorg_threshold, wanted=wanted, limits=limits.chain, first_number=checkpoint.first_number
        )
        self._reorgs = reorg_machine.ReorgProtocol(tracked, limits, checkpoint.open_reorgs, checkpoint.finished_reorgs)
        self._held: deque[CompleteBatch] = deque()
        self._unfinished: deque[ChainUpdate | Revert] = deque()
        # The reorg for which the application has gone back, until this reorg is over. By the id of each update that
        # begins or ends a reorg, `_reverts` has the value that `_reverted` takes when the update is finished.
        self._reverted = next((reorg for reorg in checkpoint.open_reorgs if reorg.is_begun), None)
        self._reverts: dict[int, OpenReorg | None] = {}
        self._next_settles = False
        if self._reverted is not None:
            self._chain.resume_reorg(self._reverted.removed_weight)
        self._reorgs.open_channels(self._can_revert)

    @property
    def feeds(self) -> Feeds:
        """The feeds that may be read now. While too many updates are unfinished, no feed may be read."""
        if len(self._unfinished) >= self.limits.unfinished_max:
            return Feeds(normal=False, channels=())
        return Feeds(normal=self._reorgs.active is None, channels=self._reorgs.readable())

    @property
    def channels(self) -> tuple[bytes, ...]:
        """The open reorg channels, by the hash of their common ancestor. They need not all be readable now."""
        return self._reorgs.opened()

    @property
    def active_reorg(self) -> OpenReorg | None:
        """The reorg that is going on, during which the normal feed rests; None if there is none."""
        active = self._reorgs.active
        return None if active is None else OpenReorg(active.hash, active.number, active.next_offset, True)

    @property
    def head(self) -> Start | None:
        """The last block of the chain; None while the chain is empty."""
        return self._chain.head

    def receive(self, key: bytes, value: bytes, source: str, offset: int) -> list[ConsumerEvent]:
        """Takes a message of the normal feed (the application's topics), and returns the events that it causes.
        `source` is "topic:partition"; `offset` is the message's offset in that partition."""
        out: list[ConsumerEvent] = []
        try:
            message = decode(key, value, self.limits.message)
        except MessageError as error:
            return [self._bad_message(source, offset, error)]
        # After a restart, messages of finished blocks come again. Building these blocks anew would never end, since not
        # all their messages are read.
        events: Sequence[ReassemblyEvent] = ()
        if self._reread.left and self._reread.is_done(message, source, offset):
            self._normal.skip(source, offset)
        else:
            events = self._normal.receive(message, source, offset)
        for event in events:
            if isinstance(event, Completed):
                self._complete(event.batch, out)
            # A reorg is announced against the chain as it stands, so a chain without a start block begins now.
            elif isinstance(event, Reorg):
                self._begin_chain(out)
                self._follow(self._reorgs.announce(event), out)
                self._follow(self._reorgs.open_channels(self._can_revert), out)
            # These messages belong on the channel of their reorg.
            elif isinstance(event, ReorgComplete | ReorgAbandoned):
                refused = self._reorgs.refuse(event.hash, f"a {type(event).__name__} on the normal feed")
                self._follow((refused,), out)
            # The chain remembers the hash, so that descendants of the block do not wait for it.
            elif isinstance(event, Outdated):
                self._publish(self._chain.bury(event.hash), out)
            else:
                out.append(event)
        # The source was read again up to its end before the restart. Perhaps the chain is whole now, so that it can say
        # whether it has the common ancestor of a reorg.
        if self._to_reread and offset + 1 >= self._to_reread.get(source, offset + 2):
            del self._to_reread[source]
            self._follow(self._reorgs.open_channels(self._can_revert), out)
        # The events go out before the reading that begins again, in the order in which they happened.
        if self._normal.put_off.position and self._may_read_again(at_end=False):
            self._read_again(out)
        return out

    def at_end(self) -> list[ConsumerEvent]:
        """Returns the events for the present end of all feeds: the first update of a chain without a start block, and
        a `ReadAgain` if there is room or need for blocks that were put off to save memory."""
        out: list[ConsumerEvent] = []
        self._begin_chain(out)
        self._follow(self._reorgs.read_again(), out)
        if self._reorgs.active is None and self._normal.put_off.position:
            # All blocks that can become complete have been seen, so from now on the oldest are the ones to keep.
            self._normal.keeps_oldest = True
            if self._may_read_again(at_end=True):
                self._read_again(out)
        return out

    def receive_history(self, key: bytes, value: bytes, source: str, offset: int) -> list[ConsumerEvent]:
        """Takes a message that is read again from the channel of a finished reorg (`Checkpoint.history`). Messages that
        begin or end a section are ignored."""
        self._channel_sources.put(source, None)
        if key[:1] in OF_REORGS:
            return []
        return self.receive(key, value, source, offset)

    def receive_reorg(self, ancestor: bytes, key: bytes, value: bytes, source: str, offset: int) -> list[ConsumerEvent]:
        """Takes a message from the channel of the reorg with this common ancestor. Messages of closed channels are
        dropped. Raises `RuntimeError` for an open channel while the reorg of another channel is active."""
        self._channel_sources.put(source, ancestor)
        try:
            message = decode(key, value, self.limits.message)
        except MessageError as error:
            return [self._bad_message(source, offset, error)]
        out: list[ConsumerEvent] = []
        self._follow(self._reorgs.receive(ancestor, message, source, offset), out)
        return out

    def abandon_reorg(self, ancestor: bytes) -> list[ConsumerEvent]:
        """Gives up the reorg with this common ancestor, because its producer will not complete it, and returns to the
        normal feed and the heaviest chain. The channel stays open: if its blocks get heavier than the chain, they
        return. Without such a reorg, the chain does not change."""
        out: list[ConsumerEvent] = []
        self._follow(self._reorgs.abandon(ancestor), out)
        return out

    def done(self, event: ChainUpdate | Revert) -> None:
        """Notes that the application has finished this update and all earlier ones. Raises `ValueError` if the update
        is not among the unfinished ones, e.g. at a second call."""
        if not any(other is event for other in self._unfinished):
            raise ValueError("this update is not among those that are unfinished")
        finished = None
        # Each finished update can begin or end a reorg for later checkpoints.
        while finished is not event:
            finished = self._unfinished.popleft()
            self._reverted = self._reverts.pop(id(finished), self._reverted)
            # A chain can fork before its first block.
            first = finished.number + 1 if isinstance(finished, Revert) else finished.added[0].number
            self._first_done = min(self._first_done, first)
        # The next consumer continues after the last block that the application has now.
        if isinstance(event, Revert):
            self._start = Start(event.hash, event.number, event.weight)
        else:
            last = event.added[-1]
            self._start = Start(last.hash, last.number, last.weight)

    def checkpoint(self) -> Checkpoint:
        """Returns the checkpoint to save now. This visits all blocks in memory: do not call it for every message."""
        made, needed = self._checkpoint(self._needed_batches())
        position, channels = made.position, dict(self._channel_sources)
        # A reorg counts as begun only if the application has gone back for it.
        reverted = self._reverted
        open_reorgs = tuple(
            reverted if reverted is not None and reverted.hash == reorg.hash else reorg
            for reorg in self._reorgs.known()
        )
        # Only the part of an open reorg's channel that was read before is history.
        to_come = {reorg.hash: reorg.offset for reorg in open_reorgs}
        history = {
            source: position[source]
            for source, ancestor in channels.items()
            if source in needed
            if ancestor not in to_come or position[source] < to_come[ancestor]
        }
        return msgspec.structs.replace(
            made,
            start=self._start,
            position={source: position[source] for source in position.keys() - channels.keys()},
            history=history,
            open_reorgs=open_reorgs,
            finished_reorgs=self._reorgs.finished(),
            first_number=0 if self._start is None else int(self._first_done),
        )

    def why_incomplete(self, hash_: bytes) -> Missing:
        """Returns the messages that the block with this hash still lacks: of the channel while a reorg is active,
        otherwise of the normal feed."""
        active = self._reorgs.active
        if active is not None and active.reassembler is not None:
            return active.reassembler.why_incomplete(hash_)
        return self._normal.why_incomplete(hash_)

    def gaps(self) -> tuple[Gap, ...]:
        """Returns the blocks that the chain lacks, in the order in which it needs them. Later blocks, or messages of
        them, have arrived. This visits all blocks in memory: do not call it for every message."""
        lacks = self._chain.lacks()
        head = self._chain.head
        if head is not None:
            lacks |= {hash_: 0 for hash_ in self._normal.children_of(head.hash) if hash_ not in lacks}
        return tuple(Gap(hash_, waiting, self._normal.why_incomplete(hash_)) for hash_, waiting in lacks.items())

    def statistics(self) -> ConsumerStatistics:
        return ConsumerStatistics(
            reassembly=self._normal.statistics(),
            chain=self._chain.statistics(),
            bad_messages=self._bad_messages,
            reorgs_finished=self._reorgs.finished_count,
            reorgs_repeated=self._reorgs.repeated_count,
            reorgs_refused=self._reorgs.refused_count,
            reorgs_abandoned=self._reorgs.abandoned_count,
            held=len(self._held),
            unfinished=len(self._unfinished),
            open_reorgs=len(self._reorgs.known()),
        )

    def check(self) -> None:
        """Raises AssertionError if an invariant of this machine or of one of its parts does not hold."""
        self._normal.check()
        self._chain.check()
        self._reorgs.check()
        assert self._reorgs.active is not None or self._chain.head is None or not self._held
        assert len(self._held) <= self.limits.held_max

    def _can_revert(self, hash_: bytes, number: int) -> bool:
        # After a restart, only the last block of the chain is known until the others are read again. Until then a lower
        # number does not prove that the block is on the chain. A chain with a final block has all blocks that it must
        # hold. It waits for nothing, since some messages may never come again: those of deleted records, or of topics
        # that are not read any more.
        is_reread = not self._to_reread and not self._normal.lacks(self._needed_before)
        is_whole = is_reread or self._chain.final_number is not None
        return self._chain.can_revert(hash_, number, is_whole=is_whole)

    def _complete(self, batch: CompleteBatch, out: list[ConsumerEvent]) -> None:
        if self._first_number is not None and batch.number < self._first_number:
            out.append(LeftOut(batch.hash, batch.number))
        # The usual case. Otherwise the block is kept: the chain has not begun, or takes the blocks of a reorg.
        if self._reorgs.active is None and self._chain.head is not None:
            self._publish(self._chain.receive(batch), out)
            if not self._chain.is_on_chain(batch.hash):
                # The block can make a reorg outweigh the chain, if it follows the blocks that the reorg's channel had.
                for ancestor in self._reorgs.with_kept_blocks():
                    self._adopt_heavier(ancestor, out)
            return
        # No more blocks can be compared, so the chain begins with the lowest of these.
        if len(self._held) >= self.limits.held_max and self._chain.head is None:
            self._begin_chain(out)
            self._complete(batch, out)
        # During a reorg there is no room either. The block is read again after the reorg.
        elif len(self._held) >= self.limits.held_max:
            self._put_off(Dropped(batch.hash, batch.number, batch.weight, DropReason.MEMORY, batch.offsets))
        else:
            self._held.append(batch)

    def _begin_chain(self, out: list[ConsumerEvent]) -> None:
        """Begins a chain that has no start block, at the lowest number of the complete blocks."""
        if self._chain.head is None and self._held:
            held = sorted(self._held, key=lambda batch: (batch.number, batch.hash))
            self._held.clear()
            self._publish(self._chain.receive(held[0]), out)
            self._first_number = held[0].number
            for batch in held[1:]:
                self._complete(batch, out)

    def _put_off(self, block: Dropped) -> None:
        """Notes that a complete block was dropped to save memory, and must be read again when the chain has grown."""
        self._normal.forget(block.hash)
        self._normal.put_off.add(block.hash, block.offsets)
        head = self._chain.head
        # A chain that grows does not need a block of a fork below its head. Infinity means that the block is read again
        # only at the end of the log.
        number = block.number if head is None or block.number > head.number else math.inf
        self._put_off_from = number if self._put_off_from is None else min(self._put_off_from, number)

    def _may_read_again(self, *, at_end: bool) -> bool:
        if self._put_off_from is not None and self._reorgs.active is None:
            # At the end of the log, the blocks are read again once for each new state of the chain. Before the end,
            # they are read again only when the head has reached their numbers.
            head = self._chain.head
            if at_end and self._is_new_state():
                return True
            if head is not None and head.number + 1 >= self._put_off_from and head != self._head_before:
                return True
        return self._normal.may_read_again(at_end=at_end)

    def _is_new_state(self) -> bool:
        """Whether the chain has changed since the last call, or this chain had other waiting blocks at each call. If
        not, reading the feeds again cannot help."""
        chain, waiting = self._chain.blocks()
        if chain != self._states_seen[0]:
            self._states_seen = (chain, set())
        is_new = waiting not in self._states_seen[1]
        self._states_seen[1].add(waiting)
        return is_new

    def _read_again(self, out: list[ConsumerEvent]) -> None:
        event, _ = self._begin_again()
        self._put_off_from, self._head_before = None, self._chain.head
        out.append(event)

    def _follow(self, steps: Iterable[reorg_machine.ReorgStep], out: list[ConsumerEvent]) -> None:
        """Applies the steps of the Reorg protocol to the chain, and collects the events for the I/O code."""
        for step in tuple(steps):
            if isinstance(step, reorg_machine.RevertTo):
                events = self._chain.revert(step.hash, step.number)
                # Checkpoints list the reorg as begun after the application has finished its `Revert`.
                for event in events:
                    if isinstance(event, Revert) and step.offset is not None:
                        reorg = OpenReorg(step.hash, step.number, step.offset, True, event.removed_weight)
                        self._reverts[id(event)] = reorg
                self._publish(events, out)
            elif isinstance(step, reorg_machine.ReorgBlock):
                # A late block of a channel is weighed like any other. The blocks of a section that lost return only
                # together, when they are heavier.
                batch, ancestor = step.batch, step.ancestor
                if ancestor is None or (self._chain.has_place(batch) and not self._reorgs.is_beaten(ancestor, batch)):
                    self._publish(self._chain.receive(batch), out)
                if ancestor is not None:
                    self._adopt_heavier(ancestor, out)
            elif isinstance(step, reorg_machine.ReorgOver):
                self._end_reorg(step, out)
            # A block that is on the chain anyway is not missed.
            elif not (isinstance(step, Evicted) and self._chain.is_on_chain(step.hash)):
                out.append(step)

    def _adopt_heavier(self, ancestor: bytes, out: list[ConsumerEvent]) -> None:
        self._follow(self._reorgs.adopt(ancestor, self._chain.outweighs), out)

    def _end_reorg(self, step: reorg_machine.ReorgOver, out: list[ConsumerEvent]) -> None:
        """Ends a section of a reorg, and returns to the heaviest chain, if need be by reading everything again."""
        end = self._chain.end_reorg(step.hash, step.number)
        self._reorgs.settle(step.hash, end.removed_weight)
        # If the reorg did not win, it counts as begun until the application has finished the updates that undo it. A
        # consumer that is restarted before that takes the section once more.
        if end.removed_weight:
            self._next_settles = True
        else:
            # Later checkpoints do not list it as begun.
            if self._reverted is not None and self._reverted.hash == step.hash:
                self._reverted = None
            reverts = self._reverts.items()
            self._reverts = {of: reorg for of, reorg in reverts if reorg is None or reorg.hash != step.hash}
        if end.read_again:
            # The blocks to return to can be anywhere in the topics, so everything is read from the beginning, by a
            # reassembler that remembers nothing.
            known = self._before.position.keys() | self._normal.high_water().keys()
            position = dict.fromkeys(known - self._channel_sources.keys(), 0)
            self._before = Checkpoint(start=None, position=position)
            self._normal = Reassembler(self._tracked, self.limits.reassembly, keeps_oldest=True)
            self._reread = NOTHING_READ
            self._to_reread.clear()
            self._put_off_from = None
            self._set_floor(out)
            out.append(ReadAgain(position))
        self._publish(end.events, out)
        # The blocks of the normal feed have waited for the end of the section.
        held = tuple(self._held)
        self._held.clear()
        for batch in held:
            self._complete(batch, out)

    def _publish(self, events: Iterable[ChainEvent], out: list[ConsumerEvent]) -> None:
        """Collects the chain's events in `out`. After a change of the chain, drops old blocks and opens announced
        channels."""
        for event in events:
            if isinstance(event, Dropped) and event.reason is DropReason.MEMORY:
                # A dropped block is read again, unless only a Reorg message could put it on the chain.
                final_number = self._chain.final_number
                if final_number is None or event.number > final_number:
                    self._put_off(event)
                    continue
                self._normal.forget(event.hash)
            out.append(event)
            if isinstance(event, ChainUpdate | Revert):
                self._normal.keeps_oldest = True
                # This update undoes the reorg that has just lost.
                if self._next_settles:
                    self._reverts.setdefault(id(event), None)
                    self._next_settles = False
                self._unfinished.append(event)
                # Now incomplete blocks can be too old, reorg channels need not keep final blocks, and the chain can
                # have reached the common ancestor of an announced reorg.
                self._set_floor(out)
                self._reorgs.release(self._chain.is_final)
                self._follow(self._reorgs.open_channels(self._can_revert), out)

    def _set_floor(self, out: list[ConsumerEvent]) -> None:
        final_number, head = self._chain.final_number, self._chain.head
        floor = (0, 0) if final_number is None or head is None else (final_number + 1, head.weight)
        for outdated in self._normal.set_floor(*floor):
            out.extend(self._chain.bury(outdated.hash))

    def _needed_batches(self) -> Iterator[CompleteBatch]:
        yield from self._chain.held()
        yield from self._held
        # The next consumer begins before these updates. It also needs the blocks that they remove: otherwise it does
        # not know where the removed branch leaves the chain.
        for event in self._unfinished:
            yield from event.removed
            if isinstance(event, ChainUpdate):
                yield from event.added
