"""The state of one reorg channel, and the steps that the chain must take for the Reorg protocol (`reorg_machine`)."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.machines.consumer_events import (
    CloseReorgChannel,
    OpenReorg,
    OpenReorgChannel,
    ReadAgain,
    ReorgRefused,
)
from cardinal_streams.machines.reassembly_events import Evicted, Refused
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.payload import CompleteBatch


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
    """A step: the chain must take this block of the active reorg."""

    batch: CompleteBatch


class WeighBlock(msgspec.Struct, frozen=True):
    """A step: this block came on the channel of the reorg to `ancestor` after the end of a section, and is weighed."""

    ancestor: bytes
    batch: CompleteBatch


class ReorgOver(msgspec.Struct, frozen=True):
    """A step: the section of the reorg to this ancestor is over, complete or not, and the heaviest chain wins."""

    hash: bytes
    number: int


ChainStep: TypeAlias = RevertTo | ReorgBlock | WeighBlock | ReorgOver
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
        """The offset from which on another consumer misses no block that this one still needs."""
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
