"""The statistics of publishing on one node."""

from __future__ import annotations

import msgspec


class InFlightStatistics(msgspec.Struct, frozen=True):
    """The blocks in flight, and since the start of the node: `begun` blocks were accepted, `over` are not in flight any
    more, `expired` were taken away from slow publishers."""

    blocks: int
    queued_bytes: int
    begun: int
    over: int
    expired: int


SESSIONS_LISTED_MAX = 50


class PublisherStatistics(msgspec.Struct, frozen=True):
    """A connected publisher, see `PublisherState`. block_number: the block that it sends now."""

    publisher_id: int
    peer: str
    block_number: int | None
    newest_offered: int | None
    behind: int | None
    is_held: bool


class BlockRefusal(msgspec.Struct, frozen=True):
    """A block that failed verification. failure: a `FailureKind` value."""

    block_number: int
    failure: str
    reason: str


class PublishStatistics(msgspec.Struct, frozen=True):
    """The state of publishing, and counters since the start of the node.

    - publishers_lost: publishers that disconnected without ending their stream, or whose stream ended for a fault.
    - last_block: the highest acknowledged block. next_block: the lowest that the node lacks and nobody sends.
    - target_block: the highest offered block that the node has not reached.
    - sessions: the first connected publishers. refusals: the last blocks that failed verification, latest last.
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
