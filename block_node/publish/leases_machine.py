"""Who sends which block, and until when: one lease per block that is on its way to the log.

A lease is granted with the first header, passes through its stages, and is given back exactly once: because the block
is durable, or because it will not be (`block_node.publish.custody` knows the ways out). It holds what has come of the
block and has not been forwarded. It reads no clock: times are the caller's, in seconds.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator

import msgspec

from block_node.protocol import Piece


class Stage(enum.Enum):
    """RECEIVING: its items are coming. COMPLETE: all have come; blocks before it are not verified yet, or the plugins
    have no room. VERIFYING: all have been forwarded. VERIFIED: it is being stored."""

    RECEIVING = "receiving"
    COMPLETE = "complete"
    VERIFYING = "verifying"
    VERIFIED = "verified"


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Items as they came in one message. size_bytes: of the items and of what keeping them costs."""

    items: list[bytes]
    size_bytes: int
    piece: Piece


class Lease:
    """One block on its way.

    owner: the session that sends it; None once it has left, which a complete block survives. attempt: given when its
    forwarding begins, else 0. deadline_s: when the stage must have ended. earned_s: how much later
    that is for what has come. root: once it is verified.
    Invariant: `queued_bytes` is the sum over `queue`.
    """

    __slots__ = ("attempt", "block_number", "deadline_s", "earned_s", "owner", "queue", "queued_bytes", "root", "stage")

    def __init__(self, block_number: int, owner: int, deadline_s: float) -> None:
        self.block_number = block_number
        self.owner: int | None = owner
        self.deadline_s = deadline_s
        self.stage = Stage.RECEIVING
        self.attempt = 0
        self.root = b""
        self.earned_s = 0.0
        self.queue: deque[Chunk] = deque()
        self.queued_bytes = 0


class LeaseStatistics(msgspec.Struct, frozen=True):
    """granted, returned: since the start; their difference is `live`. expired: taken back by a deadline or a stall."""

    live: int
    granted: int
    returned: int
    expired: int
    queued_bytes: int


class Leases:
    """The leases of one node.

    Invariant: granted - returned leases are live, and `queued_bytes` is the sum over them (`check`).
    """

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._granted = self._returned = 0
        self.expired = 0
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, block_number: object) -> bool:
        return block_number in self._leases

    def __iter__(self) -> Iterator[int]:
        return iter(self._leases)

    def all(self) -> list[Lease]:
        """By block number."""
        return [self._leases[block_number] for block_number in sorted(self._leases)]

    def find(self, block_number: int | None) -> Lease | None:
        return self._leases.get(block_number) if block_number is not None else None

    def grant(self, block_number: int, owner: int, deadline_s: float) -> Lease:
        """The block must not be leased."""
        assert block_number not in self._leases, "a block has one lease"
        lease = self._leases[block_number] = Lease(block_number, owner, deadline_s)
        self._granted += 1
        return lease

    def give_back(self, lease: Lease) -> None:
        """The lease must be live."""
        del self._leases[lease.block_number]
        self._returned += 1
        self.clear(lease)

    def add(self, lease: Lease, chunk: Chunk) -> None:
        lease.queue.append(chunk)
        lease.queued_bytes += chunk.size_bytes
        self.queued_bytes += chunk.size_bytes

    def earn(self, lease: Lease, seconds: float) -> None:
        """Give a block that is coming more time."""
        lease.earned_s += seconds
        lease.deadline_s += seconds

    def next_chunk(self, lease: Lease) -> Chunk:
        """Take the oldest chunk that has not been forwarded."""
        chunk = lease.queue.popleft()
        lease.queued_bytes -= chunk.size_bytes
        self.queued_bytes -= chunk.size_bytes
        return chunk

    def clear(self, lease: Lease) -> None:
        """Forget what has come and has not been forwarded."""
        self.queued_bytes -= lease.queued_bytes
        lease.queue.clear()
        lease.queued_bytes = 0

    def late(self, now_s: float) -> list[Lease]:
        """Those whose stage should have ended by now."""
        return [lease for lease in self.all() if lease.stage is not Stage.COMPLETE and lease.deadline_s <= now_s]

    def stalled(self, finished_block: int, blocks_max: int) -> list[Lease]:
        """Those still being received although a block more than `blocks_max` above them is finished, in order."""
        end = finished_block - blocks_max
        found = [number for number, lease in self._leases.items() if number < end and lease.stage is Stage.RECEIVING]
        return [self._leases[number] for number in sorted(found)]

    def statistics(self) -> LeaseStatistics:
        return LeaseStatistics(len(self._leases), self._granted, self._returned, self.expired, self.queued_bytes)

    def check(self) -> None:
        """The invariants."""
        assert self._granted - self._returned == len(self._leases), "a lease was lost, or given back twice"
        assert self.queued_bytes == sum(lease.queued_bytes for lease in self._leases.values())
        for lease in self._leases.values():
            assert lease.queued_bytes == sum(chunk.size_bytes for chunk in lease.queue)
