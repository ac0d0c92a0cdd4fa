"""All limits of publishing."""

from __future__ import annotations

import msgspec


class PublishLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of publishing. Times are in seconds, sizes in bytes.

    sessions_max: the number of publishers at a time; the real block node has 1,000 connections. block_s_max: the time
    from a block's header to its end. Time in which the node did not read does not count. The received part of the block
    earns more time: one second for every `earned_items_per_s` items and every `earned_bytes_per_s` bytes. So a block
    that is too large meets the limits of size, and not this limit. processing_s_max: the time from a block's end to its
    verification, the time from there until it is durable, and how long plugins may take no items. After that time the
    node itself has failed. stall_blocks_max: when a block is finished, a publisher loses an unfinished block that is
    more than this many blocks below; the real node's `producer.MaxFutureBlocksBeforeStalled`. ahead_blocks_max,
    queued_bytes_max: when this many blocks are in flight, or this many bytes are not forwarded, the node reads only
    from the publisher that sends the lowest block. resend_s: the interval at which a missing block is requested again.
    idle_s_max: a publisher that sends nothing for this long is disconnected; the real node waits two hours. tick_s: the
    interval between two checks of the limits. slice_items_max, slice_bytes_max: how many items are forwarded, and how
    many bytes are read from one publisher, before other workers of the node have a turn; each takes some hundredths of
    a second.
    """

    sessions_max: int = 1_000
    block_s_max: float = 30.0
    earned_items_per_s: int = 50_000
    earned_bytes_per_s: int = 4 * 1024 * 1024
    processing_s_max: float = 60.0
    stall_blocks_max: int = 3
    ahead_blocks_max: int = 256
    queued_bytes_max: int = 32 * 1024 * 1024
    resend_s: float = 5.0
    idle_s_max: float = 7_200.0
    tick_s: float = 0.5
    slice_items_max: int = 8_192
    slice_bytes_max: int = 1024 * 1024
