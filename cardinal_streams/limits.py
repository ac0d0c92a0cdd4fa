"""Limits for everything that a remote peer can make grow, with their default values."""

from __future__ import annotations

from typing import TypeVar

import msgspec

U64_MAX = (1 << 64) - 1
# The largest unsigned number that fits an Avro long (specification, Batch: "num" is a long).
NUMBER_ON_WIRE_MAX = (1 << 63) - 1
# The largest count or index: the largest number that fits an Avro int.
COUNT_MAX = (1 << 31) - 1
WEIGHT_BYTES_MAX = 32
WEIGHT_MAX = (1 << 256) - 1
HASH_BYTES = 32
ZERO_HASH = bytes(HASH_BYTES)


class MessageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest key and the largest value of one message, in bytes."""

    # The reference application's longest keys have 150 bytes; 64 KiB leaves room for any path.
    key_bytes_max: int = 65_536
    # `max.message.bytes` of the topics that the reference producer creates.
    value_bytes_max: int = 10_000_024


class ReassemblyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a `Reassembler`, which rebuilds blocks from their messages. Blocks that a limit drops are read again.

    `incomplete_max`: the largest number of incomplete blocks.
    `incomplete_bytes_max`: the most memory for the keys and values of all incomplete blocks, in bytes.
    `idle_messages_max`: an incomplete block is given up when more messages than this came since its last message.
    `finished_max`: the number of finished blocks whose hashes are remembered, to recognise late duplicates; also the
    most given-up blocks that are remembered. At this number no further block is given up."""

    incomplete_max: int = 4_096
    incomplete_bytes_max: int = 256 * 1024 * 1024
    idle_messages_max: int = 1_000_000
    finished_max: int = 16_384


class ChainLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a `ChainOrder`, which puts blocks into the chain's order. Blocks that a limit drops are read again.

    The chain itself has at most `reorg_threshold` + 1 blocks.

    `waiting_max`: the largest number of waiting blocks, i.e. of forks and of blocks whose parent has not arrived. It
    must be larger than the number of blocks that forks have within `reorg_threshold` blocks of the head.
    `waiting_bytes_max`: the most memory for all waiting blocks, in bytes.
    `remembered_max`: the number of remembered hashes of blocks that are final or were rejected."""

    waiting_max: int = 4_096
    waiting_bytes_max: int = 512 * 1024 * 1024
    remembered_max: int = 16_384


class ConsumerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a `ChainConsumer`, and of the parts that it consists of.

    `held_max`: the largest number of complete blocks that are kept until a running reorg ends. Others are read again.
    `announced_max`: the largest number of reorg channels that are open or announced. Above this number, the channel of
    a finished reorg is closed; if there is none, the oldest channel is refused (`ReorgRefused`), and not read again.
    `reorgs_max`: the number of finished reorgs that are remembered, so that repetitions are recognised.
    `unfinished_max`: at this number of updates that the application has received but not finished, the consumer reads
    no more messages."""

    message: MessageLimits = MessageLimits()
    reassembly: ReassemblyLimits = ReassemblyLimits()
    chain: ChainLimits = ChainLimits()
    held_max: int = 1_024
    announced_max: int = 16
    reorgs_max: int = 64
    unfinished_max: int = 1_024


DEFAULT_MESSAGE_LIMITS = MessageLimits()
DEFAULT_REASSEMBLY_LIMITS = ReassemblyLimits()
DEFAULT_CHAIN_LIMITS = ChainLimits()
DEFAULT_CONSUMER_LIMITS = ConsumerLimits()


K = TypeVar("K")
V = TypeVar("V")


class RecentMap(dict[K, V]):
    """A map that keeps the `size_max` newest keys and their values, which `put` adds."""

    def __init__(self, size_max: int) -> None:
        super().__init__()
        self.size_max = size_max

    def put(self, key: K, value: V) -> None:
        """Adds a key as the newest one, or makes a known key the newest."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self.size_max:
            del self[next(iter(self))]
