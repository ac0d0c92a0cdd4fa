"""The state of backfill: source nodes, missing blocks, counters. It survives a crash of the worker."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

import msgspec
import structlog
import trio
from sqlalchemy import BigInteger, Column, Table, Text

from block_node.backfill.fill_machine import FillMachine
from block_node.backfill.health_machine import Health, SourceStatistics
from block_node.backfill.plan import BlockGap, Kind, count_blocks
from block_node.backfill.route_source import BlockSource, RouteSource
from block_node.backfill.settings import BackfillSettings, SourceSetting
from block_node.blocks.errors import Level
from block_node.node import BlockNode
from block_node.persist.schema import NUMBER_MAX
from ockam.actors.address import tcp
from ockam.actors.node import Node
from ockam.errors import RemoteProtocolError
from ockam.identity.tls_layer import TlsLayer
from stream_storage.contract import Do, Session
from stream_storage.errors import StorageClosed
from stream_storage.runner import Runner
from stream_storage.schema import metadata
from stream_storage.seal import seal_column, seal_of
from stream_storage.statement import replacing, sql

GAPS_REPORTED_MAX = 1_000

logger = structlog.get_logger(__name__)

MakeSource = Callable[[SourceSetting], BlockSource]
MakeTls = Callable[[str], TlsLayer | None]
"""Makes the TLS of a new connection to a source at `host:port`. Returns None if this node has no TLS for the source."""


backfill_targets = Table(
    "backfill_targets",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("newest_known", BigInteger, nullable=False),
    seal_column(),
)
"""The highest announced block of each chain. A chain has a row only if the node ever lacked an announced block."""

_FIND: Final = sql("SELECT newest_known, seal FROM backfill_targets WHERE chain = :chain")
_SAVE: Final = replacing(backfill_targets, "chain")


class BackfillStatus(enum.IntEnum):
    """The state of backfill, as the gauge `backfill_status` shows it. ERROR: the last run could not fetch all missing
    blocks, or nobody knows which are missing. OFF: no source node is configured."""

    IDLE = 0
    RUNNING = 1
    ERROR = 2
    OFF = 3


class Counters(msgspec.Struct):
    """The counters of backfill since the node started.

    fetch_errors: failed requests, and fetched blocks that failed verification.
    given_up: ranges of blocks that were left to the next search. last_given_up: a text about the last of them. Empty
    after a run that gave up nothing. runs: the number of times that fetching started.
    """

    gaps_detected: int = 0
    blocks_fetched: int = 0
    blocks_stored: int = 0
    fetch_errors: int = 0
    persistence_failures: int = 0
    fetched_bytes: int = 0
    given_up: int = 0
    last_given_up: str = ""
    scans: int = 0
    runs: int = 0


class BackfillStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of backfill on one block node.

    queue: the number of missing blocks that are being fetched or processed.
    missing: the number of blocks that the last search found missing and that are still missing. None if it found none,
    and it is unknown which blocks exist.
    problem: why blocks are missing, or why it is unknown whether blocks are missing. Otherwise empty.
    held_bytes: the total size of blocks that were fetched and are not stored yet.
    eta_s: the estimated time until `queue` is 0. newest_known: the highest block that publishers have announced.
    """

    state: BackfillStatus
    queue: int
    missing: int | None
    problem: str
    gaps: list[BlockGap]
    held_bytes: int
    under_way: int
    eta_s: float | None
    newest_known: int | None
    counters: Counters
    sources: list[SourceStatistics]


class BackfillState:
    """The state of backfill on one block node, which is off if no source node is configured.

    tie: see `Health`; None means a random number. make_source: None means a source over an Ockam route, or over gRPC.
    make_tls: makes the TLS of a connection to a source whose scheme is `grpcs`.
    newest_known: the highest block that publishers have announced.
    machines, is_scanning, scan_now: belong to the present worker, and are empty before its first start.
    unknown: why the last search could not find out which blocks exist; empty if it could. None before a search.
    """

    def __init__(
        self,
        node: Node,
        blocks: BlockNode,
        storage: Runner,
        settings: BackfillSettings,
        *,
        new_id: Callable[[], str],
        tie: Callable[[], float] | None = None,
        make_source: MakeSource | None = None,
        make_tls: MakeTls = lambda address: None,
    ) -> None:
        settings.check()
        self._node = node
        self.blocks = blocks
        self.storage = storage
        self._new_id = new_id
        self._make_tls = make_tls
        self.settings = settings
        self.facility, self.store, self.verifier = blocks.facility, blocks.store, blocks.verifier
        found = settings.sources()
        make = make_source or self._make_source
        self.sources = {setting.name: make(setting) for setting in found}
        self.health = Health(
            found,
            retry_delay_s=settings.initial_retry_delay_secs,
            backoff_s_max=settings.max_backoff_secs,
            tie=tie or Random().random,
        )
        self.counters = Counters()
        self.newest_known: int | None = None
        self.machines: dict[Kind, FillMachine] = {}
        self.is_scanning: Callable[[], bool] = lambda: False
        self.scan_now: Callable[[], None] = lambda: None
        self._gaps: list[BlockGap] = []
        self._run: tuple[float, int, int] | None = None
        self.unknown: str | None = None
        self._vain_scans = 0

    @property
    def chain(self) -> str:
        return self.store.chain

    @property
    def publishers(self) -> int:
        return 0 if self.blocks.publishing is None else self.blocks.publishing.machine.feeding

    @property
    def is_on(self) -> bool:
        return bool(self.sources)

    def note_newest(self, number: int, *, save: bool = True) -> None:
        if number <= NUMBER_MAX and (self.newest_known is None or number > self.newest_known):
            self._set_newest(number, save)

    def check_newest(self, sources_last: int | None) -> None:
        """Forgets the highest announced block, perhaps an error, if no source node has it in several searches."""
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
            # If the node is stopping, a publisher will announce this block again after the next start.
            with suppress(StorageClosed):
                work = partial(save_target, chain=self.chain, newest_known=number)
                self.storage.submit_write(Do(work, partial(self._saved, number)))

    def note_gaps(self, gaps: list[BlockGap], unattended: list[BlockGap]) -> int:
        """Records the gaps that a search found. Returns the number of new ones. A gap is new if it shares neither end
        with an earlier gap, and a part of it is `unattended`. The rest of a gap that is being filled is not new."""
        ends = {(gap.first, gap.last) for gap in self._gaps}
        firsts = {gap.first for gap in self._gaps} | {gap.last for gap in self._gaps}
        new = [
            gap
            for gap in gaps
            if (gap.first, gap.last) not in ends
            and not {gap.first, gap.last} & firsts
            and any(gap.first <= part.first <= gap.last for part in unattended)
        ]
        self._gaps = gaps
        self.counters.gaps_detected += len(new)
        return len(new)

    def note_chains(self, compared: set[str], disagreements: Mapping[str, str]) -> None:
        """Records which of the compared source nodes have another chain. Their blocks are not fetched, unless nothing
        is stored here and proofs are checked: then the proofs decide."""
        decides = bool(self.store.available) or not self.verifier.settings.levels & (Level.RECORD_PROOF | Level.TSS)
        for name in sorted(compared):
            source, text = self.health.sources[name], disagreements.get(name, "")
            if text and text != source.other_chain:
                logger.error("backfill_source_disagrees", source=name, reason=text)
            elif source.other_chain and not text:
                logger.info("backfill_source_agrees", source=name)
            source.other_chain, source.is_excluded = text, bool(text) and decides

    def note_progress(self, filling: bool) -> None:
        """Records whether missing blocks are being fetched: a run begins or ends when this changes."""
        if filling and self._run is None:
            self.counters.runs += 1
            self._run = (trio.current_time(), self.counters.blocks_stored, self.counters.given_up)
        elif not filling and self._run is not None:
            if self.counters.given_up == self._run[2]:
                self.counters.last_given_up = ""
            began_s, stored_before, given_up_before = self._run
            seconds, stored = trio.current_time() - began_s, self.counters.blocks_stored - stored_before
            logger.info(
                "backfill_run_ended",
                stored=stored,
                seconds=round(seconds, 3),
                blocks_per_s=round(stored / seconds, 1) if seconds else None,
                given_up=self.counters.given_up - given_up_before,
            )
            self._run = None

    def statistics(self) -> BackfillStatistics:
        machines = self.machines.values()
        queue = sum(machine.holes.count() for machine in machines)
        # The stored blocks may have changed since the search.
        stored = self.store.ever_stored
        gaps = [BlockGap(gap.kind, *hole) for gap in self._gaps for hole in stored.missing(gap.first, gap.last)]
        problem = self.unknown or (self.counters.last_given_up if gaps else "")
        run = self._run
        stored_in_run = 0 if run is None else self.counters.blocks_stored - run[1]
        return BackfillStatistics(
            state=self._state(problem),
            queue=queue,
            missing=count_blocks(gaps) if gaps or self.unknown == "" else None,
            problem=problem,
            gaps=gaps[:GAPS_REPORTED_MAX],
            held_bytes=sum(machine.held_bytes for machine in machines),
            under_way=sum(not chunk.complete for machine in machines for chunk in machine.chunks),
            eta_s=queue * (trio.current_time() - run[0]) / stored_in_run if run and stored_in_run else None,
            newest_known=self.newest_known,
            counters=msgspec.structs.replace(self.counters),
            sources=self.health.statistics(trio.current_time()),
        )

    def _state(self, problem: str) -> BackfillStatus:
        if not self.is_on:
            return BackfillStatus.OFF
        is_filling = any(machine.busy or machine.given_up for machine in self.machines.values())
        if self.unknown is None or not self.machines or self.is_scanning() or is_filling:
            return BackfillStatus.RUNNING
        return BackfillStatus.ERROR if problem else BackfillStatus.IDLE

    def _saved(self, number: int, operation: Do[None]) -> None:
        if operation.error is not None:
            logger.error("backfill_target_not_saved", block=number, reason=str(operation.error))

    def _make_source(self, setting: SourceSetting) -> BlockSource:
        if not setting.scheme:
            route = tuple(tcp(hop) for hop in setting.hops)
            return RouteSource(self._node, route, self._new_id, silence_s_max=self.settings.fetch_timeout_secs)
        # Imported here, so that only a node with a source over gRPC loads h2.
        from block_node.grpc.client.channel import GrpcChannel
        from block_node.grpc.client.source import GrpcSource

        def channel_to(address: str) -> GrpcChannel:
            def make_tls() -> TlsLayer:
                layer = self._make_tls(address)
                if layer is None:
                    raise RemoteProtocolError("tls_other", f"this node has no TLS for {address}")
                return layer

            return GrpcChannel(self._node, address, make_tls if setting.scheme == "grpcs" else None)

        [address] = setting.hops
        channel = channel_to(address)
        status = channel_to(setting.status) if setting.status else channel
        return GrpcSource(self._node, channel, status, silence_s_max=self.settings.fetch_timeout_secs)


def load_target(session: Session, chain: str) -> int | None:
    row = session.execute(_FIND, (chain,)).fetchone()
    # A damaged row is ignored, because publishers and source nodes will announce the newest block again.
    sound = row is not None and row[1] == seal_of(backfill_targets.name, (chain, row[0]))
    return row[0] if sound else None


def save_target(session: Session, chain: str, newest_known: int) -> None:
    row = (chain, newest_known)
    session.execute(_SAVE, (*row, seal_of(backfill_targets.name, row)))
