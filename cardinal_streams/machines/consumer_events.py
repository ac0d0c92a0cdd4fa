"""The events of a `ChainConsumer`, and the checkpoint that its shell saves."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.machines.chain_events import ChainEvent, ChainStatistics, Start
from cardinal_streams.machines.reassembly_events import Evicted, ReassemblyStatistics, Refused


class BadMessage(msgspec.Struct, frozen=True):
    """A delivery was no message of the protocol, and was dropped."""

    source: str
    offset: int
    error: MessageError


class OpenReorgChannel(msgspec.Struct, frozen=True):
    """A reorg was announced: the shell must read the reorg's channel from the beginning, while it goes on reading the
    normal feed."""

    hash: bytes
    number: int


class CloseReorgChannel(msgspec.Struct, frozen=True):
    """The shell must stop reading a reorg's channel."""

    hash: bytes


class ReadAgain(msgspec.Struct, frozen=True):
    """A reorg was abandoned, and the blocks that it removed are not held any more: the shell must read the normal feed
    again, from the earliest message that the transport keeps."""


class ReorgRefused(msgspec.Struct, frozen=True):
    """A message of the Reorg protocol was dropped, or a whole reorg."""

    hash: bytes
    why: str


ConsumerEvent: TypeAlias = (
    ChainEvent | Refused | Evicted | BadMessage | OpenReorgChannel | CloseReorgChannel | ReadAgain | ReorgRefused
)


class Feeds(msgspec.Struct, frozen=True):
    """The feeds that the shell may give to the machine now: whether the normal feed is one of them, and the reorg
    channels, by their ancestor's hash.

    The shell keeps deliveries of other feeds that it has read ahead.
    """

    normal: bool
    channels: tuple[bytes, ...]


class FinishedReorg(msgspec.Struct, frozen=True):
    """A finished reorg. The ancestor and the first block after it tell a new reorg from a repetition."""

    ancestor: bytes
    first_block: bytes


class OpenReorg(msgspec.Struct, frozen=True):
    """A reorg that was announced and is not finished.

    `offset`: where reading its channel begins, behind all abandoned attempts. `is_begun`: whether the application has
    gone back to the ancestor. `removed_weight`: the weight of the heaviest block that the application removed then."""

    hash: bytes
    number: int
    offset: int = 0
    is_begun: bool = False
    removed_weight: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state that another `ChainConsumer` needs to go on behind the last update that the application finished.

    `start`: the last block that the application finished. `position`: by source, the offset where reading the normal
    feed goes on. `history`: the same for channels of finished reorgs, since some of their blocks may still be needed;
    at the start they are read to their end by `receive_history`. `read`: by source, the offset up to which messages
    were read before; they come again, and of these only the messages of the blocks in `needed` count (see `reread`).
    """

    start: Start | None
    position: dict[str, int] = {}
    history: dict[str, int] = {}
    open_reorgs: tuple[OpenReorg, ...] = ()
    finished_reorgs: tuple[FinishedReorg, ...] = ()
    read: dict[str, int] = {}
    needed: tuple[bytes, ...] = ()


class ConsumerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a consumer since its start. `held`, `unfinished` and `open_reorgs` are the figures of this
    moment."""

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
    """The figures of a consumer without a chain, as in `ConsumerStatistics`."""

    reassembly: ReassemblyStatistics
    bad_messages: int
    unfinished: int
    open_reorgs: int
