"""The limits of the stream service, each with its reason."""

from __future__ import annotations

import msgspec

PUBLISHER_ID_BYTES_MAX = 64
"""The longest publisher id. It is stored with every message of the publisher; a random id has 16 bytes."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the stream service. A request above a limit is refused, or served in part.

    partitions_max: the largest number of partitions of one stream. The real service has no limit and would hang at
    2^40.

    streams_max: the largest number of stream-partitions of the node. Each takes about 2 KiB of memory.

    pull_messages_max, pull_bytes_max: the most messages and bytes of data in one answer to a pull, even if the pull
    asks for more.

    message_bytes_max: the largest message, with its key and headers. An answer with such a message, its envelope and a
    long route still fits the largest frame of the head framing, so every stored message can be pulled.

    rich_pull_messages_max: the most messages in one answer to a rich pull. It is lower, because pull_bytes_max does not
    count keys and headers.

    key_bytes_max: the largest key of a message. headers_bytes_max: the largest total size of the header names and
    values of one message.

    list_streams_max: the most streams in one answer to a listing.

    truncate_step_messages, truncate_step_bytes: the most messages and bytes that one transaction deletes, so that
    pushes never wait long for it.

    pull_wait_s_max: the longest time that a rich pull may wait for a message. The real clients give up after 10 s.

    tails_bytes_max: the memory for the newest messages of all streams. tail_bytes_max: the memory for the newest
    messages of one stream; enough for a consumer that is a few pages behind.

    error_delay_s: the delay before a failed push is answered. A real publisher sends it again as soon as it has the
    answer.
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
