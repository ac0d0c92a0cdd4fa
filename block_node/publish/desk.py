"""All publishers of a node together: what is offered, what is answered, what is acknowledged.

It is called by the sessions (`block_node.publish.session`) and with the facility's notifications
(`block_node.publish.service`), all in one thread, so that there is nothing to race. It reads no messages and judges no
block; what is on its way is in `block_node.publish.custody`.

An acknowledgement is a watermark: all blocks up to it are verified and durable. It goes to everybody.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from block_node.events import (
    EVENT_OVERHEAD_BYTES,
    ITEM_OVERHEAD_BYTES,
    CatchUpStalled,
    NewestBlockKnownToNetwork,
    NodeFailed,
    NodeStopping,
    PersistedNotification,
    PublisherChange,
    PublisherStatus,
    Source,
    VerificationNotification,
)
from block_node.facility import Facility
from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    EndStream,
    Piece,
    PublisherEndCode,
    PublishStatus,
    RootAcknowledgement,
    SkipBlock,
)
from block_node.publish.catch_up_machine import CatchUp
from block_node.publish.custody import Custody
from block_node.publish.decision import Verdict, decide
from block_node.publish.durable_roots import DurableRoots, named
from block_node.publish.leases_machine import Chunk, Lease, Stage
from block_node.publish.limits import PublishLimits
from block_node.publish.publisher import DeskStatistics, Publisher
from block_node.publish.watermark_machine import Watermark

logger = structlog.get_logger(__name__)


class PublishDesk:
    """The state of publishing on one node.

    last_block: the highest stored block; None on an empty node. first_block: with which an empty node begins.
    go_on_soon: has `go_on` called, when everybody else on the node has had a turn.
    """

    def __init__(
        self,
        facility: Facility,
        limits: PublishLimits,
        *,
        last_block: int | None,
        first_block: int,
        now_s: Callable[[], float],
        go_on_soon: Callable[[], None],
    ) -> None:
        self._facility = facility
        self._limits = limits
        self._now_s = now_s
        self._ticked_s = self._room_s = self._stored_s = now_s()
        self._acknowledgements = self._failures = 0
        self.custody = Custody(facility, limits, Watermark(last_block, first_block), now_s, go_on_soon)
        self.catch_up = CatchUp()
        self._roots = DurableRoots()

    @property
    def last_block(self) -> int | None:
        """What is acknowledged."""
        return self.custody.watermark.last_block

    @property
    def next_block(self) -> int:
        """The lowest block that nobody sends and the node does not have."""
        return self.custody.wanted

    @property
    def publishers(self) -> int:
        return len(self.custody.sessions)

    # What sessions do.

    def join(self, session: Publisher) -> None:
        sessions = self.custody.sessions
        sessions[session.session_id] = session
        self._facility.publish(PublisherStatus(PublisherChange.CONNECTED, len(sessions)))

    def leave(self, session: Publisher) -> None:
        """The session has ended, in whatever way; what it had not finished goes back. Safe to repeat."""
        custody = self.custody
        if custody.sessions.pop(session.session_id, None) is None:
            return
        for lease in custody.leases.all():
            if lease.owner == session.session_id:
                lease.owner = None
                if lease.stage is Stage.RECEIVING and custody.leases.find(lease.block_number) is lease:
                    custody.give_up(lease, "its publisher has left")
        if session.behind is not None and (self.last_block is None or session.behind > self.last_block):
            # It did not send what is missing: somebody else must (specs/block_publish.md, "Base Protocol").
            self._facility.publish(NewestBlockKnownToNetwork(session.behind))
        self._facility.publish(PublisherStatus(PublisherChange.DISCONNECTED, len(custody.sessions)))
        self.go_on()

    def offer(self, session: Publisher, block_number: int) -> Verdict:
        """A header has come. With ACCEPT the session has the lease; else it has been told why not."""
        session.newest_offered = max(session.newest_offered, block_number)
        session.cursor = block_number + 1
        view = self.custody.view
        verdict = decide(block_number, view)
        session.behind = block_number if verdict is Verdict.BEHIND else None
        if verdict is Verdict.ACCEPT:
            self.custody.grant(block_number, session)
        elif verdict is Verdict.DUPLICATE and view.last_block is not None:
            session.cursor = view.last_block + 1
            session.tell(DuplicateBlock(block_number, view.last_block))
        elif verdict is Verdict.SKIP:
            session.tell(SkipBlock(block_number))
        else:
            session.cursor = view.wanted
            session.tell(Behind(block_number, view.last_block, view.wanted))
            self._note_behind(block_number)
        return verdict

    def add(self, session: Publisher, block_number: int, items: list[bytes], piece: Piece) -> None:
        """Items of the block that the session is sending."""
        custody = self.custody
        lease = custody.lease_of(session, block_number)
        size_bytes = sum(map(len, items)) + ITEM_OVERHEAD_BYTES * len(items) + EVENT_OVERHEAD_BYTES
        custody.leases.add(lease, Chunk(items, size_bytes, piece))
        limits = self._limits
        custody.leases.earn(lease, len(items) / limits.earned_items_per_s + size_bytes / limits.earned_bytes_per_s)
        if lease.block_number == custody.forwarder.next_block:
            custody.forwarder.run()
        elif custody.crowded:
            custody.make_way()

    def begin_anew(self, session: Publisher, block_number: int) -> None:
        """The header came again: forget what came of the block before it."""
        lease = self.custody.lease_of(session, block_number)
        self.custody.leases.clear(lease)
        # What came before is not wanted any more, and earns nothing.
        self.custody.leases.earn(lease, -lease.earned_s)
        self.custody.forwarder.forget(lease, "its publisher began it anew")

    def complete(self, session: Publisher, block_number: int) -> None:
        """The end of the block has come."""
        lease = self.custody.lease_of(session, block_number)
        lease.stage = Stage.COMPLETE
        self.custody.end_stalled(lease.block_number)
        self.go_on()

    def give_back(self, session: Publisher, block_number: int, reason: str) -> None:
        """The session does not go on with its block; `go_on` is to follow."""
        self.custody.give_up(self.custody.lease_of(session, block_number), reason)

    def publisher_ended(self, session: Publisher, end: EndStream) -> None:
        """What a publisher says at its end; `leave` follows."""
        latest = end.latest_block
        if end.code is PublisherEndCode.TOO_FAR_BEHIND and latest is not None and latest >= (end.earliest_block or 0):
            session.behind = max(latest, -1 if session.behind is None else session.behind)

    def may_read(self, session: Publisher) -> bool:
        """Whether to take more from this publisher; if not, it is admitted later."""
        custody = self.custody
        if not custody.crowded:
            return True
        lease = custody.leases.find(session.receiving)
        if lease is not None and lease.block_number == custody.forwarder.next_block:
            return not self._facility.full and not custody.forwarder.resting
        return custody.gap

    # What notifications do.

    def verified(self, notification: VerificationNotification) -> None:
        custody = self.custody
        lease = custody.leases.find(notification.block_number)
        if not notification.attempt:
            if notification.success and notification.block_number == custody.forwarder.next_block:
                custody.forwarder.next_block += 1
                if lease is not None:
                    custody.take_away(lease)
                self.go_on()
        elif lease is not None and lease.attempt == notification.attempt:
            if notification.success:
                lease.stage, lease.root = Stage.VERIFIED, notification.root
                lease.deadline_s = self._now_s() + self._limits.processing_s_max
                custody.forwarder.next_block = lease.block_number + 1
            else:
                custody.refuse(lease, notification)
            self.go_on()

    def persisted(self, notification: PersistedNotification) -> None:
        block_number = notification.block_number
        if block_number < self.custody.watermark.next_block:
            return
        if not notification.succeeded:
            self._not_persisted(notification)
            return
        lease = self.custody.leases.find(block_number)
        # What a session sent is its own only where this very attempt is what was stored.
        own = lease is not None and lease.stage is Stage.VERIFIED and lease.root == notification.root
        self._roots.note(block_number, notification.root, lease.owner if lease is not None and own else None)
        if self.custody.settle(block_number):
            self._acknowledge()
        self.custody.end_stalled(block_number)
        self.go_on()

    def node_failed(self, failure: NodeFailed) -> None:
        """End every stream; whatever is not durable is to be sent again."""
        self._failures += 1
        self.custody.drop_all()
        status = PublishStatus.PERSISTENCE_FAILED if failure.persistence else PublishStatus.ERROR
        for session in list(self.custody.sessions.values()):
            session.end(status, failure.block_number, failure.reason)

    def node_stops(self, stopping: NodeStopping) -> None:
        """End every stream in good order; what is not acknowledged is to be sent elsewhere, or again."""
        self.custody.drop_all()
        for session in list(self.custody.sessions.values()):
            session.end(PublishStatus.SUCCESS, None, stopping.reason)

    def tick(self) -> None:
        """To be called every `tick_s`: deadlines, publishers that are gone, holes that nobody fills."""
        now_s = self._now_s()
        for session in list(self.custody.sessions.values()):
            if not session.reachable:
                session.leave()
            elif session.receiving is None and not session.held and session.used_s + self._limits.idle_s_max <= now_s:
                session.end(PublishStatus.TIMEOUT, None, f"nothing came for {self._limits.idle_s_max:g} s")
        self._check_deadlines(now_s)
        self.go_on()
        self.custody.check()

    def go_on(self) -> None:
        """Something has changed: forward what can be, and read from those who had to wait."""
        self.custody.go_on()
        for session in list(self.custody.sessions.values()):
            if session.held and self.may_read(session):
                session.admit()

    def statistics(self) -> DeskStatistics:
        return DeskStatistics(
            publishers=self.publishers,
            last_block=self.last_block,
            next_block=self.next_block,
            target_block=self.catch_up.target,
            catch_up_stalled=self.catch_up.stalled,
            leases=self.custody.leases.statistics(),
            acknowledgements=self._acknowledgements,
            refused_blocks=self.custody.refused,
            resends_asked=self.custody.resends,
            node_failures=self._failures,
        )

    def _note_behind(self, block_number: int) -> None:
        stalled = self.catch_up.offered(block_number, self.last_block, self._now_s())
        if stalled is not None:
            logger.warning("block_catch_up_stalled", target=stalled.target_block, last_block=self.last_block)
            self._facility.publish(CatchUpStalled(stalled.target_block, self.last_block, stalled.contacts))

    def _acknowledge(self) -> None:
        last_block = self.last_block
        assert last_block is not None, "the watermark has moved"
        self.catch_up.reached(last_block)
        self._acknowledgements += 1
        roots = self._roots.take(last_block)
        for session in list(self.custody.sessions.values()):
            if session.wants_roots:
                session.tell(RootAcknowledgement(last_block, named(roots, session.session_id)))
            else:
                session.tell(Acknowledgement(last_block))

    def _not_persisted(self, notification: PersistedNotification) -> None:
        custody, block_number = self.custody, notification.block_number
        stages = {lease.stage for lease in custody.leases.all()}
        if notification.source is Source.PUBLISHER or stages & {Stage.VERIFYING, Stage.VERIFIED}:
            reason = f"block {block_number} is not confirmed: {notification.reason}"
            self._facility.publish(NodeFailed(reason, True, block_number))
        else:
            custody.forwarder.next_block = min(custody.forwarder.next_block, block_number)
            self.go_on()

    def _check_deadlines(self, now_s: float) -> None:
        custody = self.custody
        for lease in custody.leases.all():
            owner = custody.owner(lease)
            if lease.stage is Stage.RECEIVING and owner is not None and owner.held:
                lease.deadline_s += now_s - self._ticked_s
        self._ticked_s = now_s
        for lease in custody.leases.late(now_s):
            if custody.leases.find(lease.block_number) is not lease:
                continue
            if lease.stage is not Stage.RECEIVING:
                self._facility.publish(self._too_slow(lease))
                return
            custody.expire(lease, f"the block was not complete after {self._limits.block_s_max + lease.earned_s:g} s")
        self._watch_plugins(now_s)

    def _watch_plugins(self, now_s: float) -> None:
        """The plugins take nothing for long, or do not store what came to them in another way."""
        next_block = self.custody.watermark.next_block
        if not self._facility.full:
            self._room_s = now_s
        if next_block in self.custody.leases or next_block >= self.custody.forwarder.next_block:
            self._stored_s = now_s
        if min(self._room_s, self._stored_s) + self._limits.processing_s_max > now_s:
            return
        if self._room_s < self._stored_s:
            self._facility.publish(NodeFailed(f"the plugins took nothing for {self._limits.processing_s_max:g} s"))
        else:
            reason = f"block {next_block} was not stored in {self._limits.processing_s_max:g} s"
            self._facility.publish(NodeFailed(reason, True, next_block))
        self._room_s = self._stored_s = now_s

    def _too_slow(self, lease: Lease) -> NodeFailed:
        stored = lease.stage is Stage.VERIFIED
        what = "stored" if stored else "verified"
        reason = f"block {lease.block_number} was not {what} in {self._limits.processing_s_max:g} s"
        return NodeFailed(reason, stored, lease.block_number)
