"""The limits of the stream service."""

from __future__ import annotations

import msgspec

PUBLISHER_ID_BYTES_MAX = 64
"""The largest size of a publisher id, in bytes. The id is stored with every message of the publisher. A random id has
16 bytes."""

DELIVERY_BYTES = 1_000
"""A push must leave this many bytes of the largest frame of its own framing free. So a consumer with the same framing
can get the message, with everything that is around it in an answer, along a return route of some 800 bytes. With the
legacy framing, a push has at most 64,000 bytes."""

SEQUENCE_MAX = 2**63 - 1
"""The highest sequence number of a message: the largest integer of SQLite and PostgreSQL."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the stream service. A request above a limit is refused, or served in part.

    partitions_max: the largest number of partitions of one stream. The real service has no limit and would hang at 2^40
    partitions.

    streams_max: the largest number of stream-partitions of the node. Each takes about 9 KiB of memory.

    pull_messages_max: the largest number of messages in one answer to a pull, even if the pull asks for more.
    pull_bytes_max: the largest number of bytes of data in one answer to a pull.

    message_bytes_max: the largest size of a message with its key and headers, in bytes. An answer with one such
    message, its envelope and a long route still fits into the largest frame of the head framing, which Ockam uses since
    June 2024. So every stored message can be pulled.

    rich_pull_messages_max: the largest number of messages in one answer to a rich pull (`node/stream_pull/1`). It is
    lower than `pull_messages_max`, because `pull_bytes_max` does not count keys and headers.

    key_bytes_max: the largest size of the key of a message, in bytes.
    headers_bytes_max: the largest total size of the header names and values of one message, in bytes.

    pull_wait_s_max: the longest time that a rich pull may wait for a message, in seconds. The real clients give up
    after 10 s.

    list_streams_max: the largest number of streams in one answer to `node/stream_list/1`.

    truncate_step_messages: the largest number of messages that one transaction deletes. A longer deletion takes several
    transactions, so that pushes never wait long.
    truncate_step_bytes: about the largest number of bytes that one transaction deletes.

    tails_bytes_max: the memory for the newest messages of all streams, in bytes.
    tail_bytes_max: the memory for the newest messages of one stream, in bytes. Consumers read these messages without a
    disk read. The default holds a few pages of a pull.

    error_delay_s: the delay before a failed push is answered, in seconds. A real publisher sends a failed push again as
    soon as it has the answer.
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
