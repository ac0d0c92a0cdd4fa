"""Backfill on one block node: what outlives a crash of its worker, the sources, and the service that tells about it.

`block_backfill` answers what is missing, how far it is filled and how the sources do, and begins a scan where asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import structlog
import trio

from block_node.backfill.chunks import FillLimits
from block_node.backfill.filler import Filler, Guard
from block_node.backfill.health_machine import Health
from block_node.backfill.plan import Gap, Kind, count_blocks
from block_node.backfill.protocol import BACKFILL, gap_answers, source_answers
from block_node.backfill.protocol import BackfillAnswer as Answer
from block_node.backfill.route_source import RouteSource
from block_node.backfill.settings import BackfillSettings, SourceSetting
from block_node.backfill.source import BlockSource
from block_node.backfill.statistics import BackfillStatistics, Counters, State
from block_node.backfill.targets import SaveTarget
from block_node.backfill.worker import Backfill
from block_node.node import BlockNode
from ockam.address import local, tcp
from ockam.message import Message
from ockam.node import Node
from ockam.protocol import ProtocolError, error_payload
from ockam.worker import Worker
from storage.contract import Operation
from storage.errors import StorageClosed
from storage.runner import Runner

BACKFILL_ADDRESS = "block_backfill"
GAPS_TOLD_MAX = 1_000

logger = structlog.get_logger(__name__)

MakeSource = Callable[[SourceSetting], BlockSource]


class BackfillService:
    """See the module. Off without sources: then it only answers.

    now_s: a clock that does not jump; new_id: 16 hex digits; tie: which of two equal sources, from [0, 1).
    make_source: what to ask instead of an Ockam route.
    """

    def __init__(
        self,
        node: Node,
        blocks: BlockNode,
        storage: Runner,
        settings: BackfillSettings,
        *,
        chain: str,
        first_block: int,
        new_id: Callable[[], str],
        now_s: Callable[[], float] = trio.current_time,
        tie: Callable[[], float] | None = None,
        make_source: MakeSource | None = None,
    ) -> None:
        """Raises BackfillSettingsError."""
        settings.check()
        self._node = node
        self._blocks = blocks
        self._storage = storage
        self._new_id = new_id
        self.settings = settings
        self.chain = chain
        self.first_block = first_block
        self.now_s = now_s
        self.facility, self.store, self.verifier = blocks.facility, blocks.store, blocks.verifier
        found = settings.sources()
        make = make_source or self._route_source
        self.sources = {setting.name: make(setting) for setting in found}
        self.health = Health(
            found,
            retry_delay_s=settings.initial_retry_delay_secs,
            backoff_s_max=settings.max_backoff_secs,
            tie=tie or Random().random,
        )
        self.counters = Counters()
        self.newest_known: int | None = None
        self.worker: Backfill | None = None
        self._gaps: list[Gap] = []
        self._run: tuple[float, int, int] | None = None
        self._failed = False
        self._vain_scans = 0

    @property
    def publishers(self) -> int:
        """How many are connected."""
        return 0 if self._blocks.publishing is None else self._blocks.publishing.machine.publishers

    @property
    def is_on(self) -> bool:
        return bool(self.sources)

    def start(self) -> None:
        """Answer from now on; work from when publishers are served."""
        self._node.register([local(BACKFILL_ADDRESS)], lambda: BackfillDesk(self))
        if self.is_on:
            self._blocks.when_ready(self._ready)

    def _ready(self) -> None:
        self._node.register([local("block_backfill_worker")], lambda: Backfill(self))

    def make_filler(self, kind: Kind, wake: Callable[[], None], guard: Guard) -> Filler:
        settings = self.settings
        limits = FillLimits(
            buffer_bytes=settings.max_incoming_buffer_size,
            chunks=settings.concurrent_fetches,
            batch_blocks=settings.fetch_batch_size,
            retries_max=settings.max_retries,
            fetch_s_max=settings.fetch_timeout_secs,
            processing_s_max=settings.processing_timeout_secs,
        )
        return Filler(
            kind,
            limits,
            facility=self.facility,
            store=self.store,
            verifier=self.verifier,
            health=self.health,
            sources=self.sources,
            counters=self.counters,
            now_s=self.now_s,
            wake=wake,
            guard=guard,
        )

    def submit_write(self, operation: Operation) -> None:
        self._storage.submit_write(operation)

    def note_newest(self, number: int, *, save: bool = True) -> None:
        """Somebody on the network has this block."""
        if self.newest_known is None or number > self.newest_known:
            self._set_newest(number, save)

    def check_newest(self, sources_last: int | None) -> None:
        """A scan has asked the sources, whose last block is this one. Whoever named a newer one may have been wrong:
        where no source has it in more than `max_retries` scans, it is forgotten."""
        newest = self.newest_known
        if newest is None or newest in self.store.ever_stored or (sources_last is not None and newest <= sources_last):
            self._vain_scans = 0
        elif sources_last is not None:
            self._vain_scans += 1
            if self._vain_scans > self.settings.max_retries:
                logger.error("backfill_target_forgotten", block=newest, sources_last=sources_last)
                self._set_newest(sources_last)

    def _set_newest(self, number: int, save: bool = True) -> None:
        self.newest_known, self._vain_scans = number, 0
        if save:
            try:
                self.submit_write(SaveTarget(self.chain, number, self._saved))
            except StorageClosed:
                # The node stops; a publisher will say it again.
                return

    def note_gaps(self, gaps: list[Gap]) -> int:
        """What a scan has found; how many of it were not known."""
        ends = {(gap.first, gap.last) for gap in self._gaps}
        firsts = {gap.first for gap in self._gaps} | {gap.last for gap in self._gaps}
        new = [gap for gap in gaps if (gap.first, gap.last) not in ends and not {gap.first, gap.last} & firsts]
        self._gaps = gaps
        self.counters.gaps_detected += len(new)
        return len(new)

    def note_progress(self, filling: bool) -> None:
        """Whether holes are being filled now: a run goes on from the first to the last of them."""
        if filling and self._run is None:
            self.counters.runs += 1
            self._run = (self.now_s(), self.counters.blocks_stored, self.counters.given_up)
        elif not filling and self._run is not None:
            self._failed = self.counters.given_up > self._run[2]
            logger.info("backfill_run_ended", **self._summary())
            self._run = None

    def statistics(self) -> BackfillStatistics:
        worker = self.worker
        queue = worker.holes if worker is not None else 0
        stored = self.store.ever_stored
        gaps = [Gap(gap.kind, *hole) for gap in self._gaps for hole in stored.missing(gap.first, gap.last)]
        return BackfillStatistics(
            state=self._state(),
            queue=queue,
            missing=count_blocks(gaps),
            gaps=gaps[:GAPS_TOLD_MAX],
            held_bytes=worker.held_bytes if worker is not None else 0,
            under_way=worker.under_way if worker is not None else 0,
            eta_s=self._eta_s(queue),
            newest_known=self.newest_known,
            counters=msgspec.structs.replace(self.counters),
            sources=self.health.statistics(self.now_s()),
        )

    def _state(self) -> State:
        if not self.is_on:
            return State.OFF
        if self.worker is not None and self.worker.busy:
            return State.RUNNING
        return State.ERROR if self._failed else State.IDLE

    def _eta_s(self, queue: int) -> float | None:
        if self._run is None:
            return None
        stored, seconds = self.counters.blocks_stored - self._run[1], self.now_s() - self._run[0]
        return queue * seconds / stored if stored else None

    def _summary(self) -> dict[str, Any]:
        assert self._run is not None, "a run goes on"
        began_s, stored_before, given_up_before = self._run
        seconds = self.now_s() - began_s
        stored = self.counters.blocks_stored - stored_before
        return {
            "stored": stored,
            "seconds": round(seconds, 3),
            "blocks_per_s": round(stored / seconds, 1) if seconds else None,
            "given_up": self.counters.given_up - given_up_before,
        }

    def _saved(self, operation: SaveTarget) -> None:
        if operation.error is not None:
            logger.error("backfill_target_not_saved", block=operation.newest_known, reason=str(operation.error))

    def _route_source(self, setting: SourceSetting) -> RouteSource:
        route = tuple(tcp(hop) for hop in setting.hops)
        return RouteSource(self._node, route, self._new_id, silence_s_max=self.settings.fetch_timeout_secs)


class BackfillDesk(Worker):
    """Serves `node/block_backfill/1`."""

    def __init__(self, service: BackfillService) -> None:
        self._service = service

    def handle(self, message: Message) -> None:
        try:
            request = BACKFILL.decode_request(message.payload)
        except ProtocolError as error:
            self.reply(message, error_payload(str(error)))
            return
        service = self._service
        if request.run and service.worker is not None:
            service.worker.scan_now()
        statistics = service.statistics()
        counters = statistics.counters
        eta_s = statistics.eta_s
        answer = Answer(
            request_id=request.request_id,
            state=statistics.state,
            queue=statistics.queue,
            missing=statistics.missing,
            gaps=gap_answers(statistics.gaps),
            held_bytes=statistics.held_bytes,
            under_way=statistics.under_way,
            eta_ms=None if eta_s is None else min(2**53, int(eta_s * 1_000)),
            newest_known=statistics.newest_known,
            scans=counters.scans,
            runs=counters.runs,
            gaps_detected=counters.gaps_detected,
            blocks_fetched=counters.blocks_fetched,
            blocks_stored=counters.blocks_stored,
            fetched_bytes=counters.fetched_bytes,
            fetch_errors=counters.fetch_errors,
            persistence_failures=counters.persistence_failures,
            given_up=counters.given_up,
            sources=source_answers(statistics.sources),
        )
        self.reply(message, BACKFILL.encode_response(answer))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)
