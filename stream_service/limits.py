"""The limits of the stream service."""

from __future__ import annotations

import msgspec

PUBLISHER_ID_BYTES_MAX = 64
"""The largest size of a publisher id, in bytes. It is stored with every message. A random id has 16 bytes."""

DELIVERY_BYTES = 1_000
"""The bytes that a push must leave free in the largest frame of its framing. So a consumer with the same framing can
get the message along a return route of some 800 bytes. With the legacy framing, a push has at most 64,000 bytes."""

SEQUENCE_MAX = 2**63 - 1
"""The highest sequence number of a message: the largest integer of SQLite and PostgreSQL."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the stream service. A request above a limit is refused, or served in part."""

    partitions_max: int = 4_096  # of one stream; the real service has no limit and would hang at 2^40
    # stream-partitions of the node; each takes 0.7 KiB of memory, or 3.5 KiB while it is used
    streams_max: int = 100_000
    pull_messages_max: int = 10_000  # in one answer to a pull, whatever it asks for
    pull_bytes_max: int = 1024 * 1024  # of data in one answer to a pull
    # of a message with key and headers: an answer with it and a long route fits the largest frame of the head framing
    message_bytes_max: int = 16 * 1024 * 1024 - 16 * 1024
    # lower than `pull_messages_max`, because `pull_bytes_max` does not count keys and headers
    rich_pull_messages_max: int = 1_000
    key_bytes_max: int = 4 * 1024
    headers_bytes_max: int = 16 * 1024  # of all names and values of one message
    # the longest that a rich pull may wait for a message; the real clients give up after 10 s
    pull_wait_s_max: float = 5.0
    list_streams_max: int = 1_000  # in one answer to `node/stream_list/1`
    truncate_step_messages: int = 1_000  # of one stream that one step deletes; a step takes some milliseconds
    # of all streams that may be in deletion at the same time: pushes wait for them
    truncating_messages: int = 8_000
    truncate_step_bytes: int = 4 * 1024 * 1024  # about how much data one transaction deletes
    tails_bytes_max: int = 32 * 1024 * 1024  # memory for the newest messages of all streams, which need no disk read
    tail_bytes_max: int = 4 * 1024 * 1024  # of one stream: a few pages of a pull
    error_delay_s: float = 1.0  # before a failed push is answered: a real publisher sends it again at once
