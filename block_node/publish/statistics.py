"""The statistics of publishing on one node, as values."""

from __future__ import annotations

import msgspec


class InFlightStatistics(msgspec.Struct, frozen=True):
    """The state of the blocks in flight (accepted from publishers and not durable yet), and counters since the start of
    the node.

    - blocks: the number of blocks in flight.
    - queued_bytes: the memory that received items take until they are forwarded to the plugins.
    - begun: the number of blocks that were accepted.
    - over: the number of accepted blocks that are not in flight any more.
    - expired: the number of blocks that the node took away from publishers that were too slow.
    """

    blocks: int
    queued_bytes: int
    begun: int
    over: int
    expired: int


SESSIONS_LISTED_MAX = 50
"""The largest number of publishers whose state is listed."""


class PublisherStatistics(msgspec.Struct, frozen=True):
    """The state of one connected publisher.

    - publisher_id: the number of its session.
    - block_number: the block that it sends now. None if it sends none.
    - newest_offered: the highest block whose header it has sent. None before its first header.
    - behind: the block that it offered last, if that block was too high for the node; else None.
    - is_held: whether the node has stopped reading from it.
    """

    publisher_id: int
    block_number: int | None
    newest_offered: int | None
    behind: int | None
    is_held: bool


class BlockRefusal(msgspec.Struct, frozen=True):
    """A block that failed verification.

    - failure: the kind of the failure, as a `FailureKind` value. reason: what is wrong, in words.
    """

    block_number: int
    failure: str
    reason: str


class PublishStatistics(msgspec.Struct, frozen=True):
    """The state of publishing, and counters since the start of the node.

    - publishers: the number of connected publishers.
    - publishers_lost: the number of publishers that disconnected without ending their stream, or whose stream the node
      ended for a fault.
    - last_block: the highest acknowledged block. None if no block is.
    - next_block: the lowest block that no publisher sends and that the node does not have.
    - target_block: the highest offered block that the node has not reached. None if there is no such block.
    - catch_up_stalled: whether the node does not get closer to `target_block`.
    - sessions: the first connected publishers.
    - refusals: the last blocks that failed verification, the latest at the end.
    """

    publishers: int
    publishers_lost: int
    last_block: int | None
    next_block: int
    target_block: int | None
    catch_up_stalled: bool
    in_flight: InFlightStatistics
    acknowledgements: int
    refused_blocks: int
    resends_asked: int
    node_failures: int
    sessions: list[PublisherStatistics]
    refusals: list[BlockRefusal]
