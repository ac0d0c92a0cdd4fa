"""The events of a `ChainConsumer`, and the checkpoint that the surrounding I/O code saves for it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.machines.chain_events import ChainEvent, ChainStatistics, Start
from cardinal_streams.machines.reassembly_events import Evicted, Missing, ReassemblyStatistics, Refused


class BadMessage(msgspec.Struct, frozen=True):
    """A key and a value were not a message of the protocol, and were dropped. `source` is "topic:partition"."""

    source: str
    offset: int
    error: MessageError


class OpenReorgChannel(msgspec.Struct, frozen=True):
    """A reorg was announced: the I/O code must now also read the reorg's channel (a topic) from the beginning. `hash`
    and `number` are those of the reorg's common ancestor."""

    hash: bytes
    number: int


class CloseReorgChannel(msgspec.Struct, frozen=True):
    """The I/O code must stop reading the channel of the reorg whose common ancestor is `hash`."""

    hash: bytes


class ReadAgain(msgspec.Struct, frozen=True):
    """The I/O code must read the normal feed (the application's topics), or the reorg channel of `ancestor`, again. The
    feed has needed blocks that were dropped to save memory, or removed by a reorg that ended lighter.

    `position`: by source, the offset at which reading begins; a source that is missing begins at its earliest message.
    """

    position: dict[str, int]
    ancestor: bytes | None = None


class ReorgRefused(msgspec.Struct, frozen=True):
    """A message of the Reorg protocol, or a whole reorg, was dropped. `why` is the reason. `hash` is that in the
    message, or the common ancestor of the reorg."""

    hash: bytes
    why: str


class ReorgStalled(msgspec.Struct, frozen=True):
    """The channel of the running reorg, to the ancestor with this hash and number, has been silent for `idle_s`
    seconds, and the normal feed rests. `is_given_up`: whether the reorg was given up now."""

    hash: bytes
    number: int
    idle_s: float
    is_given_up: bool


class Gap(msgspec.Struct, frozen=True):
    """A block that the chain lacks, since messages of it have not arrived."""

    hash: bytes
    waiting: int  # the number of complete blocks that follow it and wait for it
    missing: Missing


class Stalled(msgspec.Struct, frozen=True):
    """Everything was read that the topics have, and the chain has lacked the same first block for `age_s` seconds."""

    gaps: tuple[Gap, ...]
    age_s: float


class LeftOut(msgspec.Struct, frozen=True):
    """A block is not part of the chain, which began without a start block and with a block of a higher number."""

    hash: bytes
    number: int


class PrefixUnmet(msgspec.Struct, frozen=True):
    """A pattern of the tracked entries meets no prefix of the application."""

    pattern: str


ConsumerEvent: TypeAlias = (
    ChainEvent
    | Refused
    | Evicted
    | BadMessage
    | OpenReorgChannel
    | CloseReorgChannel
    | ReadAgain
    | ReorgRefused
    | LeftOut
)


class Feeds(msgspec.Struct, frozen=True):
    """The feeds whose messages the consumer accepts now: the normal feed, i.e. the application's topics, and reorg
    channels, by their common ancestors. The I/O code keeps the messages that it has read of other feeds."""

    normal: bool
    channels: tuple[bytes, ...]


class OpenReorg(msgspec.Struct, frozen=True):
    """A reorg whose channel is read, or will be read. `hash` and `number` are those of its common ancestor."""

    hash: bytes
    number: int
    offset: int = 0  # where reading the reorg's channel begins
    is_begun: bool = False  # whether the application has gone back, and the section has not ended
    removed_weight: int = 0  # of the heaviest block removed; if not `is_begun`, the removed blocks return


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state with which another `ChainConsumer` continues after the last update that the application finished.

    Each dict of offsets has one offset for each source ("topic:partition").

    `start`: the last block that the application finished.
    `position`: where reading the normal feed continues.
    `history`: where old messages of reorg channels are read again (`receive_history`), for blocks that are needed.
    `finished_reorgs`: the common ancestors of the reorgs of which a section has ended, complete or not.
    `read`: the offset up to which a source was read before the restart. Messages before it arrive again, and count only
    if their block is in `needed` (see the module `reread`).
    `given_up`: by hash, where the blocks begin that were given up after a long silence. If another message of such a
    block comes, the block is read again.
    `created`: when each source was created, in microseconds since 1970, if the transport says it. A source that was
    created at another time is another stream, in which the offsets mean nothing."""

    start: Start | None
    position: dict[str, int] = {}
    history: dict[str, int] = {}
    open_reorgs: tuple[OpenReorg, ...] = ()
    finished_reorgs: tuple[bytes, ...] = ()
    read: dict[str, int] = {}
    needed: tuple[bytes, ...] = ()
    created: dict[str, int] = {}
    given_up: dict[bytes, dict[str, int]] = {}


class ConsumerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a `ChainConsumer` since the start; the last three fields describe the present state."""

    reassembly: ReassemblyStatistics
    chain: ChainStatistics
    bad_messages: int
    reorgs_finished: int  # with their blocks on the chain
    reorgs_repeated: int  # Reorg messages that came on a channel after its end
    reorgs_refused: int
    reorgs_abandoned: int  # lighter than the blocks that they had removed
    held: int  # complete blocks that wait until a reorg ends
    unfinished: int  # updates that the application has not finished
    open_reorgs: int


class UnorderedStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of an `UnorderedConsumer` since the start; the last two fields describe the present state."""

    reassembly: ReassemblyStatistics
    bad_messages: int
    unfinished: int
    open_reorgs: int
