"""What a `ChainConsumer` says, and what its shell saves to go on from."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.machines.chain_events import ChainEvent, ChainStatistics, Start
from cardinal_streams.machines.reassembly_events import Evicted, ReassemblyStatistics, Refused


class BadMessage(msgspec.Struct, frozen=True):
    """Something that is no message was delivered, and dropped."""

    source: str
    offset: int
    error: MessageError


class OpenReorgChannel(msgspec.Struct, frozen=True):
    """A reorg was announced: read its channel from the beginning, beside the normal feed."""

    hash: bytes
    number: int


class CloseReorgChannel(msgspec.Struct, frozen=True):
    """Stop reading a reorg's channel."""

    hash: bytes


class ReadAgain(msgspec.Struct, frozen=True):
    """A reorg was abandoned, and the blocks that it removed are not held any more: read the normal feed again, from
    the earliest that is kept."""


class ReorgRefused(msgspec.Struct, frozen=True):
    """A message of the Reorg protocol, or a whole reorg, was dropped."""

    hash: bytes
    why: str


ConsumerEvent: TypeAlias = (
    ChainEvent | Refused | Evicted | BadMessage | OpenReorgChannel | CloseReorgChannel | ReadAgain | ReorgRefused
)


class Feeds(msgspec.Struct, frozen=True):
    """What the shell is to read now: the normal feed, and the channels of these reorgs (by their ancestor's hash).

    What it has read already and may not hand over now, it keeps.
    """

    normal: bool
    channels: tuple[bytes, ...]


class FinishedReorg(msgspec.Struct, frozen=True):
    """A reorg is told from a repetition by the ancestor and by the first block after it."""

    ancestor: bytes
    first_block: bytes


class OpenReorg(msgspec.Struct, frozen=True):
    """A reorg that was announced, and perhaps begun, and is not finished. `offset` is where its channel is to be read
    from: beyond what was abandoned, if anything was. `is_begun`: the application has gone back to the ancestor, and
    had blocks of weights up to `removed_weight` above it."""

    hash: bytes
    number: int
    offset: int = 0
    is_begun: bool = False
    removed_weight: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything another `ChainConsumer` needs to go on where this one's application has finished.

    `start` is the last block that the application finished, `position` the offset per source where the normal feed
    is to be read on, `history` the same for channels of finished reorgs, of which blocks may still be needed: they
    are read to their end with `receive_history` at the start. What lies before `read` comes again; of that, only the
    blocks `needed` count (`reread`).
    """

    start: Start | None
    position: dict[str, int] = {}
    history: dict[str, int] = {}
    open_reorgs: tuple[OpenReorg, ...] = ()
    finished_reorgs: tuple[FinishedReorg, ...] = ()
    read: dict[str, int] = {}
    needed: tuple[bytes, ...] = ()


class ConsumerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start; `held`, `unfinished` and `open_reorgs` are now."""

    reassembly: ReassemblyStatistics
    chain: ChainStatistics
    bad_messages: int
    reorgs_finished: int
    reorgs_repeated: int
    reorgs_refused: int
    reorgs_abandoned: int
    held: int
    unfinished: int
    open_reorgs: int


class UnorderedStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """As `ConsumerStatistics`, of a consumer without a chain."""

    reassembly: ReassemblyStatistics
    bad_messages: int
    unfinished: int
    open_reorgs: int
