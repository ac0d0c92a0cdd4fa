"""The events and statistics of a `ChainConsumer` and its parts (`Reassembler`, `ChainOrder`), and its checkpoint."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.errors import MessageError
from cardinal_streams.message.messages import Reorg, ReorgAbandoned, ReorgComplete
from cardinal_streams.payload import CompleteBatch


class Start(msgspec.Struct, frozen=True):
    """A block at which a chain begins or continues, usually the last block that the application has finished."""

    hash: bytes
    number: int
    weight: int


class ChainUpdate(msgspec.Struct, frozen=True):
    """A change of the chain: the application first undoes the blocks in `removed`, then applies those in `added`.

    Both lists are in ascending order of block numbers, and their first blocks have the same parent. A chain that began
    without a start block can fork before its first block; then `removed` has all blocks of the chain."""

    removed: tuple[CompleteBatch, ...]
    added: tuple[CompleteBatch, ...]


class Revert(msgspec.Struct, frozen=True):
    """The chain goes back to the block `hash`, because a Reorg message demands it or a reorg was given up.

    `weight`: the weight of that block, or 0 if it is not known.
    `removed`: the removed blocks that are still in memory, in ascending order. Older ones can be missing, so the
    application must be able to return to `hash` by itself.
    `removed_weight`: the weight of the heaviest removed block."""

    hash: bytes
    number: int
    weight: int
    removed: tuple[CompleteBatch, ...]
    removed_weight: int = 0


class NeedsReorg(msgspec.Struct, frozen=True):
    """A block is heavier than the head of the chain, but its fork begins before the final block.

    The final block is the newest block that a reorg of at most `reorg_threshold` blocks must not remove. Only a Reorg
    message can remove it, so the heavier block is kept until such a message comes."""

    hash: bytes
    number: int
    weight: int


class DropReason(enum.Enum):
    """The reason why a block was dropped.

    OLD: it forks off before the final block (see `NeedsReorg`) and is no heavier than the head, or belongs to a reorg
        that was given up.
    BANNED: the application wants another block with this number, or the block descends from a banned block.
    NUMBER: its number is not higher than its parent's number.
    MEMORY: the limits for blocks in memory were exceeded. It must be given to the `ChainOrder` again when the chain has
        grown. A `ChainConsumer` reads it again; it reports the block only if no message but a Reorg can put it on the
        chain."""

    OLD = "old"
    BANNED = "banned"
    NUMBER = "number"
    MEMORY = "memory"


class Dropped(msgspec.Struct, frozen=True):
    """A block was dropped. `offsets`: where its messages are. Blocks dropped for the reason OLD are only counted."""

    hash: bytes
    number: int
    weight: int
    reason: DropReason
    offsets: dict[str, int] = {}


ChainEvent: TypeAlias = ChainUpdate | Revert | NeedsReorg | Dropped


class ChainStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a `ChainOrder` since its start; `head_…` and the last three fields are the present state."""

    head_number: int | None  # None before the first block; so is the weight
    head_weight: int | None
    updates: int
    updates_with_removals: int
    added: int
    removed: int
    reorg_depth_max: int  # the most blocks that one update removed
    reverts: int
    duplicates: int
    dropped: dict[DropReason, int]
    chain_length: int
    waiting: int  # kept but not on the chain
    waiting_bytes: int


MISSING_ITEMS_SHOWN = 16


class Receipt(enum.IntEnum):
    """The outcome of one message of a block. The last three are refusals, which only a faulty producer causes."""

    TAKEN = 0  # it was used
    DUPLICATE = 1  # it had arrived before
    LATE = 2  # its block was already finished
    UNTRACKED = 3  # the consumer does not want it
    OLD = 4  # its block is too old
    UNANNOUNCED = 5  # the Batch message of its block does not announce it
    OVER_COUNT = 6  # more messages of a prefix arrived than the Batch message announces
    NO_SUCH_ITEM = 7  # the sub batch has fewer items


# This outcome and all later ones are refusals.
FIRST_REFUSAL = Receipt.UNANNOUNCED
# These names serve the code that runs for each message: looking a member up in its enumeration takes a sixth of the
# time of reading a message.
TAKEN, DUPLICATE, OLD, UNANNOUNCED = Receipt.TAKEN, Receipt.DUPLICATE, Receipt.OLD, Receipt.UNANNOUNCED


class MissingState(enum.Enum):
    UNKNOWN = "unknown"
    BATCH = "batch"
    PARTS = "parts"
    NOTHING = "nothing"


class Missing(msgspec.Struct, frozen=True):
    """The messages that one block lacks."""

    # UNKNOWN: no message of the block has arrived, or it was forgotten. BATCH: its Batch message has not arrived, but
    # others have. PARTS: other messages are missing. NOTHING: it was complete, or was given up as too old.
    state: MissingState
    early_messages: int = 0
    number: int | None = None  # None before the Batch message arrives
    messages: int = 0  # a header counts once, as its items are unknown; 0 before the Batch message arrives
    prefixes: dict[str, int] = {}  # by prefix, the number of missing messages
    headers: tuple[bytes, ...] = ()  # the ids of sub batches without a header
    items: dict[bytes, tuple[int, ...]] = {}  # by sub batch id, the first missing indexes

    def __str__(self) -> str:
        match self.state:
            case MissingState.UNKNOWN:
                return "nothing of this block has arrived"
            case MissingState.BATCH:
                return f"its Batch has not arrived, {self.early_messages} other messages have"
            case MissingState.NOTHING:
                return "nothing is missing"
        parts = [f"{count} messages of prefix {prefix!r}" for prefix, count in self.prefixes.items()]
        parts += [f"the header of sub batch {id_.hex()}" for id_ in self.headers]
        parts += [f"items {', '.join(map(str, found))} of sub batch {id_.hex()}" for id_, found in self.items.items()]
        return "; ".join(parts)


class Completed(msgspec.Struct, frozen=True):
    """All messages of a block have arrived. `batch` is the block."""

    batch: CompleteBatch


class Refused(msgspec.Struct, frozen=True):
    """A message was dropped because it contradicts the Batch message of its block, which lists the block's contents.
    `what`: the key, the sub batch id or the item of the dropped message."""

    hash: bytes
    outcome: Receipt
    what: str


class Outdated(msgspec.Struct, frozen=True):
    """A block was given up: its number and weight are too low to join the chain (see `Reassembler.set_floor`)."""

    hash: bytes


class EvictionReason(enum.Enum):
    """The reason why a `Reassembler` evicted an incomplete block."""

    MEMORY = "memory"  # a limit was exceeded; the block is read again, unless it alone exceeds the limit
    IDLE = "idle"  # `idle_messages_max` messages came since its last message; it is read again if another comes
    CLOSED = "closed"  # the reorg channel of the block ended


class Evicted(msgspec.Struct, frozen=True):
    """An incomplete block was given up. `missing` tells which messages were missing."""

    hash: bytes
    reason: EvictionReason
    missing: Missing


ReassemblyEvent: TypeAlias = Completed | Refused | Evicted | Outdated | Reorg | ReorgComplete | ReorgAbandoned


class ReassemblyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a `Reassembler`: messages and blocks since the start, but `incomplete` and `incomplete_bytes`
    are the present blocks and their memory. `completed`, `old` and `evicted` count blocks, the other fields count
    messages."""

    messages: int
    completed: int
    duplicates: int
    late: int
    untracked: int
    refused: int
    pings: int
    old: int
    evicted: dict[EvictionReason, int]
    incomplete: int
    incomplete_bytes: int


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
    feed has blocks that are needed, and that were dropped to save memory or removed by a reorg that ended lighter.

    `position`: by source, the offset at which reading begins; a source that is missing begins at its earliest message.
    """

    position: dict[str, int]
    ancestor: bytes | None = None


class ReorgRefused(msgspec.Struct, frozen=True):
    """A message of the Reorg protocol, or a whole reorg, was dropped. `why` is the reason. `hash` is the hash in the
    message, or that of the reorg's common ancestor."""

    hash: bytes
    why: str


class ReorgStalled(msgspec.Struct, frozen=True):
    """The channel of the running reorg has brought no message for `idle_s` seconds, and the normal feed is not read
    meanwhile. `hash` and `number` are those of the common ancestor. `is_given_up`: whether the reorg was given up
    now."""

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
    """All messages of the topics were read, and the chain has lacked the same first block for `age_s` seconds."""

    gaps: tuple[Gap, ...]
    age_s: float


class LeftOut(msgspec.Struct, frozen=True):
    """A block was left out: the chain had no start block, and began with a block of a higher number."""

    hash: bytes
    number: int


class PrefixUnmet(msgspec.Struct, frozen=True):
    """A pattern of the tracked entries can match no key of the application's prefixes."""

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
    if their block is in `needed` (see `reading_again.Reread`).
    `given_up`: by hash, where the blocks begin that were given up after a long silence. If another message of such a
    block comes, the block is read again.
    `created`: when each source was created, in microseconds since 1970, if the transport says it. A source that was
    created at another time is another stream, in which the offsets mean nothing.
    `first_number`: the application has no block with a lower number, because the chain began without a start block."""

    start: Start | None
    position: dict[str, int] = {}
    history: dict[str, int] = {}
    open_reorgs: tuple[OpenReorg, ...] = ()
    finished_reorgs: tuple[bytes, ...] = ()
    read: dict[str, int] = {}
    needed: tuple[bytes, ...] = ()
    created: dict[str, int] = {}
    given_up: dict[bytes, dict[str, int]] = {}
    first_number: int = 0


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
