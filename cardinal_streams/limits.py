"""The limits of everything that a peer can make grow, with their default values."""

from __future__ import annotations

import msgspec

U64_MAX = (1 << 64) - 1
# What an Avro long can carry of an unsigned number (specification, Batch: "num" is a long).
NUMBER_ON_WIRE_MAX = (1 << 63) - 1
# What an Avro int can carry: counts and indexes.
COUNT_MAX = (1 << 31) - 1
WEIGHT_BYTES_MAX = 32
WEIGHT_MAX = (1 << 256) - 1
HASH_BYTES = 32
ZERO_HASH = bytes(HASH_BYTES)


class MessageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest key and the largest value of one message, in bytes."""

    # The real application's longest keys have 150 bytes; 64 KiB leaves room for any path.
    key_bytes_max: int = 65_536
    # `max.message.bytes` of the topics that the real producer creates.
    value_bytes_max: int = 10_000_024


class ReassemblyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a `Reassembler`.

    `incomplete_max`: the number of blocks that have arrived in part. `incomplete_bytes_max`: the memory of their keys
    and values, in bytes. `idle_messages_max`: a block is idle when none of the last so many messages was part of it.
    `finished_max`: the number of hashes of finished blocks, by which late duplicates are recognised.
    """

    incomplete_max: int = 4_096
    incomplete_bytes_max: int = 256 * 1024 * 1024
    idle_messages_max: int = 1_000_000
    finished_max: int = 16_384


class ChainLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a `ChainOrder`, besides the chain itself, which has `reorg_threshold` + 1 blocks.

    `waiting_max` and `waiting_bytes_max`: the number and the bytes of blocks off the chain, which are forks and blocks
    whose parent has not arrived. `remembered_max`: the number of hashes of final and of rejected blocks.
    """

    waiting_max: int = 4_096
    waiting_bytes_max: int = 512 * 1024 * 1024
    remembered_max: int = 16_384


class ConsumerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a `ChainConsumer`.

    `held_max`: the number of complete blocks of the normal feed that wait for the end of a reorg. `announced_max`: the
    number of reorgs that were announced and have not begun. `reorgs_max`: the number of finished reorgs, by which
    repetitions are recognised. `unfinished_max`: the number of updates that the application has not finished; when
    there are so many, the consumer asks its shell to stop reading.
    """

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
