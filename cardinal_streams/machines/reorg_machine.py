"""The reorg machine: the consumer's side of the Reorg protocol (specification, "Reorg Handling").

It keeps the state of each reorg channel, i.e. the topic with the blocks of one reorg. It returns the steps that the
chain must take, and does not store the chain. The table shows the next state after each message:

    state        Reorg                     a block                          ReorgComplete
    LISTENING    ACTIVE, or EXAMINING if   dropped                          ignored
                 a reorg to this ancestor
                 was finished before
    EXAMINING    ignored                   a child of the ancestor:         LISTENING
                                           SKIPPING if a finished reorg
                                           had it, else ACTIVE
    SKIPPING     ignored                   dropped                          LISTENING
    ACTIVE       ignored                   put on the chain                 finished, and closed

A ReorgComplete that names the ancestor gives the reorg up. The application can give it up too. Then the states ACTIVE,
EXAMINING and SKIPPING become LISTENING, and the producer can try the reorg again on the same channel. If the state was
ACTIVE, the chain returns to its heaviest branch.

A channel is ANNOUNCED, and is not read, until the chain has reached the common ancestor. If the application went back
for a reorg before a restart, the channel of that reorg is ACTIVE at once, so that the chain takes no block of the
normal feed first.

Several producers can write to one channel. A second Reorg before the ReorgComplete is a repetition. The messages after
the first ReorgComplete can repeat the whole reorg. The first block shows whether such messages are a repetition or
another reorg to the same ancestor: another reorg begins with another child of the ancestor.

Memory. The machine knows at most `announced_max` channels. Beyond this limit it gives up a channel that is not active:
the oldest one whose ancestor had a finished reorg, else the oldest one. It remembers `reorgs_max` finished reorgs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from cardinal_streams.limits import ConsumerLimits
from cardinal_streams.machines.consumer_events import (
    CloseReorgChannel,
    FinishedReorg,
    OpenReorg,
    OpenReorgChannel,
    ReorgRefused,
)
from cardinal_streams.machines.reassembly_events import Completed, Evicted, Refused
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.types import Message, Reorg, ReorgComplete
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from cardinal_streams.recent import RecentMap


class ChannelState(enum.Enum):
    ANNOUNCED = "announced"
    LISTENING = "listening"
    EXAMINING = "examining"
    SKIPPING = "skipping"
    ACTIVE = "active"


class ChannelInput(enum.Enum):
    BEGIN = "Reorg"
    BLOCK = "a block"
    END = "ReorgComplete"
    ABANDON = "given up"


class RevertTo(msgspec.Struct, frozen=True):
    """A step: the chain must go back to this block, and then takes the blocks of the reorg.

    `offset`: the offset on the reorg's channel at which the reorg begins.
    """

    hash: bytes
    number: int
    offset: int


class ReorgBlock(msgspec.Struct, frozen=True):
    """A step: the chain must take this block of the active reorg."""

    batch: CompleteBatch


class ReorgOver(msgspec.Struct, frozen=True):
    """A step: the reorg to the ancestor `hash` is complete. The chain again takes blocks from the
    application's topics."""

    hash: bytes


class ReorgGivenUp(msgspec.Struct, frozen=True):
    """A step: the reorg was given up. The chain returns to its heaviest branch from the common ancestor on, and again
    takes blocks from the application's topics."""

    hash: bytes
    number: int


ChainStep: TypeAlias = RevertTo | ReorgBlock | ReorgOver | ReorgGivenUp
ReorgStep: TypeAlias = ChainStep | OpenReorgChannel | CloseReorgChannel | ReorgRefused | Refused | Evicted


class Channel:
    """The channel (topic) of one reorg. Each attempt, from Reorg to ReorgComplete, has its own reassembler.

    `offset`: where the present attempt begins, or where the next one can begin. `next_offset`: the offset after the
    last message that was read.
    """

    __slots__ = ("examined", "first_block", "hash", "next_offset", "number", "offset", "reassembler", "state")

    def __init__(self, reorg: OpenReorg) -> None:
        self.hash = reorg.hash
        self.number = reorg.number
        self.offset = self.next_offset = reorg.offset
        self.state = ChannelState.ANNOUNCED
        self.reassembler: Reassembler | None = None
        self.first_block: bytes | None = None
        self.examined: list[CompleteBatch] = []


class ReorgProtocol:
    """The reorg machine: it keeps the state of each reorg channel; see the module's docstring.

    Invariant: at most one channel is ACTIVE, and `active` is that channel or None. A channel has a reassembler in all
    states except ANNOUNCED and LISTENING.
    """

    def __init__(
        self,
        tracked: Tracked,
        limits: ConsumerLimits,
        open_reorgs: Sequence[OpenReorg] = (),
        finished_reorgs: Iterable[FinishedReorg] = (),
    ) -> None:
        self.active: Channel | None = None
        self.finished_count = self.repeated_count = self.refused_count = self.abandoned_count = 0
        self._tracked = tracked
        self._limits = limits
        self._channels = {reorg.hash: Channel(reorg) for reorg in open_reorgs}
        self._finished: RecentMap[FinishedReorg, None] = RecentMap(limits.reorgs_max)
        for finished in finished_reorgs:
            self._finished.put(finished, None)
        begun = next((reorg.hash for reorg in open_reorgs if reorg.is_begun), None)
        if begun is not None:
            self.active = self._channels[begun]
            self.active.state = ChannelState.ACTIVE
            self.active.reassembler = Reassembler(tracked, limits.reassembly)

    def announce(self, message: Reorg) -> list[ReorgStep]:
        """Takes a Reorg message of the normal feed, which announces a reorg channel. Repetitions are ignored."""
        steps: list[ReorgStep] = []
        if message.hash in self._channels:
            return steps
        if len(self._channels) >= self._limits.announced_max and not self._give_one_up(steps):
            self.refuse(message.hash, f"more than {self._limits.announced_max} reorgs are announced", steps)
            return steps
        self._channels[message.hash] = Channel(OpenReorg(message.hash, message.number))
        return steps

    def open_channels(self, can_revert: Callable[[bytes, int], bool]) -> list[ReorgStep]:
        """Opens each announced channel for whose common ancestor (hash, number) `can_revert` returns True."""
        steps: list[ReorgStep] = []
        for channel in self._channels.values():
            if channel.state is ChannelState.ANNOUNCED and can_revert(channel.hash, channel.number):
                channel.state = ChannelState.LISTENING
                steps.append(OpenReorgChannel(channel.hash, channel.number))
        return steps

    def receive(self, ancestor: bytes, message: Message, source: str, offset: int) -> list[ReorgStep]:
        """Takes a message from the channel of the reorg with this common ancestor, if the channel is open.

        Raises `RuntimeError` if another channel is active: the caller must not read two channels then.
        """
        steps: list[ReorgStep] = []
        channel = self._channels.get(ancestor)
        if channel is None or channel.state is ChannelState.ANNOUNCED:
            return steps
        if self.active not in (None, channel):
            raise RuntimeError(f"the channel of {ancestor.hex()} was read while another reorg is going on")
        channel.next_offset = max(channel.next_offset, offset + 1)
        if isinstance(message, ReorgComplete):
            given = ChannelInput.ABANDON if message.hash == ancestor else ChannelInput.END
            self._step(channel, given, None, steps)
        elif isinstance(message, Reorg):
            if message.hash == ancestor:
                self._step(channel, ChannelInput.BEGIN, None, steps)
            else:
                self.refuse(message.hash, f"a Reorg on the channel of {ancestor.hex()}", steps)
        elif channel.reassembler is not None:
            for event in channel.reassembler.receive(message, source, offset):
                if isinstance(event, Completed):
                    self._step(channel, ChannelInput.BLOCK, event.batch, steps)
                elif isinstance(event, Refused | Evicted):
                    steps.append(event)
        return steps

    def abandon(self, ancestor: bytes) -> list[ReorgStep]:
        """Gives up the reorg with this common ancestor. Returns no steps if the reorg is not active."""
        steps: list[ReorgStep] = []
        channel = self._channels.get(ancestor)
        if channel is not None and channel.state is not ChannelState.ANNOUNCED:
            self._step(channel, ChannelInput.ABANDON, None, steps)
        return steps

    def refuse(self, hash_: bytes, why: str, steps: list[ReorgStep]) -> None:
        self.refused_count += 1
        steps.append(ReorgRefused(hash_, why))

    def readable(self) -> tuple[bytes, ...]:
        """Returns the common ancestors of the channels that may be read: the active one, or else all open ones."""
        if self.active is not None:
            return (self.active.hash,)
        return self.opened()

    def opened(self) -> tuple[bytes, ...]:
        """Returns the common ancestors of all open channels, including those that must not be read now."""
        return tuple(hash_ for hash_, channel in self._channels.items() if channel.state is not ChannelState.ANNOUNCED)

    def known(self) -> tuple[OpenReorg, ...]:
        return tuple(OpenReorg(channel.hash, channel.number, channel.offset) for channel in self._channels.values())

    def finished(self) -> tuple[FinishedReorg, ...]:
        return tuple(finished for finished, _ in self._finished.items())

    def check(self) -> None:
        """Raises AssertionError if the invariant of the class does not hold, or if a limit is exceeded."""
        channels = list(self._channels.values())
        active = [channel for channel in channels if channel.state is ChannelState.ACTIVE]
        assert active == ([] if self.active is None else [self.active])
        assert len(channels) <= self._limits.announced_max
        for channel in channels:
            idle = channel.state in (ChannelState.ANNOUNCED, ChannelState.LISTENING)
            assert (channel.reassembler is None) == idle

    def _step(self, channel: Channel, given: ChannelInput, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        TRANSITIONS[channel.state, given](self, channel, batch, steps)

    def _begin(self, channel: Channel, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        channel.reassembler = Reassembler(self._tracked, self._limits.reassembly)
        channel.first_block = None
        channel.examined = []
        if self._had_reorg(channel.hash):
            channel.state = ChannelState.EXAMINING
        else:
            self._activate(channel, steps)

    def _activate(self, channel: Channel, steps: list[ReorgStep]) -> None:
        channel.state = ChannelState.ACTIVE
        self.active = channel
        steps.append(RevertTo(channel.hash, channel.number, channel.offset))

    def _examine(self, channel: Channel, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        assert batch is not None
        if batch.parent != channel.hash:
            channel.examined.append(batch)
            if len(channel.examined) > self._limits.held_max:
                self.refuse(channel.hash, f"none of {self._limits.held_max} blocks follows the ancestor", steps)
                self._listen(channel, None, steps)
        elif FinishedReorg(channel.hash, batch.hash) in self._finished:
            self.repeated_count += 1
            channel.state = ChannelState.SKIPPING
            channel.examined = []
        else:
            self._activate(channel, steps)
            for known in (batch, *channel.examined):
                self._apply(channel, known, steps)
            channel.examined = []

    def _apply(self, channel: Channel, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        assert batch is not None
        if channel.first_block is None and batch.parent == channel.hash:
            channel.first_block = batch.hash
        steps.append(ReorgBlock(batch))

    def _finish(self, channel: Channel, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        assert channel.reassembler is not None
        steps.extend(event for event in channel.reassembler.close() if isinstance(event, Evicted))
        if channel.first_block is None:
            self.refuse(channel.hash, "the channel brought no block that follows the ancestor", steps)
        else:
            self._finished.put(FinishedReorg(channel.hash, channel.first_block), None)
        self.finished_count += 1
        self.active = None
        del self._channels[channel.hash]
        steps.append(CloseReorgChannel(channel.hash))
        steps.append(ReorgOver(channel.hash))

    def _give_up(self, channel: Channel, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        """Ends an attempt at the reorg that its producer or the application gave up.

        The reorg does not count as finished, and its channel stays open for another attempt.
        """
        assert channel.reassembler is not None
        steps.extend(event for event in channel.reassembler.close() if isinstance(event, Evicted))
        self.abandoned_count += 1
        self.active = None
        self._listen(channel, None, steps)
        steps.append(ReorgGivenUp(channel.hash, channel.number))

    def _listen(self, channel: Channel, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        channel.state = ChannelState.LISTENING
        channel.offset = channel.next_offset
        channel.reassembler = None
        channel.examined = []

    def _ignore(self, channel: Channel, batch: CompleteBatch | None, steps: list[ReorgStep]) -> None:
        """Does nothing. Handles an input that has no effect in the present state of the channel."""

    def _had_reorg(self, hash_: bytes) -> bool:
        return any(finished.ancestor == hash_ for finished in self.finished())

    def _give_one_up(self, steps: list[ReorgStep]) -> bool:
        others = [channel for channel in self._channels.values() if channel is not self.active]
        if not others:
            return False
        victim = next((channel for channel in others if self._had_reorg(channel.hash)), others[0])
        del self._channels[victim.hash]
        self.refuse(victim.hash, f"more than {self._limits.announced_max} reorgs are announced", steps)
        steps.append(CloseReorgChannel(victim.hash))
        return True


Action: TypeAlias = Callable[[ReorgProtocol, Channel, CompleteBatch | None, list[ReorgStep]], None]

TRANSITIONS: Mapping[tuple[ChannelState, ChannelInput], Action] = {
    (ChannelState.LISTENING, ChannelInput.BEGIN): ReorgProtocol._begin,
    (ChannelState.LISTENING, ChannelInput.BLOCK): ReorgProtocol._ignore,
    (ChannelState.LISTENING, ChannelInput.END): ReorgProtocol._ignore,
    (ChannelState.LISTENING, ChannelInput.ABANDON): ReorgProtocol._ignore,
    (ChannelState.EXAMINING, ChannelInput.BEGIN): ReorgProtocol._ignore,
    (ChannelState.EXAMINING, ChannelInput.BLOCK): ReorgProtocol._examine,
    (ChannelState.EXAMINING, ChannelInput.END): ReorgProtocol._listen,
    (ChannelState.EXAMINING, ChannelInput.ABANDON): ReorgProtocol._listen,
    (ChannelState.SKIPPING, ChannelInput.BEGIN): ReorgProtocol._ignore,
    (ChannelState.SKIPPING, ChannelInput.BLOCK): ReorgProtocol._ignore,
    (ChannelState.SKIPPING, ChannelInput.END): ReorgProtocol._listen,
    (ChannelState.SKIPPING, ChannelInput.ABANDON): ReorgProtocol._listen,
    (ChannelState.ACTIVE, ChannelInput.BEGIN): ReorgProtocol._ignore,
    (ChannelState.ACTIVE, ChannelInput.BLOCK): ReorgProtocol._apply,
    (ChannelState.ACTIVE, ChannelInput.END): ReorgProtocol._finish,
    (ChannelState.ACTIVE, ChannelInput.ABANDON): ReorgProtocol._give_up,
}
