"""Every limit of publishing."""

from __future__ import annotations

import msgspec


class PublishLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes.

    sessions_max: publishers at one time; the real block node has 1,000 connections.
    block_s_max: from a block's header to its end; the time in which we did not read does not count, and what has come
    of the block earns more time: a second for so many items (earned_items_per_s) and for so many bytes
    (earned_bytes_per_s), so that a block over the limits meets these, and not the time.
    processing_s_max: from a block's end to its verification, from that until it is durable, and how long plugins may
    take nothing; beyond, the node itself has failed.
    stall_blocks_max: a block this far below one that is finished, and one more, is taken from who sends it; the real
    node's `producer.MaxFutureBlocksBeforeStalled`.
    ahead_blocks_max, queued_bytes_max: with so many blocks on their way, or bytes that were not forwarded, only the
    publisher that sends the lowest block is read.
    resend_s: how often a missing block is asked for again. idle_s_max: a publisher that sends nothing is ended after
    this; the real node's two hours. tick_s: how often all that is looked at.
    slice_items_max, slice_bytes_max: what is forwarded, and what is read of one publisher, before everybody else on the
    node has a turn: some hundredths of a second.
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
