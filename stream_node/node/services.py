"""Starts the services of a node: combines storage, routes and workers.
The simulation and the tests start their nodes with this module too, so they run the same code as users."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from index_service.limits import IndexStatistics, LeaseLimits
from index_service.storage import delete_positions, lower_positions
from index_service.worker import IndexService
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.transport.forwarding import RemoteStreams
from stream_node.care.write_trials import WriteTrials
from stream_node.fleet.mirror.protocol import MirrorState
from stream_node.fleet.mirror.service import MirrorService
from stream_node.node.clock_note import Known
from stream_node.node.config import Config, ConfigError
from stream_node.node.keepers import keepers_of
from stream_service.extensions import Retention
from stream_service.limits import StreamLimits
from stream_service.mirror_rows import list_followers, list_mirrors
from stream_service.stored import StoredStream, list_stored
from stream_service.workers.clock import Clock
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.retention import register_retention
from stream_service.workers.service import register_service
from stream_storage.contract import Engine
from stream_storage.runner import Runner

if TYPE_CHECKING:
    from block_node.grpc.calls.services import GrpcServices
    from ockam.tracing.spans import Tracing
    from stream_node.forwarding.services import ForwardingServices, ForwardingStatistics
    from stream_node.node.block_services import BlockServices, BlockServicesStatistics

MIRRORS_NAMED_MAX = 5


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def stored_streams(database: Engine) -> list[StoredStream]:
    """Returns all streams of the database, one entry of about 300 bytes for each partition. Raises StorageError."""
    with closing(database.read_session()) as session:
        # Few streams have mirrors, so only those get a new entry.
        followers = list_followers(session)
        stored = list_stored(session, list_mirrors(session))
        return [
            msgspec.structs.replace(each, followers=tuple(followers[each.record.stream_id]))
            if each.record.stream_id in followers
            else each
            for each in stored
        ]


def streams_to_open(database: Engine, is_member: bool) -> list[StoredStream]:
    """Returns the streams that a node serves from its start on: none at a member of a cluster, which reads the streams
    of each shard when it takes the shard. Raises ConfigError, StorageError."""
    if not is_member:
        return stored_streams(database)
    check_no_mirrors(database)
    return []


def check_no_mirrors(database: Engine) -> None:
    """Raises ConfigError if a stream follows a source on another node, or fences its former one. At a member of a
    cluster, it would take no pushes and get no messages, and a former source would take pushes beside it."""
    with closing(database.read_session()) as session:
        rows = list_mirrors(session)
        stored = list_stored(session, rows, lambda record: record.stream_id in rows) if rows else ()
        names = {each.record.name for each in stored}
    if not names:
        return
    named = ", ".join(map(repr, sorted(names)[:MIRRORS_NAMED_MAX]))
    # A stream that only fences its former source is a primary already.
    follows = any(row.follows for row in rows.values())
    promote = " (or `stream-node mirror promote NAME`, for one that follows a source)" if follows else ""
    more = f" and {len(names) - MIRRORS_NAMED_MAX} more" if len(names) > MIRRORS_NAMED_MAX else ""
    raise ConfigError(
        f"a member of a cluster, and a node with several workers, has no mirrors, but these streams follow a source on "
        f"another node, or fence their former one: {named}{more}; start this node alone (without --cluster and "
        f"--workers), and run `stream-node mirror remove NAME` for each{promote}"
    )


class ServicesStatistics(msgspec.Struct, frozen=True):
    """The statistics of a node's services. `stream_service.counters.StreamCounters` describes the counters."""

    streams: int  # the partitions that are served
    refused: int
    creates_failed: int
    pushes_failed: int
    pulls_failed: int
    messages_passed_over: int
    write_failure: str | None
    index: IndexStatistics
    blocks: BlockServicesStatistics | None  # None if the block node is off or runs at another node of the cluster
    mirrors: list[MirrorState]  # the partitions that follow a source on another node, or fence their former one
    forwarding: ForwardingStatistics | None = None  # None if the forwarding services are off


class Services:
    """The stream service, the index service, the mirrors, the forwarding and the block node of one node. config: the
    settings in force. A simulation passes its own clocks and ids."""

    def __init__(
        self,
        node: Node,
        storage: Runner,
        config: Config,
        *,
        now_us: Callable[[], int] = wall_clock_us,
        steady_s: Callable[[], float] = trio.current_time,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
        known_time: Known = Known(0, None),  # noqa: B008  (immutable)
        note_offset: Callable[[int], None] | None = None,  # stores the trusted clock offset for the next start
        tracing: Tracing | None = None,  # makes the spans of pushes
        remote_streams: RemoteStreams | None = None,  # knows which streams other nodes of a cluster serve
        own_workers: Collection[str] = (),  # the addresses of the operator's workers, also of those that do not run
    ) -> None:
        # One clock for all streams, so that their times agree.
        clock = Clock(
            now_us,
            steady_s,
            newest_us=known_time.newest_us,
            trust_after_s=config.clock_trust_s,
            known_offset_us=known_time.offset_us,
            note_offset=note_offset,
        )
        self.config = config
        self._node = node
        # The directory makes the worker of each stream; the other services reach streams through it.
        self.directory = StreamDirectory(
            node,
            storage,
            limits=_stream_limits(config),
            clock=clock,
            new_id=new_id,
            default_retention=_default_retention(config),
            keepers=keepers_of(config),
            tracing=tracing,
            remote_streams=remote_streams,
        )
        limits = LeaseLimits(ttl_s=config.lease_ttl_s)
        self.directory.forget_positions, self.directory.lower_positions = delete_positions, lower_positions
        self.trials = WriteTrials(storage, self.directory.counters)
        # A saved position is compared with the creation time of its stream, so both come from one clock.
        self.index = IndexService(storage, self.directory.now_us, lease_limits=limits, remote_streams=remote_streams)
        # The mirrors share the lease groups of the index service: a promotion ends the leases of the source. The server
        # starts them after the node listens.
        self.mirrors = MirrorService(self.directory, self.index.groups, passes_pushes=config.mirror_passes_pushes)
        self._forwarding: ForwardingServices | None = None
        if config.forwarding:
            # A node without the service does not load it.
            from stream_node.forwarding.services import ForwardingServices

            self._forwarding = ForwardingServices(node, config, own_workers)
        self._refusal: str | None = None
        self._blocks: BlockServices | None = None
        if config.block_node:
            from stream_node.node.block_services import BlockServices, read_trust

            self._make_blocks = partial(BlockServices, self.directory, read_trust(config))
            # The node of a cluster that serves the shard of the chain has the block node, see `serve_chain`.
            if remote_streams is None:
                self._blocks = self._make_blocks(config)

    def start(self, stored: list[StoredStream]) -> None:
        for stream in stored:
            self.directory.open_stream(stream)
        register_retention(self.directory, self.config.retention_interval_s)
        register_service(self.directory, self.config.service_addresses)
        self.index.register(self._node, self.config.index_addresses)
        if self._blocks is not None:
            self._blocks.start()
        if self._forwarding is not None:
            self._forwarding.start(stream.record.name for stream in stored)

    def statistics(self) -> ServicesStatistics:
        counters = self.directory.counters
        return ServicesStatistics(
            streams=self.directory.count,
            refused=counters.refused,
            creates_failed=counters.creates_failed,
            pushes_failed=counters.pushes_failed,
            pulls_failed=counters.pulls_failed,
            messages_passed_over=counters.messages_passed_over,
            write_failure=self.trials.failure,
            index=self.index.statistics(),
            blocks=None if self._blocks is None else self._blocks.statistics(),
            mirrors=self.mirrors.tasks.states(),
            forwarding=None if self._forwarding is None else self._forwarding.statistics(),
        )

    def now_us(self) -> int:
        """Returns the time of the streams, in microseconds since 1970 (`stream_service.workers.clock.Clock`)."""
        return self.directory.clock.time_us()

    @property
    def acknowledged_blocks(self) -> int | None:
        """The number of acknowledgements to publishers of blocks since the start; None if the node takes no blocks."""
        publish = None if self._blocks is None else self._blocks.statistics().node.publish
        return None if publish is None else publish.acknowledgements

    @property
    def grpc(self) -> GrpcServices | None:
        """The block services over gRPC; None if they are off, or run at another node of the cluster."""
        return None if self._blocks is None else self._blocks.grpc

    def stop(self) -> None:
        """Ends the sessions of publishers and subscribers of blocks. Members of groups keep their leases."""
        self.index.members.is_stopping = True
        if self._blocks is not None:
            self._blocks.stop()

    def change_settings(self, config: Config) -> None:
        self.config = config
        self.directory.limits = _stream_limits(config)
        self.directory.default_retention = _default_retention(config)
        if self._blocks is not None:
            self._blocks.change_retention(config)

    def leave_room(self, room_bytes: float) -> None:
        """Sets the number of bytes that may be written to the disk until the next call.
        Pushes that do not fit into this room are answered with ERROR. Blocks are refused if the room is 0 or less."""
        self.directory.counters.room_bytes = room_bytes
        self._refusal = None if room_bytes > 0 else "the disk is below free_disk_bytes_min"
        if self._blocks is not None:
            self._blocks.refuse_blocks(self._refusal)

    def serve_chain(self) -> None:
        """Starts the block node, because this node of the cluster serves the stream of the chain from now on."""
        if self.config.block_node and self._blocks is None:
            self._blocks = self._make_blocks(self.config)
            self._blocks.refuse_blocks(self._refusal)
            self._blocks.start()

    def leave_chain(self) -> list[Message]:
        """Ends the block node: another node serves the chain now. Returns the messages that were not served."""
        blocks, self._blocks = self._blocks, None
        return [] if blocks is None else blocks.hand_over()


def _stream_limits(config: Config) -> StreamLimits:
    return StreamLimits(
        partitions_max=config.partitions_max,
        streams_max=config.streams_max,
        pull_bytes_max=config.pull_bytes_max,
        error_delay_s=config.error_delay_s,
    )


def _default_retention(config: Config) -> Retention | None:
    retention = Retention(config.retention_age_s, config.retention_messages, config.retention_bytes)
    return None if retention == Retention() else retention
