"""What the index service accepts and keeps at most, and its numbers."""

from __future__ import annotations

import msgspec

from index_service.lease_machine import LeaseCounters

TEXT_BYTES_MAX = 1024
"""Of a client id, a stream name and a member id, in UTF-8."""
PARTITION_MAX = 2**31 - 1
PAGE_POSITIONS_MAX = 1_000
"""Of one answer to `node/index_list/1`."""
PAGE_BYTES_MAX = 256 * 1024
LISTS_WAITING_MAX = 256
"""Pages that are being read; beyond them a list is refused, since each may come to PAGE_BYTES_MAX."""
FAILURE_DELAY_S = 1.0
"""What the disk refused is answered after this, so that a client that asks again at once does not spin."""


class LeaseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """ttl_s: how long a lease outlives its last renewal.

    members_max, partitions_max: of one client id on one stream. groups_max: client ids on streams that have members,
    or had a moment ago. entries_max: members and partitions of all groups together, about 300 bytes each.
    """

    ttl_s: float = 10.0
    members_max: int = 256
    partitions_max: int = 4_096
    groups_max: int = 10_000
    entries_max: int = 200_000


LEASE_LIMITS = LeaseLimits()


class LeaseStatistics(msgspec.Struct, frozen=True):
    """groups, members, held: now, as of the last sweep; held: partitions that are leased. For the others, counted
    since the start, see `lease_machine.LeaseCounters`."""

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

    gets, saves: of positions, of all protocols. ignored: requests of the specification's protocols that could not be
    read or kept. failed: requests lost to a storage error. refused: requests of our own protocols that were answered
    with `error`; fenced: saves of who had lost the lease; lists: pages; sets: by an operator.
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
