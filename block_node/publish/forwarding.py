"""Hands what comes of blocks to the facility, one block at a time, in the order of block numbers.

The next block begins when the one before it is verified: a block that continues a bad one cannot be judged. It grants
and returns no leases.
"""

from __future__ import annotations

from collections.abc import Callable

from block_node.events import BlockBegun, BlockDropped, BlockEnded, ItemsReceived
from block_node.facility import Facility
from block_node.publish.leases_machine import Lease, Leases, Stage


class Forwarder:
    """next_block: the one that is being forwarded, or is to be; all before it are verified.

    stage_ended: called when all of a block has been forwarded, after which it is VERIFYING. slice_items_max: items that
    one `run` forwards at most, or a few more; then `resting` is true, and `go_on_soon` has somebody call it again.
    """

    def __init__(
        self,
        facility: Facility,
        leases: Leases,
        next_block: int,
        stage_ended: Callable[[Lease], None],
        *,
        slice_items_max: int,
        go_on_soon: Callable[[], None],
    ) -> None:
        self._facility = facility
        self._leases = leases
        self._stage_ended = stage_ended
        self._attempts = 0
        self._running = False
        self._again = False
        self._waiting = False
        self._slice_items = 0
        self._slice_items_max = slice_items_max
        self._go_on_soon = go_on_soon
        self.resting = False
        self.next_block = next_block

    def run(self) -> None:
        """Forward what can be. A call from within, by somebody who is told of an event, leaves the work to that one."""
        if self._running:
            self._again = True
            return
        self._running = True
        self.resting, self._slice_items = False, 0
        try:
            while self._forward() or self._again:
                self._again = False
                if self._slice_items >= self._slice_items_max:
                    self.resting = True
                    self._go_on_soon()
                    return
        finally:
            self._running = False

    def forget(self, lease: Lease, reason: str) -> None:
        """The lease ends while its block may be with the plugins, and not because of what they said."""
        if lease.attempt and lease.stage is not Stage.VERIFIED:
            self._facility.publish(BlockDropped(lease.block_number, lease.attempt, reason))
            lease.attempt = 0

    def _forward(self) -> bool:
        """Forward one piece; whether there may be more to do."""
        lease = self._leases.find(self.next_block)
        if lease is None or lease.stage not in (Stage.RECEIVING, Stage.COMPLETE):
            return False
        if not lease.queue and lease.stage is Stage.RECEIVING:
            return False
        if self._facility.full:
            if not self._waiting:
                self._waiting = True
                self._facility.when_room(self._room)
            return False
        if not lease.attempt:
            self._attempts += 1
            lease.attempt = self._attempts
            self._facility.publish(BlockBegun(lease.block_number, lease.attempt))
        elif lease.queue:
            chunk = self._leases.next_chunk(lease)
            size_bytes = sum(map(len, chunk.items))
            self._slice_items += len(chunk.items)
            self._facility.publish(
                ItemsReceived(lease.block_number, lease.attempt, chunk.items, size_bytes, chunk.piece)
            )
        else:
            lease.stage = Stage.VERIFYING
            self._stage_ended(lease)
            self._facility.publish(BlockEnded(lease.block_number, lease.attempt))
        return True

    def _room(self) -> None:
        self._waiting = False
        self.run()
