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


class PublishStatistics(msgspec.Struct, frozen=True):
    """The state of publishing, and counters since the start of the node.

    - publishers: the number of connected publishers.
    - last_block: the highest acknowledged block. None if no block is.
    - next_block: the lowest block that no publisher sends and that the node does not have.
    - target_block: the highest offered block that the node has not reached. None if there is no such block.
    - catch_up_stalled: whether the node does not get closer to `target_block`.
    """

    publishers: int
    last_block: int | None
    next_block: int
    target_block: int | None
    catch_up_stalled: bool
    in_flight: InFlightStatistics
    acknowledgements: int
    refused_blocks: int
    resends_asked: int
    node_failures: int
