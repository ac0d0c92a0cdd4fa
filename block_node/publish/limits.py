"""The limits of publishing: the numbers, times and sizes that the node grants to publishers of blocks."""

from __future__ import annotations

import msgspec


class PublishLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of publishing. Times are in seconds, sizes in bytes.

    - sessions_max: the maximum number of publishers at a time. The reference block node has 1,000 connections.
    - block_s_max: the time from a block's header to its end. Time in which the node did not read does not count.
      Received items extend this time: by one second for every `earned_items_per_s` items, and by one second for every
      `earned_bytes_per_s` bytes. So a block that is too large reaches the limits of size before this limit.
    - processing_s_max: the time from a block's end to its verification, the time from its verification until it is
      durable, and the time for which plugins may accept no items. If a plugin takes longer, the node itself has failed.
    - stall_blocks_max: when a block is complete, the node ends the streams of publishers that are too far
      behind: those whose incomplete block has a number lower by more than this limit. The reference block node calls
      this limit `producer.MaxFutureBlocksBeforeStalled`.
    - ahead_blocks_max, queued_bytes_max: the maximum number of blocks in flight, and of received bytes that wait
      for the plugins. When either is reached, the node reads only from the publisher of the lowest block that is
      not verified.
    - resend_s: the interval at which the node requests a missing block again.
    - idle_s_max: a publisher that sends nothing for this long is disconnected. The reference block node waits
      two hours.
    - tick_s: the interval between two checks of the limits.
    - slice_items_max, slice_bytes_max: how many items are passed to the plugins, and how many bytes are read from one
      publisher, before other workers of the node run. Either takes some hundredths of a second.
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
