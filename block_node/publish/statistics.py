"""The statistics of publishing on one node, as values."""

from __future__ import annotations

import msgspec


class InFlightStatistics(msgspec.Struct, frozen=True):
    """The number of blocks in flight and the bytes that wait to be forwarded, and counters since the start.

    begun, over: the number of accepted blocks, and of accepted blocks that are not in flight any more. expired: the
    number of blocks taken away from publishers that were too slow.
    """

    blocks: int
    queued_bytes: int
    begun: int
    over: int
    expired: int


class PublishStatistics(msgspec.Struct, frozen=True):
    """The state of publishing, and counters since the start.

    last_block: the highest acknowledged block. next_block: the lowest block that no publisher sends and the node does
    not have. target_block, catch_up_stalled: see `block_node.publish.catch_up_machine`.
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
