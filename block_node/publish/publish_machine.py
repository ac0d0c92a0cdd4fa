"""The state of all publishing on one node: which publisher sends which block, and the stage of each block. No I/O.

The machine handles events from publishers, plugins and the clock. It changes its own state at once and appends actions
to `effects`: answers to publishers, events for the plugins, log lines. `block_node.publish.service` carries them out
later, in the order in which they were listed, so no other part of the node ever sees a half-done change.

The caller passes all times, in seconds. Source: specs/block_publish.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from block_node.blocks.errors import FailureKind
from block_node.events import (
    BlockDropped,
    BlockOrigin,
    Event,
    NewestBlockKnownToNetwork,
    NodeFailure,
    PersistedNotification,
    PublisherStatus,
    VerificationNotification,
)
from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    EndStream,
    Piece,
    PublishResponse,
    PublishStatus,
    ResendBlock,
    RootAcknowledgement,
    SkipBlock,
    StreamEnded,
)
from block_node.publish.block_machine import (
    BlockChange,
    BlockInFlight,
    Blocks,
    DurableRoots,
    HeaderDecision,
    InFlightStatistics,
    PublishLimits,
    Stage,
    Then,
    Watermark,
    decide,
    named,
)
from block_node.publish.catch_up_machine import CatchUp, PluginWatch
from block_node.publish.session_machine import Action, Input, PublisherState, PublisherStatistics, SessionState

REFUSALS_KEPT_MAX = 20
SESSIONS_LISTED_MAX = 50


class BlockRefusal(msgspec.Struct, frozen=True):
    """A block that failed verification. failure: a `FailureKind` value."""

    block_number: int
    failure: str
    reason: str


class PublishStatistics(msgspec.Struct, frozen=True):
    """The state of publishing, and counters since the start of the node.

    - publishers_lost: publishers that disconnected without ending their stream, or whose stream ended for a fault.
    - last_block: the highest acknowledged block. next_block: the lowest block that the node lacks and no publisher
    sends.
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


class SendResponse(msgspec.Struct, frozen=True):
    publisher_id: int
    response: PublishResponse


class EndSession(msgspec.Struct, frozen=True):
    """Ends a publisher's session. ended: the last answer; None if the publisher has left."""

    publisher_id: int
    ended: StreamEnded | None


class LogLine(msgspec.Struct, frozen=True):
    event: str
    fields: dict[str, Any]
    is_warning: bool = False


Effect: TypeAlias = SendResponse | EndSession | LogLine | Event


def status_of(failure: str | None) -> PublishStatus:
    too_large = failure == FailureKind.LIMIT_EXCEEDED.value
    return PublishStatus.INVALID_REQUEST if too_large else PublishStatus.BAD_BLOCK_PROOF


class PublishMachine:
    """The state of publishing on one node. A new machine continues after `last_block`, the highest stored block; if
    that is None, it begins at `first_block`. Every publisher receives every acknowledgement, which names the watermark.

    - effects: the actions to be carried out, oldest first.
    - forward_due, admit_due: the caller must forward items to the plugins, or check which paused publishers may be read
      again. The caller clears these flags.

    Invariant (`check`): a session receives a block exactly if the block is RECEIVING and belongs to its publisher. A
    block in any other stage belongs to a connected publisher, or to none.
    """

    def __init__(self, limits: PublishLimits, *, last_block: int | None, first_block: int, now_s: float) -> None:
        self._limits = limits
        self.blocks = Blocks(limits, Watermark(last_block, first_block))
        self._publishers: dict[int, PublisherState] = {}
        self._roots = DurableRoots()
        self._catch_up = CatchUp()
        self._ticked_s = now_s
        self._plugins = PluginWatch(limits.processing_s_max, now_s)
        self._refusals: deque[BlockRefusal] = deque(maxlen=REFUSALS_KEPT_MAX)
        self._refused = self._acknowledgements = self._resends = self._failures = self._lost = 0
        self.effects: deque[Effect] = deque()
        self.forward_due = self.admit_due = False

    # The state of publishing.

    @property
    def last_block(self) -> int | None:
        return self.blocks.watermark.last_block

    @property
    def publishers(self) -> int:
        return len(self._publishers)

    @property
    def feeding(self) -> int:
        return sum(each.behind is None for each in self._publishers.values())

    def may_read(self, publisher: PublisherState, has_room: Callable[[], bool]) -> bool:
        """Whether to continue reading from this publisher. has_room: called only if the answer depends on it."""
        # Below the limits, the node reads from every publisher.
        if not self.blocks.is_crowded:
            return True
        # The rest of the block that is being verified makes room: no other block can be verified before it. If no
        # publisher sends that block, `_make_room` gives up others, and all publishers are read.
        if publisher.session.block_number == self.blocks.next_to_verify:
            return has_room()
        return self.blocks.has_gap

    def statistics(self) -> PublishStatistics:
        return PublishStatistics(
            publishers=self.publishers,
            publishers_lost=self._lost,
            last_block=self.last_block,
            next_block=self.blocks.next_block,
            target_block=self._catch_up.target,
            catch_up_stalled=self._catch_up.stalled,
            in_flight=self.blocks.statistics(),
            acknowledgements=self._acknowledgements,
            refused_blocks=self._refused,
            resends_asked=self._resends,
            node_failures=self._failures,
            sessions=[each.describe() for each in islice(self._publishers.values(), SESSIONS_LISTED_MAX)],
            refusals=list(self._refusals),
        )

    def check(self) -> None:
        # Each block in flight and its publisher agree about the arriving block.
        self.blocks.check()
        for block in self.blocks.all():
            publisher = block.publisher
            if publisher is None:
                assert block.stage is not Stage.RECEIVING
            else:
                assert self._publishers.get(publisher.publisher_id) is publisher
                assert (block.stage is Stage.RECEIVING) == (publisher.session.block_number == block.number)
        # Each block that a session receives is in flight.
        for publisher in self._publishers.values():
            publisher.session.check()
            assert publisher.session.block_number is None or publisher.session.block_number in self.blocks

    # Events from publishers.

    def join(self, publisher: PublisherState) -> None:
        self._publishers[publisher.publisher_id] = publisher
        self.effects.append(PublisherStatus(len(self._publishers)))

    def leave(self, publisher: PublisherState, now_s: float) -> None:
        """Removes a publisher that has disconnected, without an answer to it. Safe to repeat."""
        self._close(publisher, None)
        self.go_on(now_s)

    def end(
        self, publisher: PublisherState, status: PublishStatus, block_number: int | None, reason: str, now_s: float
    ) -> None:
        """Ends the publisher's stream with an answer. Safe to repeat."""
        self._end(publisher, status, block_number, reason)
        self.go_on(now_s)

    def header(self, publisher: PublisherState, number: int, items: list[bytes], now_s: float) -> None:
        """Handles the header of a block, which is the first of `items`."""
        # The session decides first: it discards the header if it has ended.
        session = publisher.session
        before = session.block_number
        action = session.header(number)
        if action is Action.DISCARD:
            return
        # The same header again: the publisher sends this block once more, so the items of its first try are dropped.
        if action is Action.BEGIN_ANEW:
            block = self.blocks[number]
            self._change(block, BlockChange.BEGUN_ANEW, "its publisher began it anew")
            self._add(block, items, Piece.WHOLE, now_s)
            return
        # A publisher sends one block at a time. So the header of another block means that the arriving block will not
        # be finished.
        if action is Action.GIVE_BACK_AND_OFFER and before is not None:
            self._change(
                self.blocks[before], BlockChange.PUBLISHER_WENT_ON, f"its publisher went on with block {number}"
            )
        # The items of an accepted block are added. After any other answer, the session discards the items that follow.
        if self.offer(publisher, number, now_s) is HeaderDecision.ACCEPT:
            session.take(Input.ACCEPTED, number)
            self._add(self.blocks[number], items, Piece.WHOLE, now_s)
        else:
            session.take(Input.REFUSED)
        # The block that was given up is missing now; other publishers may have it.
        if action is Action.GIVE_BACK_AND_OFFER:
            self.go_on(now_s)

    def offer(self, publisher: PublisherState, number: int, now_s: float) -> HeaderDecision:
        """Answers the header of a block, and returns the decision. After ACCEPT the block is in flight."""
        # The cursor is the block that this publisher would send next. Some of the answers below move the cursor.
        publisher.newest_offered = max(publisher.newest_offered, number)
        publisher.cursor = number + 1
        view = self.blocks.view
        verdict = decide(number, view)
        publisher.behind = number if verdict is HeaderDecision.BEHIND else None
        # ACCEPT sends no answer: the publisher continues with the items.
        if verdict is HeaderDecision.ACCEPT:
            self.blocks.begin(number, publisher, now_s)
        elif verdict is HeaderDecision.DUPLICATE and view.last_block is not None:
            publisher.cursor = view.last_block + 1
            self._respond(publisher, DuplicateBlock(number, view.last_block))
        elif verdict is HeaderDecision.SKIP:
            self._respond(publisher, SkipBlock(number))
        else:
            publisher.cursor = view.wanted
            self._respond(publisher, Behind(number, view.last_block, view.wanted))
            # Backfill must catch up, also while this publisher stays (specs/block_publish.md, "Base Protocol").
            self.effects.append(NewestBlockKnownToNetwork(number))
            stalled = self._catch_up.offered(number, self.last_block, now_s)
            if stalled is not None:
                self.effects.append(stalled)
        return verdict

    def items(self, publisher: PublisherState, items: list[bytes], piece: Piece, now_s: float) -> None:
        """Handles items that do not begin with a header. Raises InvalidPublishRequest if they are out of order."""
        session = publisher.session
        if session.items(piece) is Action.ADD:
            assert session.block_number is not None, "a session that adds items receives a block"
            self._add(self.blocks[session.block_number], items, piece, now_s)

    def block_end(self, publisher: PublisherState, number: int, now_s: float) -> Action:
        """Handles the end of a block. Returns the action of the session, of which NOTE and COMPLETE_AND_NOTE are to be
        logged. Raises InvalidPublishRequest if the last piece of an item is missing."""
        current = publisher.session.block_number
        action = publisher.session.block_end(number)
        if action in (Action.COMPLETE, Action.COMPLETE_AND_NOTE) and current is not None:
            self._change(self.blocks[current], BlockChange.ENDED)
            self._end_stalled(current)
            self.go_on(now_s)
        return action

    def stream_end(self, publisher: PublisherState, end: EndStream, now_s: float) -> None:
        publisher.session.take(Input.STREAM_END)
        publisher.note_end(end)
        self.leave(publisher, now_s)

    # Results from the plugins.

    def verified(self, notification: VerificationNotification, now_s: float) -> None:
        number = notification.block_number
        block = self.blocks.get(number)
        # Attempt 0 marks a block that came whole, by backfill or mending. No items of `block` were verified.
        if not notification.attempt:
            # If this backfilled block is the next one to verify, publishers continue after it.
            if notification.success and number == self.blocks.next_to_verify:
                self.blocks.verified_below(number + 1)
                if block is not None:
                    self._change(block, BlockChange.BACKFILLED, "the block has come in another way")
                self.go_on(now_s)
        elif block is not None and block.attempt == notification.attempt:
            # Only a result of the present attempt counts: other results are about items that were dropped.
            if notification.success:
                self._change(block, BlockChange.VERIFIED)
                block.root = notification.root
                self.blocks.allow_processing(block, now_s)
            else:
                self._refuse(block, notification)
            self.go_on(now_s)

    def persisted(self, notification: PersistedNotification, now_s: float) -> None:
        # A block below the watermark is acknowledged already.
        number = notification.block_number
        if number < self.blocks.watermark.next_durable:
            return
        # A failed write never raises the watermark.
        if not notification.succeeded:
            self._not_persisted(notification, now_s)
            return
        block = self.blocks.get(number)
        # The stored block came from the publisher only if its root hash is equal. The node may have stored another
        # block with the same number.
        is_own = block is not None and block.stage is Stage.VERIFIED and block.root == notification.root
        owner = block.publisher if block is not None and is_own else None
        self._roots.note(number, notification.root, owner.publisher_id if owner is not None else None)
        # A publisher that still sends this block is asked to skip it.
        if block is not None:
            self._change(block, BlockChange.STORED, "the block has come in another way")
        # The watermark rises to the block before the next missing block.
        if self.blocks.durable(number):
            self._acknowledge()
        self._end_stalled(number)
        self.go_on(now_s)

    def node_failed(self, failure: NodeFailure, now_s: float) -> None:
        self._failures += 1
        status = PublishStatus.PERSISTENCE_FAILED if failure.persistence else PublishStatus.ERROR
        self._end_all(status, failure.block_number, failure.reason, now_s)

    def node_stops(self, reason: str, now_s: float) -> None:
        """Ends every stream. Publishers send the unacknowledged blocks elsewhere or later."""
        self._end_all(PublishStatus.SUCCESS, None, reason, now_s)

    # Events of the clock.

    def tick(self, now_s: float, *, full_at: int | None) -> None:
        """Checks deadlines, silent publishers and missing blocks. full_at: see `Facility.full_at`."""
        # A publisher that neither sends a block nor says anything is gone, even if its connection still exists.
        idle_s_max = self._limits.idle_s_max
        for publisher in list(self._publishers.values()):
            if publisher.is_idle(now_s - idle_s_max):
                self._end(publisher, PublishStatus.TIMEOUT, None, f"nothing came for {idle_s_max:g} s")
        # A plugin that misses its deadline is a failure of the node, not of a publisher.
        failure = self._check_deadlines(now_s)
        if failure is None:
            failure = self._plugins.check(now_s, full_at=full_at, awaited_block=self.blocks.awaited)
        # When the node has failed, every stream ends, so nothing is requested from publishers first.
        if failure is None:
            self.go_on(now_s)
        else:
            self.effects.append(failure)
        self.check()

    def go_on(self, now_s: float) -> None:
        """Continues after an event that can open a gap or make room."""
        # Without blocks in flight, a header may choose the first block of an empty node anew.
        self.blocks.rest()
        # The lowest missing block is requested first. Blocks are given up for it only if a limit is reached.
        self._ask_for_missing(now_s)
        self._make_room(now_s)
        # The caller compares these flags with the state; a flag set in vain costs one check.
        self.forward_due = self.admit_due = True

    # Changes of one block.

    def _add(self, block: BlockInFlight, items: list[bytes], piece: Piece, now_s: float) -> None:
        # Only items of the block that is verified next are forwarded. Those of higher blocks wait, and can fill the
        # room.
        self.blocks.add(block, items, piece)
        if block.number == self.blocks.next_to_verify:
            self.forward_due = True
        elif self.blocks.is_crowded:
            self._make_room(now_s)

    def _refuse(self, block: BlockInFlight, notification: VerificationNotification) -> None:
        """Handles a block that failed verification. The plugins have already forgotten it."""
        # The refusal is logged and counted even if the publisher is not to blame for it.
        failure, reason = notification.failure, notification.reason
        self._refused += 1
        self._refusals.append(BlockRefusal(block.number, failure or "", reason))
        self.effects.append(
            LogLine("block_refused", {"block": block.number, "failure": failure, "reason": reason}, is_warning=True)
        )
        if notification.informational:
            self._change(block, BlockChange.SUPERSEDED)
            return
        self._change(block, BlockChange.REFUSED, reason, status_of(failure))

    def _change(
        self,
        block: BlockInFlight,
        change: BlockChange,
        reason: str = "",
        status: PublishStatus = PublishStatus.UNKNOWN,
    ) -> None:
        """Makes one step of the table of block stages, with its consequences. status: of a stream that ends."""
        publisher = block.publisher
        for then in self.blocks.step(block, change):
            if then is Then.DROP:
                if block.stage is Stage.MISSING:
                    self.effects.append(LogLine("block_given_up", {"block": block.number, "reason": reason}))
                # Without this event, the plugins would wait for the rest of the block, and verify the next block as its
                # successor.
                if block.attempt:
                    self.effects.append(BlockDropped(block.number, block.attempt, reason))
                    block.attempt = 0
            elif then is Then.ORPHAN:
                block.publisher = None
            elif publisher is None:
                # The publisher has left, so there is no session to change.
                continue
            elif then is Then.DISCARD:
                publisher.session.take(Input.TAKEN_AWAY)
            elif then is Then.SKIP:
                self._respond(publisher, SkipBlock(block.number))
            elif then is Then.END_STREAM:
                self._end(publisher, status, block.number, reason)

    # All blocks.

    def _ask_for_missing(self, now_s: float) -> None:
        """Requests the lowest missing block from publishers that are past it, and again from silent ones."""
        wanted, resend_s = self.blocks.next_block, self._limits.resend_s
        for publisher in self._publishers.values():
            if publisher.is_to_be_asked(wanted, now_s - resend_s):
                self._ask(publisher, wanted, now_s)

    def _ask(self, publisher: PublisherState, number: int, now_s: float) -> None:
        publisher.cursor, publisher.asked_s = number, now_s
        self._respond(publisher, ResendBlock(number))
        self._resends += 1

    def _make_room(self, now_s: float) -> None:
        """Gives up incomplete blocks while a limit keeps an earlier, missing block from arriving."""
        if not self.blocks.is_crowded:
            return
        for block in self.blocks.all():
            # Each eviction frees memory, so the limit is checked again before the next one.
            if not (self.blocks.is_crowded and self.blocks.has_gap):
                return
            publisher = block.publisher
            # A complete block is kept, so that nobody has to send it again.
            if block.stage is Stage.RECEIVING and publisher is not None:
                self._change(block, BlockChange.EVICTED, "a block below it is missing, and too much is waiting")
                self._ask(publisher, self.blocks.next_to_verify, now_s)

    def _end_stalled(self, finished: int) -> None:
        """Ends the streams of publishers whose incomplete blocks are far below the complete block `finished`."""
        for block in self.blocks.stalled(finished - self._limits.stall_blocks_max):
            if block.publisher is not None and not block.publisher.is_held:
                self._change(
                    block,
                    BlockChange.TIMED_OUT,
                    f"block {finished} is complete, and this one is not",
                    PublishStatus.TIMEOUT,
                )

    def _acknowledge(self) -> None:
        last_block = self.last_block
        assert last_block is not None, "the watermark has moved"
        # Catching up is over once the watermark reaches the block that publishers offered.
        self._catch_up.reached(last_block)
        self._acknowledgements += 1
        roots = self._roots.take(last_block)
        # Publishers that asked for root hashes learn which of these blocks were their own.
        for publisher in self._publishers.values():
            if publisher.wants_roots:
                self._respond(publisher, RootAcknowledgement(last_block, named(roots, publisher.publisher_id)))
            else:
                self._respond(publisher, Acknowledgement(last_block))

    def _not_persisted(self, notification: PersistedNotification, now_s: float) -> None:
        """Handles a verified block that could not be stored: the node fails if a publisher waits for the block."""
        number = notification.block_number
        stages = {block.stage for block in self.blocks.all()}
        if notification.source is BlockOrigin.PUBLISHER or stages & {Stage.VERIFYING, Stage.VERIFIED}:
            # A publisher waits for this block, or for a higher block that was verified as its successor.
            reason = f"block {number} is not confirmed: {notification.reason}"
            self.effects.append(NodeFailure(reason, True, number))
            return
        # Verification begins again with this block. If the plugins have items of a higher block, that block could not
        # pass any more.
        for block in self.blocks.all():
            if block.attempt:
                self._change(block, BlockChange.EVICTED, f"block {number} before it could not be stored")
        self.blocks.verify_again_from(number)
        self.go_on(now_s)

    def _check_deadlines(self, now_s: float) -> NodeFailure | None:
        """Gives up every block that arrives too slowly. Returns the failure if a plugin is too slow."""
        # A publisher from which the service does not read cannot be late.
        self.blocks.extend_held(now_s - self._ticked_s)
        self._ticked_s = now_s
        # A block that has arrived completely waits for a plugin: if it is late, the node has failed.
        for block in self.blocks.late(now_s):
            if block.stage is not Stage.RECEIVING:
                is_verified = block.stage is Stage.VERIFIED
                missed = "stored" if is_verified else "verified"
                reason = f"block {block.number} was not {missed} in {self._limits.processing_s_max:g} s"
                return NodeFailure(reason, is_verified, block.number)
            allowed_s = self._limits.block_s_max + block.earned_s
            self._change(
                block, BlockChange.TIMED_OUT, f"the block was not complete after {allowed_s:g} s", PublishStatus.TIMEOUT
            )
        return None

    # Publishers.

    def _end(self, publisher: PublisherState, status: PublishStatus, block_number: int | None, reason: str) -> None:
        self._close(publisher, StreamEnded(status, self.last_block, block_number, reason))

    def _close(self, publisher: PublisherState, ended: StreamEnded | None) -> None:
        """Ends a publisher's session with the last answer, if any. Safe to repeat. The caller must call `go_on`."""
        if self._publishers.pop(publisher.publisher_id, None) is None:
            return
        # The effect closes the session; from here on this publisher receives no more answers.
        self.effects.append(EndSession(publisher.publisher_id, ended))
        # A stream that neither side ended in order counts as lost.
        is_success = ended is not None and ended.status is PublishStatus.SUCCESS
        self._lost += publisher.session.state is not SessionState.ENDED and not is_success
        publisher.session.take(Input.FAULT)
        # An incomplete block becomes missing. A complete block is processed without its publisher.
        for block in self.blocks.all():
            if block.publisher is publisher:
                self._change(block, BlockChange.PUBLISHER_LEFT, "its publisher has left")
        # The block that this publisher offered exists in the network: backfill may fetch up to it.
        known = max(-1 if each is None else each for each in (self.last_block, self._catch_up.target))
        if publisher.behind is not None and publisher.behind > known:
            self.effects.append(NewestBlockKnownToNetwork(publisher.behind))
        self.effects.append(PublisherStatus(len(self._publishers)))

    def _end_all(self, status: PublishStatus, block_number: int | None, reason: str, now_s: float) -> None:
        # The plugins have already forgotten every block that is not durable, so no BlockDropped is needed.
        for block in self.blocks.all():
            self._change(block, BlockChange.NODE_FAILED)
        self.blocks.verify_again_from(self.blocks.watermark.next_durable)
        for publisher in list(self._publishers.values()):
            self._end(publisher, status, block_number, reason)
        self.go_on(now_s)

    def _respond(self, publisher: PublisherState, response: PublishResponse) -> None:
        self.effects.append(SendResponse(publisher.publisher_id, response))
