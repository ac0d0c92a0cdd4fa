"""The blocks on their way to the log, and every way in which one ends: the only place that gives leases back.

It holds the leases, the forwarder and the watermark, which change together. What publishers and plugins say reaches it
through `block_node.publish.desk`.

Each event that is published here may be answered at once, by a call that changes what is held: a lease is given back
before anybody is told, and nothing looked up before a call is relied on after it.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from block_node.blocks.errors import FailureKind
from block_node.events import VerificationNotification
from block_node.facility import Facility
from block_node.protocol import PublishStatus, ResendBlock, SkipBlock
from block_node.publish.decision import PublishView
from block_node.publish.forwarding import Forwarder
from block_node.publish.leases_machine import Lease, Leases, Stage
from block_node.publish.limits import PublishLimits
from block_node.publish.publisher import Publisher
from block_node.publish.watermark_machine import Watermark

logger = structlog.get_logger(__name__)


class Custody:
    """sessions: the publishers by their ids, whose blocks these are. refused, resends: counters since the start.

    Invariant: every leased block is at or above the watermark's next one, and not durable (`check`).
    """

    def __init__(
        self,
        facility: Facility,
        limits: PublishLimits,
        watermark: Watermark,
        now_s: Callable[[], float],
        go_on_soon: Callable[[], None],
    ) -> None:
        """go_on_soon: has the desk's `go_on` called, when everybody else has had a turn."""
        self._facility = facility
        self._limits = limits
        self._now_s = now_s
        self.sessions: dict[int, Publisher] = {}
        self.leases = Leases()
        self.watermark = watermark
        self.forwarder = Forwarder(
            facility,
            self.leases,
            watermark.next_block,
            self._forwarded,
            slice_items_max=limits.slice_items_max,
            go_on_soon=go_on_soon,
        )
        self.refused = self.resends = 0

    @property
    def view(self) -> PublishView:
        mark = self.watermark
        taken = {*mark.above, *self.leases}
        # What came in another way and is being stored is nobody's lease.
        taken.update(range(mark.next_block, self.forwarder.next_block))
        return PublishView(mark.last_block, mark.next_block, taken, self.crowded)

    @property
    def wanted(self) -> int:
        """As `PublishView.wanted`, without all that a view is made of."""
        block_number = max(self.watermark.next_block, self.forwarder.next_block)
        while block_number in self.leases or block_number in self.watermark.above:
            block_number += 1
        return block_number

    @property
    def crowded(self) -> bool:
        limits = self._limits
        return self.leases.queued_bytes >= limits.queued_bytes_max or len(self.leases) >= limits.ahead_blocks_max

    @property
    def gap(self) -> bool:
        """Nobody sends the block that is to be forwarded next, though later ones are on their way."""
        next_block = self.forwarder.next_block
        return next_block not in self.leases and any(number > next_block for number in self.leases)

    def grant(self, block_number: int, session: Publisher) -> None:
        """The block is free, and this publisher's from now on."""
        if block_number < self.watermark.next_block:
            self.watermark.begin_at(block_number)
            self.forwarder.next_block = block_number
        self.leases.grant(block_number, session.session_id, self._now_s() + self._limits.block_s_max)

    def lease_of(self, session: Publisher, block_number: int) -> Lease:
        """Of the block that this publisher is sending."""
        lease = self.leases.find(block_number)
        assert lease is not None, "who receives a block has its lease"
        assert lease.owner == session.session_id, "and nobody else has it"
        return lease

    def owner(self, lease: Lease) -> Publisher | None:
        return self.sessions.get(lease.owner) if lease.owner is not None else None

    # The ways out of a lease.

    def settle(self, block_number: int) -> bool:
        """The block is durable; whether that moved the watermark."""
        lease = self.leases.find(block_number)
        if lease is not None and lease.stage is Stage.VERIFIED:
            self.leases.give_back(lease)
        elif lease is not None:
            self.take_away(lease)
        moved = self.watermark.durable(block_number)
        self.forwarder.next_block = max(self.forwarder.next_block, self.watermark.next_block)
        return moved

    def take_away(self, lease: Lease) -> None:
        """The block has come in another way."""
        owner, was_receiving = self.owner(lease), lease.stage is Stage.RECEIVING
        self.leases.give_back(lease)
        if owner is not None and was_receiving:
            owner.taken_away()
            owner.tell(SkipBlock(lease.block_number))
        self.forwarder.forget(lease, "the block has come in another way")

    def give_up(self, lease: Lease, reason: str) -> None:
        """It is not finished, and not because of what the plugins said: they forget it."""
        self.leases.give_back(lease)
        logger.info("block_given_up", block=lease.block_number, reason=reason)
        self.forwarder.forget(lease, reason)

    def expire(self, lease: Lease, reason: str) -> None:
        """Its publisher took too long."""
        owner = self.owner(lease)
        self.leases.expired += 1
        lease.owner = None
        self.give_up(lease, reason)
        if owner is not None:
            owner.end(PublishStatus.TIMEOUT, lease.block_number, reason)

    def refuse(self, lease: Lease, notification: VerificationNotification) -> None:
        """The block did not pass; the plugins have forgotten it."""
        owner, was_receiving = self.owner(lease), lease.stage is Stage.RECEIVING
        self.leases.give_back(lease)
        self.refused += 1
        logger.warning(
            "block_refused",
            block=lease.block_number,
            failure=notification.failure,
            reason=notification.reason,
        )
        if owner is not None and was_receiving:
            owner.taken_away()
        if owner is not None and not notification.informational:
            too_large = notification.failure == FailureKind.LIMIT_EXCEEDED.value
            status = PublishStatus.INVALID_REQUEST if too_large else PublishStatus.BAD_BLOCK_PROOF
            owner.end(status, lease.block_number, notification.reason)

    def end_stalled(self, finished_block: int) -> None:
        """Blocks far below one that is finished are taken from who does not send them; not where we do not read."""
        for lease in self.leases.stalled(finished_block, self._limits.stall_blocks_max):
            owner = self.owner(lease)
            if self.leases.find(lease.block_number) is lease and (owner is None or not owner.held):
                self.expire(lease, f"block {finished_block} is complete, and this one is not")

    def make_way(self) -> None:
        """Where too much is on its way above a block that is missing, what is not complete of it is given up."""
        if not self.crowded:
            return
        for lease in self.leases.all():
            if not (self.crowded and self.gap):
                return
            owner = self.owner(lease)
            if lease.stage is Stage.RECEIVING and owner is not None and self.leases.find(lease.block_number) is lease:
                owner.taken_away()
                self._ask_one(owner, self.forwarder.next_block)
                self.give_up(lease, "a block below it is missing, and too much is waiting")

    def drop_all(self) -> None:
        """The node has failed: the plugins have forgotten everything, and so do we."""
        for lease in self.leases.all():
            self.leases.give_back(lease)
        self.forwarder.next_block = self.watermark.next_block

    # What follows.

    def ask(self) -> None:
        """Ask those who are beyond the lowest block that is missing to go back to it; and now and then those who had it
        and are silent.

        For no other hole: who sends this one goes on with those behind it.
        """
        wanted, now_s = self.wanted, self._now_s()
        for session in list(self.sessions.values()):
            silent_since_s = max(session.used_s, session.asked_s)
            is_silent = session.receiving is None and silent_since_s + self._limits.resend_s <= now_s
            if session.cursor > wanted or (is_silent and session.newest_offered >= wanted):
                self._ask_one(session, wanted)

    def _ask_one(self, session: Publisher, block_number: int) -> None:
        session.cursor, session.asked_s = block_number, self._now_s()
        session.tell(ResendBlock(block_number))
        self.resends += 1

    def go_on(self) -> None:
        """Something has changed: ask for what is missing, forward what can be."""
        if not self.leases:
            self.watermark.forget_begin()
            if self.forwarder.next_block < self.watermark.next_block:
                self.forwarder.next_block = self.watermark.next_block
        self.ask()
        self.make_way()
        self.forwarder.run()

    def check(self) -> None:
        """The invariants."""
        self.leases.check()
        self.watermark.check()
        assert all(number >= self.watermark.next_block for number in self.leases)
        assert not any(number in self.watermark.above for number in self.leases)
        assert self.wanted == self.view.wanted

    def _forwarded(self, lease: Lease) -> None:
        lease.deadline_s = self._now_s() + self._limits.processing_s_max
