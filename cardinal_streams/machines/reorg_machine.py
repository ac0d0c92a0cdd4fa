"""The reorg machine: the consumer's side of the Reorg protocol (specification, "Reorg Handling").

It keeps the state of each reorg channel, i.e. the topic with the blocks of one reorg, and returns the steps that the
chain must take. The table shows the next state after each message:

    state        Reorg      a block                         ReorgComplete   ReorgAbandoned
    LISTENING    ACTIVE     ACTIVE, and put on the chain    ignored         ignored
    ACTIVE       ignored    put on the chain                WEIGHING        WEIGHING
    WEIGHING     counted    weighed                         ignored         ignored

A channel is ANNOUNCED, and is not read, until the chain has reached the common ancestor. Then it is LISTENING. A
section of the channel begins with the Reorg, or with the first block if the Reorg came on the normal feed only. It ends
with a ReorgComplete or ReorgAbandoned, or when the application gives the reorg up. The first section is believed at
once: the chain goes back to the ancestor, and takes blocks from this channel only. At the end the heaviest chain wins.

Then the channel is WEIGHING, because the rest can be a repetition: redundant producers write to one channel, and a
message can come twice. A block that the chain can place is placed like any other block, and is kept. When kept blocks
lead from the ancestor to a block that is heavier than the chain, the chain goes back and takes them in one step, so
that the normal feed never rests for a repetition. After a restart, the channel of the reorg for which the application
went back is ACTIVE at once. At most `announced_max` channels are open, with `held_max` kept blocks each."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from cardinal_streams.limits import ConsumerLimits, RecentMap
from cardinal_streams.machines.events import (
    CloseReorgChannel,
    Completed,
    Evicted,
    OpenReorg,
    OpenReorgChannel,
    ReadAgain,
    Refused,
    ReorgRefused,
)
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import Message, Ping, Reorg, ReorgAbandoned, ReorgComplete
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked


class ReorgState(enum.Enum):
    ANNOUNCED = "announced"
    LISTENING = "listening"
    ACTIVE = "active"
    WEIGHING = "weighing"


class RevertTo(msgspec.Struct, frozen=True):
    """A step: the chain must go back to this block, and then takes the blocks of the reorg."""

    hash: bytes
    number: int
    offset: int | None  # where the reorg begins on its channel; None if its blocks and its end follow in the same steps


class ReorgBlock(msgspec.Struct, frozen=True):
    """A step: the chain must take this block. `ancestor`: None for a block of the active reorg. Otherwise the block
    came after the end of a section, on the channel of the reorg to this ancestor, and is only weighed."""

    batch: CompleteBatch
    ancestor: bytes | None = None


class ReorgOver(msgspec.Struct, frozen=True):
    """A step: the section of the reorg to this ancestor is over, complete or not, and the heaviest chain wins."""

    hash: bytes
    number: int


ChainStep: TypeAlias = RevertTo | ReorgBlock | ReorgOver
ReorgStep: TypeAlias = ChainStep | OpenReorgChannel | CloseReorgChannel | ReadAgain | ReorgRefused | Refused | Evicted


class Channel:
    """The channel (topic) of one reorg."""

    def __init__(self, reorg: OpenReorg, reassembler: Reassembler) -> None:
        self.hash = reorg.hash
        self.number = reorg.number
        # Where the section that is ACTIVE begins, and the offset after the last message that was read.
        self.offset = self.next_offset = reorg.offset
        self.state = ReorgState.ANNOUNCED
        self.reassembler = reassembler
        # By hash, the complete blocks that can still be put on the chain, in the order in which they came.
        self.kept: dict[bytes, CompleteBatch] = {}
        # The weight of the chain that the reorg had removed and that has returned, or returns while the normal feed is
        # read again; 0 if there is none.
        self.weight_to_beat = 0 if reorg.is_begun else reorg.removed_weight
        # Whether a child of the common ancestor came.
        self.has_first = False

    @property
    def resume_offset(self) -> int:
        """The offset at which reading must continue after a restart, so that no needed block is missed."""
        if self.state is ReorgState.ACTIVE:
            return self.offset
        needed = [offset for batch in self.kept.values() for offset in batch.offsets.values()]
        needed += [*self.reassembler.low_water().values(), *self.reassembler.put_off.position.values()]
        return min([self.next_offset, *needed])

    def forget(self) -> None:
        """Drops the kept blocks. They come again if their messages come again."""
        for hash_ in self.kept:
            self.reassembler.forget(hash_)
        self.kept.clear()

    def path_to(self, batch: CompleteBatch) -> list[CompleteBatch]:
        """Returns the kept blocks from the child of the common ancestor up to this block; none if one is missing."""
        path: list[CompleteBatch] = []
        at: CompleteBatch | None = batch
        # The number of kept blocks bounds the search: a peer's hashes can form a circle.
        while at is not None and len(path) <= len(self.kept):
            path.append(at)
            if at.parent == self.hash:
                path.reverse()
                return path
            at = self.kept.get(at.parent)
        return []


class ReorgProtocol:
    """The reorg machine: it keeps the state of each reorg channel; see the module's docstring.

    Invariant: at most one channel is ACTIVE, and `active` is that channel or None."""

    def __init__(
        self,
        tracked: Tracked,
        limits: ConsumerLimits,
        open_reorgs: Sequence[OpenReorg] = (),
        finished_reorgs: Iterable[bytes] = (),
    ) -> None:
        self.active: Channel | None = None
        self.finished_count = self.repeated_count = self.refused_count = self.abandoned_count = 0
        self._tracked = tracked
        self._limits = limits
        self._channels = {reorg.hash: self._channel(reorg) for reorg in open_reorgs}
        self._finished: RecentMap[bytes, None] = RecentMap(limits.reorgs_max)
        for ancestor in finished_reorgs:
            self._finished.put(ancestor, None)
        begun = next((reorg.hash for reorg in open_reorgs if reorg.is_begun), None)
        if begun is not None:
            self.active = self._channels[begun]
            self.active.state = ReorgState.ACTIVE

    # The methods below return the steps that follow. Some are generators: the caller takes all steps before it carries
    # out the first one.

    def announce(self, message: Reorg) -> Iterator[ReorgStep]:
        """Takes a Reorg message of the normal feed, which announces a reorg channel. Repetitions are ignored."""
        if message.hash in self._channels:
            return
        # Announcements come from peers, so their number is bounded: an older channel is closed.
        if len(self._channels) >= self._limits.announced_max:
            why = f"more than {self._limits.announced_max} reorgs are announced"
            others = [channel for channel in self._channels.values() if channel is not self.active]
            if not others:
                yield self.refuse(message.hash, why)
                return
            # A reorg whose section is over goes first. Any other reorg is lost, and this is reported.
            victim = next((channel for channel in others if channel.state is ReorgState.WEIGHING), others[0])
            if victim.state is not ReorgState.WEIGHING:
                yield self.refuse(victim.hash, why)
            del self._channels[victim.hash]
            yield from (event for event in victim.reassembler.close() if isinstance(event, Evicted))
            yield CloseReorgChannel(victim.hash)
        self._channels[message.hash] = self._channel(OpenReorg(message.hash, message.number))

    def open_channels(self, can_revert: Callable[[bytes, int], bool]) -> list[ReorgStep]:
        """Opens each announced channel for whose common ancestor (hash, number) `can_revert` returns True."""
        announced = [channel for channel in self._channels.values() if channel.state is ReorgState.ANNOUNCED]
        opened = [channel for channel in announced if can_revert(channel.hash, channel.number)]
        for channel in opened:
            # A reorg that has ended before is only weighed: believing it again would undo the chain for a repetition.
            is_known = channel.hash in self._finished
            channel.state = ReorgState.WEIGHING if is_known else ReorgState.LISTENING
        return [OpenReorgChannel(channel.hash, channel.number) for channel in opened]

    def receive(self, ancestor: bytes, message: Message, source: str, offset: int) -> Iterator[ReorgStep]:
        """Takes a message from the channel of the reorg with this common ancestor, if the channel is open. Raises
        `RuntimeError` if another channel is active: the caller must not read two channels then."""
        channel = self._channels.get(ancestor)
        if channel is None or channel.state is ReorgState.ANNOUNCED:
            return
        if self.active not in (None, channel):
            raise RuntimeError(f"the channel of {ancestor.hex()} was read while another reorg is going on")
        # The section has not begun, so it begins at this message or later.
        if channel.state is ReorgState.LISTENING:
            channel.offset = offset
        # A channel that was deleted and made again begins with lower offsets.
        channel.next_offset = offset + 1
        # Messages of the protocol move the state. A Reorg for another ancestor is a producer's mistake.
        if isinstance(message, Reorg):
            if message.hash != ancestor:
                yield self.refuse(message.hash, f"a Reorg on the channel of {ancestor.hex()}")
            elif channel.state is ReorgState.LISTENING:
                yield self._activate(channel)
            elif channel.state is ReorgState.WEIGHING:
                self.repeated_count += 1
        elif isinstance(message, ReorgComplete):
            if channel.state is ReorgState.ACTIVE:
                if not channel.has_first:
                    yield self.refuse(channel.hash, "the channel brought no block that follows the ancestor")
                yield self._leave(channel)
        elif isinstance(message, ReorgAbandoned):
            yield from self.abandon(ancestor)
        elif not isinstance(message, Ping):
            if channel.state is ReorgState.LISTENING:
                # The Reorg came on the normal feed only, which announced this channel.
                yield self._activate(channel)
            # All other messages are parts of blocks. A block counts when it is complete.
            for event in channel.reassembler.receive(message, source, offset):
                if isinstance(event, Refused | Evicted):
                    yield event
                elif isinstance(event, Completed) and channel.state is ReorgState.WEIGHING:
                    yield from self._weigh(channel, event.batch)
                elif isinstance(event, Completed):
                    self._keep(channel, event.batch)
                    yield ReorgBlock(event.batch)

    def read_again(self) -> Iterator[ReorgStep]:
        """Notes that all readable channels were read to their ends: channels with blocks that were put off to save
        memory are read again."""
        for hash_ in self.readable():
            channel = self._channels[hash_]
            if channel.reassembler.put_off.position and channel.reassembler.may_read_again(at_end=True):
                position = channel.reassembler.begin_again(()).position
                channel.next_offset = min(channel.next_offset, *position.values())
                yield ReadAgain(position, hash_)

    def abandon(self, ancestor: bytes) -> Iterator[ReorgStep]:
        """Gives up the reorg with this common ancestor. There are no steps if the reorg is not active."""
        channel = self._channels.get(ancestor)
        if channel is not None and channel.state is ReorgState.ACTIVE:
            yield self._leave(channel)

    def settle(self, ancestor: bytes, removed_weight: int) -> None:
        """Notes the result of a section that is over. `removed_weight`: 0 if its blocks are on the chain, else the
        weight of the blocks that it had removed, which are back on the chain or will be."""
        channel = self._channels.get(ancestor)
        if channel is not None:
            channel.weight_to_beat = removed_weight
        self.abandoned_count += removed_weight > 0
        self.finished_count += removed_weight == 0

    def release(self, is_final: Callable[[bytes], bool]) -> None:
        """Drops the kept blocks of each channel that is not active, if the last of them is final."""
        for channel in self._channels.values():
            # Once the last kept block is final, none of the kept blocks is needed any more.
            if channel.kept and channel.state is ReorgState.WEIGHING and is_final(next(reversed(channel.kept))):
                channel.forget()

    def is_beaten(self, ancestor: bytes, batch: CompleteBatch) -> bool:
        """Whether this block belongs to a section that ended and did not win. Only its weight can bring it back."""
        channel = self._channels.get(ancestor)
        return channel is not None and channel.weight_to_beat > 0 and bool(channel.path_to(batch))

    def with_kept_blocks(self) -> list[bytes]:
        """Returns the common ancestors of the channels that keep blocks, while no channel is active."""
        return [] if self.active else [channel.hash for channel in self._channels.values() if channel.kept]

    def adopt(self, ancestor: bytes, outweighs: Callable[[CompleteBatch, int], bool]) -> Iterator[ReorgStep]:
        """Yields the steps that put the kept blocks of this channel on the chain, if they lead from the ancestor to a
        block that is heavy enough: `outweighs` gets the block and the weight to beat."""
        channel = self._channels.get(ancestor)
        if channel is None:
            return
        for batch in channel.kept.values():
            path = channel.path_to(batch) if outweighs(batch, channel.weight_to_beat) else []
            if path:
                # The same steps as those of a section, but complete: the chain ends the reorg at once, and no channel
                # becomes active. The path comes first, because the chain follows the first child that comes.
                yield RevertTo(channel.hash, channel.number, None)
                for hash_ in dict.fromkeys((*(each.hash for each in path), *channel.kept)):
                    yield ReorgBlock(channel.kept[hash_])
                yield ReorgOver(channel.hash, channel.number)
                return

    def refuse(self, hash_: bytes, why: str) -> ReorgRefused:
        self.refused_count += 1
        return ReorgRefused(hash_, why)

    def readable(self) -> tuple[bytes, ...]:
        """Returns the common ancestors of the channels that may be read: the active one, or else all open ones."""
        if self.active is not None:
            return (self.active.hash,)
        return self.opened()

    def opened(self) -> tuple[bytes, ...]:
        """Returns the common ancestors of all open channels, including those that must not be read now."""
        return tuple(hash_ for hash_, channel in self._channels.items() if channel.state is not ReorgState.ANNOUNCED)

    def known(self) -> tuple[OpenReorg, ...]:
        return tuple(
            OpenReorg(channel.hash, channel.number, channel.resume_offset, False, channel.weight_to_beat)
            for channel in self._channels.values()
        )

    def finished(self) -> tuple[bytes, ...]:
        return tuple(self._finished)

    def check(self) -> None:
        channels = list(self._channels.values())
        active = [channel for channel in channels if channel.state is ReorgState.ACTIVE]
        assert active == ([] if self.active is None else [self.active])
        assert len(channels) <= self._limits.announced_max
        assert all(len(channel.kept) <= self._limits.held_max for channel in channels)

    def _channel(self, reorg: OpenReorg) -> Channel:
        return Channel(reorg, Reassembler(self._tracked, self._limits.reassembly, keeps_oldest=True))

    def _activate(self, channel: Channel) -> ReorgStep:
        # The chain goes back before it takes the first block of the section.
        channel.state = ReorgState.ACTIVE
        self.active = channel
        return RevertTo(channel.hash, channel.number, channel.offset)

    def _weigh(self, channel: Channel, batch: CompleteBatch) -> Iterator[ReorgStep]:
        path = channel.path_to(batch)
        # The usual case: the chain weighs the block, which is kept for its descendants.
        if len(channel.kept) < self._limits.held_max:
            self._keep(channel, batch)
            yield ReorgBlock(batch, channel.hash)
        elif channel.weight_to_beat and path:
            # Another attempt at a reorg that was given up has more blocks than may be kept. It is believed at once, as
            # the first attempt was.
            channel.offset = channel.resume_offset
            yield self._activate(channel)
            yield from map(ReorgBlock, path)
            channel.forget()
        else:
            # Too many blocks lead nowhere. They are forgotten together, since a part of them proves nothing.
            channel.forget()
            yield self.refuse(
                channel.hash, f"more than {self._limits.held_max} blocks of it are lighter than the chain"
            )

    def _keep(self, channel: Channel, batch: CompleteBatch) -> None:
        # Without a child of the ancestor, a section has brought nothing that can be put on the chain.
        channel.has_first = channel.has_first or batch.parent == channel.hash
        if len(channel.kept) >= self._limits.held_max:
            channel.forget()
        channel.kept[batch.hash] = batch

    def _leave(self, channel: Channel) -> ReorgStep:
        # From now on the ancestor is known, so that a repetition after a restart is weighed and not believed.
        self._finished.put(channel.hash, None)
        self.active = None
        channel.state = ReorgState.WEIGHING
        return ReorgOver(channel.hash, channel.number)
