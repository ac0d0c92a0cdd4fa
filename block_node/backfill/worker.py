"""The backfill plugin: searches for missing blocks at the start and at intervals, and lets two fillers fetch them. The
service `block_backfill` reports the missing blocks, the progress and the source nodes, and starts searches.

`plan` computes the gaps, `fill_machine` decides which request is sent to which source node. Backfill does not slow down
publishers: while they feed the node, it pauses between two blocks. Source: specs/backfill.md.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import msgspec
import structlog
import trio

from block_node.backfill.comparing import Opinion, ask_opinions, find_disagreements
from block_node.backfill.filler import Filler
from block_node.backfill.plan import (
    BlockGap,
    GapFacts,
    GapPatience,
    Kind,
    count_blocks,
    find_gaps,
    intended_range,
    without,
)
from block_node.backfill.protocol import (
    BACKFILL,
    BACKFILL_1,
    BackfillAnswer,
    BackfillAsk,
    BackfillGap,
    BackfillReport,
    source_answers,
)
from block_node.backfill.state import BackfillState, load_target
from block_node.events import (
    BlockBegun,
    BlockDamaged,
    BlockDropped,
    BlockOrigin,
    CatchUpStalled,
    ItemEvent,
    NewestBlockKnownToNetwork,
    NodeFailure,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Plugin
from block_node.node import BlockNode
from block_node.persist.ranges import BlockRanges
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import AnsweringWorker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import Protocol
from stream_storage.contract import Do
from stream_storage.errors import StorageClosed, StorageError

TICK_S = 0.25
SCAN_PAUSE_S = 1.0
"""The shortest time in seconds between the start of a search and the next search that a publisher causes."""
PUBLISHED_PAUSE_S = 0.016
PUBLISHED_BYTES_PER_S = 8 * 1024 * 1024
"""The largest rate of fetched blocks while publishers feed the node, besides the pause `PUBLISHED_PAUSE_S`."""
LIVE_PAUSE_S = 0.05
"""The shortest pause in seconds between two fetched blocks, while a publisher's block is arriving or being stored."""

logger = structlog.get_logger(__name__)


class Backfill(Plugin):
    name: ClassVar[str] = "backfill"
    gating: ClassVar[bool] = False

    def __init__(self, state: BackfillState) -> None:
        super().__init__(state.facility)
        self._state = state
        self._settings = state.settings
        self._patience = GapPatience(self._settings.scan_interval_secs, self._settings.max_backoff_secs)
        self._fillers: dict[Kind, Filler] = {}
        self._awaited: set[str] = set()
        self._asks_all = False
        # These are not in `state`: late answers to a failed worker must not end the search of its successor.
        self._scanning = self._soon = self._asked_for = False
        self._again: bool | None = None
        self._woken = self._sleeping = self._ticking = False
        self._scanned_s = trio.current_time()
        self._live: set[int] = set()
        self._delivered_s = 0.0
        self._delivered_bytes = 0

    def started(self) -> None:
        super().started()
        wake = self.context.guard(self._wake)
        self._fillers = {kind: Filler(kind, self._state, wake, self.context.guard) for kind in Kind}
        self._state.machines = {kind: filler.machine for kind, filler in self._fillers.items()}
        self._state.is_scanning, self._state.scan_now = lambda: self._scanning, self.scan_now
        self._load()

    def stopped(self) -> None:
        super().stopped()
        for filler in self._fillers.values():
            filler.stop()

    def handle_lag(self) -> None:
        raise RuntimeError("backfill has not kept up with the facility's events; it begins anew")

    @property
    def _filling(self) -> bool:
        return any(filler.busy for filler in self._fillers.values())

    def scan_now(self) -> None:
        """Searches because an operator asked for it. All pauses after failures end."""
        self._asked_for = True
        self._scan(on_disk=True)

    # Events.

    def handle_items(self, event: ItemEvent) -> None:
        if isinstance(event, BlockBegun):
            self._live.add(event.block_number)
        elif isinstance(event, BlockDropped):
            self._live.discard(event.block_number)

    def handle_notification(self, notification: Notification) -> None:
        # Attempt 0 marks a block that came whole, perhaps from a filler. Any other block comes from a publisher.
        if isinstance(notification, VerificationNotification):
            if notification.attempt == 0:
                for filler in self._fillers.values():
                    filler.verified(notification)
            elif not notification.success:
                self._live.discard(notification.block_number)
        # Blocks of publishers are stored too: a filler then has one block less to fetch.
        elif isinstance(notification, PersistedNotification):
            self._live.discard(notification.block_number)
            is_backfilled = notification.source is BlockOrigin.BACKFILL
            for filler in self._fillers.values():
                filler.persisted(notification, is_backfilled=is_backfilled)
        elif isinstance(notification, NewestBlockKnownToNetwork):
            self._state.note_newest(notification.block_number)
            if notification.block_number not in self._state.store.ever_stored:
                self._scan_soon()
        elif isinstance(notification, BlockDamaged):
            self._scan_soon()
        elif isinstance(notification, CatchUpStalled):
            # The node comes no closer to the offered blocks: the sources are asked at once, also those in a pause.
            self._asked_for = True
            self._scan(on_disk=False)
        elif isinstance(notification, NodeFailure):
            self._live.clear()
            for filler in self._fillers.values():
                filler.node_failed(notification.reason)
        else:
            return
        self._wake()

    # Filling.

    def _wake(self) -> None:
        """Schedules a step of the fillers, later in the event loop, so that other workers run first."""
        if not self._woken and self._fillers:
            self._woken = True
            self.context.call_later(0, self._step)

    def _step(self) -> None:
        self._woken = False
        # A run begins with the first missing block, so this is noted before the step, which can end the run.
        state = self._state
        state.note_progress(self._filling)
        delivered = False
        for filler in self._fillers.values():
            if filler.busy:
                now_s = trio.current_time()
                # While publishers are connected, requests stay small; a block is passed on only after the pause.
                filler.machine.gently = state.publishers > 0
                may_store = not self.facility.full and state.store.refusal is None
                delivery = filler.step(now_s >= self._deliver_from_s and may_store)
                if delivery is not None:
                    delivered = True
                    self._delivered_s, self._delivered_bytes = now_s, delivery.size_bytes
        state.note_progress(self._filling)
        # The next block may be ready now, so another step follows the pause, or at once.
        pause_s = self._deliver_from_s - trio.current_time()
        if self._filling and pause_s > 0:
            self._wake_later(pause_s)
        elif delivered:
            self._wake()

    @property
    def _deliver_from_s(self) -> float:
        if not self._state.publishers:
            return 0.0
        pause_s = LIVE_PAUSE_S if self._live else PUBLISHED_PAUSE_S
        return self._delivered_s + max(pause_s, self._delivered_bytes / PUBLISHED_BYTES_PER_S)

    def _wake_later(self, delay_s: float) -> None:
        def wake() -> None:
            self._sleeping = False
            self._wake()

        if not self._sleeping:
            self._sleeping = True
            self.context.call_later(delay_s, wake)

    def _tick(self) -> None:
        if self._filling:
            self._wake()
        self.context.call_later(TICK_S, self._tick)

    # Searching for missing blocks.

    def _load(self) -> None:
        # If the node is stopping, its next start finds the missing blocks.
        with suppress(StorageClosed):
            work = partial(load_target, chain=self._state.chain)
            self._state.storage.submit_write(Do(work, self.context.guard(self._loaded)))

    def _loaded(self, operation: Do[int | None]) -> None:
        if operation.error is not None:
            logger.error("backfill_target_not_read", reason=str(operation.error))
            self.context.call_later(self._settings.scan_interval_secs, self._load)
        elif operation.result is not None:
            self._state.note_newest(operation.result, save=False)
        if not self._ticking:
            self._ticking = True
            self._tick()
            self._scan_and_again()

    def _scan_and_again(self) -> None:
        self._scan(on_disk=True)
        self.context.call_later(self._settings.scan_interval_secs, self._scan_and_again)

    def _scan_soon(self) -> None:
        def scan() -> None:
            self._soon = False
            self._scan(on_disk=False)

        if not self._soon:
            self._soon = True
            self.context.call_later(max(0.0, self._scanned_s + SCAN_PAUSE_S - trio.current_time()), scan)

    def _scan(self, *, on_disk: bool) -> None:
        """Begins a search. on_disk: whether to check first that stored blocks are still on disk, slow with many
        blocks."""
        if self._scanning:
            self._again = self._again or on_disk
            return
        self._scanning, self._asks_all = True, on_disk
        self._scanned_s = trio.current_time()
        self._state.counters.scans += 1
        if on_disk:
            self._state.store.look_again(self.context.guard(self._looked))
        else:
            self._ask_sources()

    def _looked(self, error: StorageError | None) -> None:
        # If the node is stopping, its next start finds the missing blocks.
        if not isinstance(error, StorageClosed):
            if error is not None:
                logger.error("backfill_scan_failed", reason=str(error))
            self._ask_sources()

    def _ask_sources(self) -> None:
        """Asks all source nodes that are not in a pause which blocks they have; then follows `_compare`, or `_plan` if
        a publisher caused the search and the answers cannot change the plan."""
        if self._asked_for:
            # The pauses end only now: a search that still ran when the operator asked can have begun new pauses.
            self._asked_for = False
            self._patience.forget()
            for source in self._state.health.sources.values():
                source.backoff_until_s = 0.0
        # A search for a publisher asks the sources only if there is a gap, or if the node follows their newest blocks.
        ready = self._state.health.ready(trio.current_time())
        follows = self._follows
        if not ready or not (self._asks_all or follows or self._gaps(self._view(follows, None))):
            self._plan()
            return
        self._awaited = {source.setting.name for source in ready}
        asked = sorted(self._awaited)
        for name in asked:
            self._ask(name, asked)

    def _ask(self, name: str, asked: list[str]) -> None:
        began_s = trio.current_time()

        def answered(ranges: BlockRanges | None, reason: str) -> None:
            now_s = trio.current_time()
            if ranges is None:
                self._state.counters.fetch_errors += 1
                logger.error("backfill_source_unreachable", source=name, reason=reason)
                self._state.health.sources[name].has_answered = False
                self._state.health.failed(name, now_s, reason)
            else:
                self._state.health.claimed(name, ranges, now_s - began_s)
            self._awaited.discard(name)
            if not self._awaited:
                self._compare(asked)

        self._state.sources[name].ask_status(self.context.guard(answered))

    def _compare(self, asked: list[str]) -> None:
        def compared(opinions: list[Opinion]) -> None:
            self._state.note_chains({each.source for each in opinions}, find_disagreements(opinions))
            self._plan()

        heard = [name for name in asked if self._state.health.sources[name].has_answered]
        ask_opinions(self._state, heard, self.context.guard(compared), self.context.guard)

    @property
    def _follows(self) -> bool:
        """Whether to fetch also the newest blocks that only source nodes have: True if `greedy`, or if there is no
        publisher."""
        return self._settings.greedy or not self._state.publishers

    def _view(self, follows: bool, sources_last: int | None) -> GapFacts:
        """Returns the facts for a plan. Announcements of publishers count only up to the highest block of the source
        nodes: a publisher can be wrong, and higher blocks could not be fetched."""
        state = self._state
        next_block, newest_known = state.verifier.chain.next_number, state.newest_known
        if newest_known is not None and sources_last is not None:
            newest_known = min(newest_known, sources_last)
        return GapFacts(
            known=state.store.ever_stored,
            next_block=state.blocks.first_block if next_block is None else next_block,
            newest_known=newest_known,
            sources_last=sources_last,
            follows=follows,
        )

    def _gaps(self, view: GapFacts) -> list[BlockGap]:
        settings, store = self._settings, self._state.store
        intended = intended_range(settings.first_block_available, settings.last_block_to_store, view)
        if intended is None:
            return []
        # Do not fetch old blocks that retention would delete again. But fetch all blocks that continue the
        # chain, because they are needed to verify the later blocks.
        lowest = max(intended.first, min(store.kept_from(intended.last), view.next_block))
        return find_gaps(intended._replace(first=lowest), view) if lowest <= intended.last else []

    def _plan(self) -> None:
        """Passes the gaps to the fillers. Those below the next block of the chain wait while their filler is busy."""
        state, now_s = self._state, trio.current_time()
        follows, health = self._follows, state.health
        state.unknown = health.find_silence() if follows else ""
        # Blocks that a source node in a pause has claimed are missing, too, but cannot be fetched now.
        gaps = self._gaps(self._view(follows, health.last_claimed()))
        state.check_newest(health.last_claimed(now_s))
        fillable = self._gaps(self._view(follows, health.last_claimed(now_s)))
        # A gap counts as new only where no filler attends to it already.
        unattended = gaps
        for filler in self._fillers.values():
            unattended = without(unattended, filler.machine.holes)
        new = state.note_gaps(gaps, unattended)
        if gaps:
            logger.info("backfill_gaps", gaps=len(gaps), new=new, blocks=count_blocks(gaps), first=gaps[0].first)
        # Failed gaps have a pause, so that a gap that nobody can fill does not keep a filler busy.
        historical = self._fillers[Kind.HISTORICAL]
        due = self._patience.due(fillable, now_s, busy={Kind.HISTORICAL} if historical.machine.busy else ())
        # A block belongs to one filler: the other one may have it from an earlier search.
        for kind, filler in self._fillers.items():
            wanted = [gap for gap in due if gap.kind is kind]
            for other in self._fillers.values():
                wanted = wanted if other is filler else without(wanted, other.machine.holes)
            for gap in wanted:
                filler.machine.assign(gap.first, gap.last)
        # A search that was asked for meanwhile follows now.
        self._scanning = False
        self._wake()
        again, self._again = self._again, None
        if again is not None:
            self._scan(on_disk=again)


BACKFILL_ADDRESS = "block_backfill"
WORKER_ADDRESS = "block_backfill_worker"


class BackfillService:
    def __init__(self, node: Node, blocks: BlockNode, state: BackfillState) -> None:
        self.state = state
        self._node = node
        self._blocks = blocks

    def start(self) -> None:
        """Answers requests at once. The search starts when the node begins to serve publishers."""
        self._node.register([local(BACKFILL_ADDRESS)], lambda: BackfillAnswers(self.state))
        if self.state.is_on:
            self._blocks.when_ready(self._ready)

    def close(self) -> list[Message]:
        """Ends the service, because another node serves the chain now. Returns the requests that were not served."""
        self._node.unregister(local(WORKER_ADDRESS))
        for source in self.state.sources.values():
            source.close()
        return self._node.retire(local(BACKFILL_ADDRESS))

    def _ready(self) -> None:
        self._node.register([local(WORKER_ADDRESS)], lambda: Backfill(self.state))


class BackfillAnswers(AnsweringWorker):
    def __init__(self, state: BackfillState) -> None:
        self._state = state

    def answer(self, message: Message) -> None:
        request = _protocol_of(message).decode_request(message.payload)
        state = self._state
        # The answer does not wait for the search.
        if request.run:
            state.scan_now()
        statistics = state.statistics()
        counters = msgspec.structs.asdict(statistics.counters)
        del counters["last_given_up"]
        eta_s = statistics.eta_s
        unstored = state.store.refusal if statistics.queue else None
        report = BackfillReport(
            request_id=request.request_id,
            state=statistics.state,
            queue=statistics.queue,
            missing=statistics.missing or 0,
            gaps=[BackfillGap(gap.kind is Kind.LIVE_TAIL, gap.first, gap.last) for gap in statistics.gaps],
            held_bytes=statistics.held_bytes,
            under_way=statistics.under_way,
            eta_ms=None if eta_s is None else min(2**53, int(eta_s * 1_000)),
            newest_known=statistics.newest_known,
            sources=source_answers(statistics.sources),
            is_unknown=state.unknown != "",
            disagreements=[f"{each.name}: {each.other_chain}" for each in statistics.sources if each.other_chain],
            problem=f"no block can be stored now: {unstored}" if unstored else statistics.problem,
            **counters,
        )
        if BACKFILL_1.is_in(message.payload):
            answer = BackfillAnswer(**{name: getattr(report, name) for name in BackfillAnswer.__struct_fields__})
            self.reply(message, BACKFILL_1.encode_response(answer))
        else:
            self.reply(message, BACKFILL.encode_response(report))

    def demand(self, message: Message) -> Demand:
        """Returns the right that a request needs: to operate the node for a search, to read its blocks for the
        state."""
        starts = _protocol_of(message).decode_request(message.payload).run
        return Demand(Right.OPERATE if starts else Right.OPERATE | Right.BLOCK_READ, self._state.chain)


def _protocol_of(message: Message) -> Protocol[BackfillAsk, Any]:
    return BACKFILL_1 if BACKFILL_1.is_in(message.payload) else BACKFILL
