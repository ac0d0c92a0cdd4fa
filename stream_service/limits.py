"""Bounds of the stream service, in one place, each with its reason."""

from __future__ import annotations

import msgspec

PUBLISHER_ID_BYTES_MAX = 64
"""It is stored with every message of its publisher; a random one has 16 bytes."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client can ask for at most; above it, a request is refused or served in part.

    partitions_max: partitions of one stream; the real service loops over any number (2^40 would end it).
    streams_max: stream-partitions of the whole node, each about 2 KiB of memory.
    pull_messages_max, pull_bytes_max: one answer to a pull, whatever its limit says ("0 - limit messages").
    message_bytes_max: of one message with its key and headers: with an envelope and a long route around it, an answer
    must still fit the largest frame of the head framing, or nobody could ever pull it.
    rich_pull_messages_max: the same of a rich pull, whose keys and headers are not counted in pull_bytes_max.
    key_bytes_max, headers_bytes_max: of one message, names and values of its headers together.
    list_streams_max: streams in one answer to a listing.
    truncate_step_messages, truncate_step_bytes: deleted in one transaction, so that pushes never wait for long.
    pull_wait_s_max: how long a rich pull may wait for a message; the real clients give up after 10 s.
    tails_bytes_max: the newest messages of all streams together that are kept in memory; tail_bytes_max: of one stream,
    enough for a consumer that is a few pages behind.
    error_delay_s: how long a failed push waits for its answer, since a real publisher re-sends it at once.
    """

    partitions_max: int = 4_096
    streams_max: int = 100_000
    pull_messages_max: int = 10_000
    pull_bytes_max: int = 1024 * 1024
    message_bytes_max: int = 16 * 1024 * 1024 - 16 * 1024
    rich_pull_messages_max: int = 1_000
    key_bytes_max: int = 4 * 1024
    headers_bytes_max: int = 16 * 1024
    pull_wait_s_max: float = 5.0
    list_streams_max: int = 1_000
    truncate_step_messages: int = 1_000
    truncate_step_bytes: int = 4 * 1024 * 1024
    tails_bytes_max: int = 32 * 1024 * 1024
    tail_bytes_max: int = 4 * 1024 * 1024
    error_delay_s: float = 1.0
