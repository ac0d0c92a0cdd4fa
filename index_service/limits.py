"""The limits of the index service, and its statistics."""

from __future__ import annotations

import msgspec

from index_service.lease_machine import LeaseCounters

TEXT_BYTES_MAX = 1024
"""The largest client id, stream name or member id, in UTF-8."""
PARTITION_MAX = 2**31 - 1
"""The highest partition of a saved position."""
PAGE_POSITIONS_MAX = 1_000
"""The most positions of one answer to `node/index_list/1`."""
PAGE_BYTES_MAX = 256 * 1024
"""The most bytes of one answer to `node/index_list/1`."""
LISTS_WAITING_MAX = 256
"""With this many pages being read, the next list is refused: each page may take PAGE_BYTES_MAX of memory."""
FAILURE_DELAY_S = 1.0
"""A request that the disk refused is answered after this delay, so that a client that repeats at once does not spin."""


class LeaseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of leases.

    ttl_s: how long a lease lasts after its last renewal, in seconds. members_max, partitions_max: the most members and
    partitions of one group. groups_max: the most groups in memory: those that have members, and those without that are
    not swept yet. entries_max: the most members and partitions of all groups together; each takes about 300 bytes.
    """

    ttl_s: float = 10.0
    members_max: int = 256
    partitions_max: int = 4_096
    groups_max: int = 10_000
    entries_max: int = 200_000


LEASE_LIMITS = LeaseLimits()
"""The default limits of leases."""


class LeaseStatistics(msgspec.Struct, frozen=True):
    """The statistics of leases.

    groups, members, held: the groups, members and leased partitions that are in memory. `lease_machine.LeaseCounters`
    describes the other numbers, which are counted since the start.
    """

    groups: int
    members: int
    held: int
    given: int
    lost: int
    expired: int
    late: int

    @classmethod
    def of(cls, groups: int, members: int, held: int, counters: LeaseCounters) -> LeaseStatistics:
        return cls(groups, members, held, counters.given, counters.lost, counters.expired, counters.late)


class IndexStatistics(msgspec.Struct, frozen=True):
    """Counters since the start.

    gets, saves: requests for positions in all protocols. ignored: requests of the specification's protocols that could
    not be read or kept. failed: requests that failed with a storage error. refused: requests of our own protocols that
    were answered with `error`. fenced: saves of members that had lost the lease. lists: pages of positions. sets:
    positions set or deleted by an operator.
    """

    gets: int
    saves: int
    ignored: int
    failed: int
    refused: int
    fenced: int
    lists: int
    sets: int
    leases: LeaseStatistics
