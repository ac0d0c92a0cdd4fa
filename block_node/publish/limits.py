from __future__ import annotations

import msgspec


class PublishLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of publishing, for all publishers of the node.

    - block_s_max: the time from a block's header to its end. Time in which the node did not read does not count.
      Received items extend this time, by one second for every `earned_items_per_s` items and every `earned_bytes_per_s`
      bytes. So a block that is too large reaches the limits of size before this limit.
    - processing_s_max: the longest time for verifying a block, for storing it, and for a full plugin to take an event.
      If a plugin takes longer, the node itself has failed.
    - stall_blocks_max: the stream of a publisher ends if its block is more than this many numbers below a complete one,
      as by `producer.MaxFutureBlocksBeforeStalled` of the reference block node.
    - ahead_blocks_max, queued_bytes_max: the most blocks in flight, and received bytes that wait for the plugins. When
      either is reached, the node reads only from the publisher of the lowest block that is not verified.
    - resend_s: the interval at which the node requests a missing block again.
    - idle_s_max: a publisher that sends nothing for this long is disconnected. The reference block node waits as long.
    - slice_items_max, slice_bytes_max: how much is passed to the plugins, or read from one publisher, before other
      workers of the node run. Either takes some hundredths of a second.
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
