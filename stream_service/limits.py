"""Bounds of the stream service, in one place, each with its reason."""

from __future__ import annotations

import msgspec


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client can ask for at most; above it, a request is refused or served in part.

    partitions_max: partitions of one stream; the real service loops over any number (2^40 would end it).
    streams_max: stream-partitions of the whole node, each about 2 KiB of memory.
    pull_messages_max, pull_bytes_max: one answer to a pull, whatever its limit says ("0 - limit messages").
    error_delay_s: how long a failed push waits for its answer, since a real publisher re-sends it at once.
    """

    partitions_max: int = 4_096
    streams_max: int = 100_000
    pull_messages_max: int = 10_000
    pull_bytes_max: int = 1024 * 1024
    error_delay_s: float = 1.0
