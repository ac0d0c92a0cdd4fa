"""The limits of the index service, and its statistics."""

from __future__ import annotations

import msgspec

TEXT_BYTES_MAX = 1024
"""The largest size of a client id, a stream name or a member id, in bytes of UTF-8."""
INDEX_MAX = 2**63 - 1
"""The highest position that can be saved: the largest integer of SQLite. No stream has a higher index."""
PARTITION_MAX = 2**31 - 1
CREATED_US_MAX = 2**53
"""The latest creation time of a stream, in microseconds since 1970: the year 2255."""
PAGE_POSITIONS_MAX = 1_000
PAGE_BYTES_MAX = 256 * 1024
PAGE_FENCES_MAX = 200
LISTS_WAITING_MAX = 256
"""The largest number of pages that are read at the same time: each can take PAGE_BYTES_MAX of memory."""
SWEEP_GROUPS_MAX = 250
"""The number of groups from which expired members are removed in one turn, in about ten milliseconds."""
UNDER_WAY_MAX = 256
"""While this many loads, sets and leases wait for the storage, the index service reads no further messages."""
FAILURE_DELAY_S = 1.0
"""The delay before the answer to a request that failed with a storage error, or for lack of room, in seconds. Some
clients repeat a failed request as soon as they have the answer."""


class LeaseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of leases. A group is the members of one client id on one stream. One party can have its share
    (`ockam.quotas.limits.share_of`) of `groups_max` and of `entries_max`."""

    ttl_s: float = 10.0  # how long a lease lasts after its last renewal
    members_max: int = 256  # of one group
    partitions_max: int = 4_096  # of one group
    groups_max: int = 10_000  # in memory; a group without members counts until it is removed
    entries_max: int = 200_000  # members and partitions of all groups together; each takes about 300 bytes of memory


LEASE_LIMITS = LeaseLimits()


class LeaseStatistics(msgspec.Struct, frozen=True):
    """The statistics of leases: the numbers of groups, members and leased partitions (`held`) in memory, and the
    counters of `lease_machine.LeaseCounters`."""

    groups: int
    members: int
    held: int
    given: int
    lost: int
    expired: int
    late: int


class IndexStatistics(msgspec.Struct, frozen=True):
    """The counters of the index service since its start."""

    gets: int  # positions that were read for clients, in all protocols; `saves` counts those that were saved
    saves: int
    ignored: int  # requests of the specification's protocols that could not be decoded, and got no answer
    failed: int  # requests that failed with a storage error
    # requests that were answered with `error`: those of our own protocols (`node/index_save/1` and others) that were
    # not valid or not allowed, and all that exceeded a limit
    refused: int
    fenced: int  # saves that were refused because their lease was not the newest one of the partition
    lists: int  # pages of positions that were sent
    sets: int  # positions that an operator set or deleted
    write_failure: str | None  # why gets and saves failed most recently; None if a save was written since
    leases: LeaseStatistics
