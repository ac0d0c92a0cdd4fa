"""The server of a node. It opens the data directory, starts the node, listens, and drains the node when it is stopped.

It stops in this order:

1. It accepts no more connections, and reads no more from the open ones.
2. It waits until the submitted operations are committed, and sends their confirms.
3. It checkpoints the write-ahead log and closes the database.

A kill skips all these steps and loses no confirmed message, because a confirmed message is already on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from ockam.actors.address import split_host_port
from ockam.actors.node import Node
from ockam.identity.identity import Identity
from ockam.identity.rules.audit import Audit
from ockam.identity.tls import ServerTls
from ockam.transport.tcp import TcpTransport
from stream_node.care.disk_watch import watch_disk
from stream_node.fleet.worker_place import WorkerPlace, own_settings
from stream_node.hosting.hosted import HostedWorkers
from stream_node.hosting.specification import MakeWorker, load_workers
from stream_node.node.clock_note import read_known, since_boot_s, write_note
from stream_node.node.config import APPLICATION, Config, ConfigError, without_effect
from stream_node.node.config_sources import check_cluster, check_forwarding, own_address
from stream_node.node.databases import StoredPlace, open_database
from stream_node.node.day_log import DayLog
from stream_node.node.identity.access import NodeAccess, check_exposure, make_usages, open_access
from stream_node.node.identity.channel_services import start_channels
from stream_node.node.identity.tls_settings import TlsWatch, make_listener, make_outgoing_tls, make_tls
from stream_node.node.identity.token_services import NodeTokens
from stream_node.node.live_settings import change_settings, connection_limits
from stream_node.node.memory_limit import bounded, find_memory_limit
from stream_node.node.node_connections import register_connections
from stream_node.node.node_status import register_status
from stream_node.node.notify import Notifier
from stream_node.node.parts import NodeCondition, NodeParts, ServerStatistics
from stream_node.node.services import Services, streams_to_open, wall_clock_us
from stream_service.stored import StoredStream
from stream_storage.thread_runner import ThreadRunner

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing
    from stream_node.doors.grpc.listener import GrpcListener
    from stream_node.doors.http.listener import HttpListener
    from stream_node.fleet.cluster_services import NodeCluster

logger = structlog.get_logger(__name__)


class CannotListen(OSError):
    """The node cannot listen at an address, because it is in use or does not belong to this machine. The text has
    the address."""


class Server:
    """One node that serves one data directory. `serve` runs it until `stop` is called. config: the settings in force.
    addresses, http, grpc: the `host:port` texts at which the node listens, and listens for HTTP and gRPC. abandon: ends
    this process; called when everything is stored and closed, if a worker of the operator does not end. Without it,
    `serve` waits for that worker."""

    def __init__(
        self,
        config: Config,
        notifier: Notifier | None = None,
        place: WorkerPlace | None = None,
        *,
        workers: Mapping[str, str | MakeWorker] | None = None,
    ) -> None:
        """notifier: reports progress and end to a service manager; None: there is none. place: the place of this
        process among the workers of the node; None: it is the only one. workers: further workers, by their addresses,
        beside those of the setting `worker`. Each is a class, a function that makes a worker, or a text as in the
        setting."""
        self._memory_limit = find_memory_limit()
        self.config = bounded(config, self._memory_limit)
        self._place = place
        self._workers = workers
        self._notifier = Notifier({}) if notifier is None else notifier
        self.addresses: list[str] = []
        self.http: list[str] = []
        self.grpc: list[str] = []
        self.condition = NodeCondition()
        self.abandon: Callable[[], object] | None = None
        self._stop = trio.Event()
        self._listening = trio.Event()
        self._tls_watch: TlsWatch | None = None
        self._access: NodeAccess | None = None
        self._parts: NodeParts | None = None
        self._http: HttpListener | None = None
        self._grpc: GrpcListener | None = None
        self._tracing: Tracing | None = None
        self._cluster: NodeCluster | None = None
        self._day_log: DayLog | None = None
        self._hosted: HostedWorkers | None = None

    @property
    def refusing_pushes(self) -> bool:
        return self.condition.refusing_pushes

    def stop(self) -> None:
        """Begins to drain the node. `serve` returns when this is done. Safe to repeat."""
        self._stop.set()

    async def wait_listening(self) -> None:
        """Returns when the node listens, or has listened."""
        await self._listening.wait()

    def reload(self) -> None:
        """Begins to read certificates and rules again, and opens the audit log again. Invalid files change nothing."""
        if self._tls_watch is not None:
            self._tls_watch.reload()
        if self._access is not None:
            self._access.reload()

    def change_settings(self, wanted: Config, source: str) -> None:
        """Changes the settings that change while the node runs, see `stream_node.node.live_settings`.
        source: where they were read, for the log. A server that does not listen changes nothing."""
        if self._parts is not None:
            # A worker process has ports of its own, which no reload changes.
            wanted = bounded(own_settings(wanted, self._place), self._memory_limit)
            self.config = self._parts.config = change_settings(self._parts, self.config, wanted, source)

    def statistics(self) -> ServerStatistics:
        """Returns the present statistics. Raises RuntimeError while the server is not listening."""
        parts = self._parts
        if parts is None:
            raise RuntimeError("the server is not listening")
        return ServerStatistics(
            node=parts.node.statistics(),
            tcp=parts.tcp.statistics(),
            storage=parts.runner.statistics(),
            services=parts.services.statistics(),
            channels=None if parts.channels is None else parts.channels.statistics(),
            access=None if parts.authorizer is None else parts.authorizer.statistics(),
            limits=parts.node.usages.statistics(),
            http=None if self._http is None else self._http.statistics(),
            grpc=None if self._grpc is None else self._grpc.statistics(),
            traces=None if self._tracing is None else self._tracing.statistics(),
            cluster=None if self._cluster is None else self._cluster.statistics(),
        )

    @property
    def _audit(self) -> Audit | None:
        return None if self._access is None else self._access.audit

    async def serve(self, *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop` is called. Reports the addresses of the node to `task_status`.
        Raises StorageError, CannotListen, ConfigError."""
        config = self.config
        # 1. Everything that can be refused without a database comes first.
        check_exposure(config)
        check_cluster(config)
        check_forwarding(config)
        for setting, reason in without_effect(config).items():
            logger.warning("setting_without_effect", setting=setting, reason=reason)
        own_workers = load_workers(config, self._workers)
        self._tracing = start_traces(config)
        # 2. Open the database: it locks its folder, so a second node of this folder ends here.
        folder, stored_place, is_member = Path(config.data_dir), StoredPlace(0, 1), bool(config.cluster or self._place)
        if self._place is not None:
            folder /= self._place.name
            stored_place = StoredPlace(self._place.number, len(self._place.addresses))
        database = await trio.to_thread.run_sync(open_database, config, folder, stored_place)
        try:
            stored = await trio.to_thread.run_sync(streams_to_open, database, is_member)
            newest_us = max((each.last_time_us for each in stored), default=0)
            # 3. The node and the thread that writes. All parts below send messages through this node.
            async with trio.open_nursery() as nursery:
                node = Node(nursery, make_usages(config, self._place))
                runner = ThreadRunner(database, batches=node, times_appends=self._tracing is not None)
                try:
                    # 4. The protection stands before anything can be reached: TLS, tokens, and the rules with their
                    # audit log.
                    tls = make_tls(config)
                    tokens = NodeTokens(config)
                    tcp = _make_tcp(config, node, nursery, tls, tokens)
                    close_identities = partial(self._close_identities, tcp)
                    self._access = open_access(config, node, close_identities, wall_clock_us, nursery, self._place)
                    tokens.start(node, close_identities, nursery, self._audit)
                    # 5. With other members, the services ask the router which streams are here.
                    if is_member:
                        from stream_node.fleet.cluster_services import NodeCluster

                        addresses = [each.address for each in own_workers]
                        self._cluster = NodeCluster(config, node, tcp, nursery, database, self._place, addresses)
                    remote_streams = None if self._cluster is None else self._cluster.router
                    # 6. The services, with the streams that are stored. A member opens those of its shards later.
                    services = Services(
                        node,
                        runner,
                        config,
                        steady_s=since_boot_s,
                        known_time=read_known(folder, newest_us, wall_clock_us()),
                        note_offset=partial(write_note, folder),
                        tracing=self._tracing,
                        remote_streams=remote_streams,
                        own_workers=[each.address for each in own_workers if each.takes_routed],
                    )
                    services.start(stored)
                    # 7. Secure channels, and the services by which operators look at the node.
                    channels = start_channels(node, nursery, config, self._access, close_identities)
                    parts = self._parts = NodeParts(
                        config=config,
                        folder=folder if config.database is None else None,
                        node=node,
                        tcp=tcp,
                        runner=runner,
                        services=services,
                        channels=channels,
                        authenticator=tokens.authenticator,
                        authorizer=None if self._access is None else self._access.authorizer,
                        tls=tls,
                        statistics=self.statistics,
                        condition=self.condition,
                        remote_streams=remote_streams,
                    )
                    register_status(parts, nursery)
                    register_connections(parts)
                    self._hosted = HostedWorkers(
                        node, tcp, nursery, config, own_workers, services.now_us, remote_streams
                    )
                    if not is_member:
                        self._hosted.start()
                    # 8. Listen only when everything that a message can reach is there.
                    await self._watch(parts, nursery)
                    await self._listen(parts, nursery, stored)
                    if self._cluster is not None:
                        # 9. Join the cluster with the address that the node has got.
                        await self._cluster.start(runner, services, self._hosted, self.addresses[0])
                    # 10. The node serves: report it, and wait for the stop.
                    self._listening.set()
                    task_status.started(self.addresses)
                    await self._stop.wait()
                    await self._drain(parts)
                finally:
                    # Nobody may read statistics of parts that are being closed.
                    self._parts = None
                    if self._access is not None:
                        self._access.audit.close()
                    # The writing thread ends before the database closes, also if this task is cancelled.
                    with trio.CancelScope(shield=True):
                        await runner.aclose()
                    if self.abandon is not None and self._hosted is not None and self._hosted.hangs:
                        database.close()
                        self.abandon()
                nursery.cancel_scope.cancel()
        finally:
            database.close()
            await end_traces(self._tracing)

    async def _watch(self, parts: NodeParts, nursery: trio.Nursery) -> None:
        """Starts the `DayLog`, and the tasks that watch the disk, the writing thread, and the files of certificates."""
        # A node with a PostgreSQL server cannot see the disk of the database.
        if parts.folder is not None:
            await nursery.start(watch_disk, parts, parts.folder)
        # A writing thread that hangs is reported to the service manager by silence.
        nursery.start_soon(self._notifier.report_progress, parts.runner)
        self._day_log = DayLog(parts.tcp.roster)
        nursery.start_soon(self._day_log.run)
        if parts.tls is not None:
            self._tls_watch = TlsWatch(parts.tls, partial(self._end_refused, parts.tcp), self._audit)
            nursery.start_soon(self._tls_watch.run)

    async def _listen(self, parts: NodeParts, nursery: trio.Nursery, stored: list[StoredStream]) -> None:
        """Starts to accept connections at all doors, and to follow the sources of mirrors. Raises CannotListen."""
        listen = parts.config.listen
        try:
            # A worker process listens at sockets that its supervisor has opened.
            if self._place is None:
                self.addresses = await parts.tcp.listen(*split_host_port(listen))
            else:
                *self.addresses, _ = parts.tcp.listen_at(self._place.listeners())
        except OSError as error:
            raise CannotListen(f"cannot listen at {listen}: {error}") from error
        parts.services.mirrors.start(nursery, stored, own_address(parts.config, self.addresses))
        if parts.config.grpc:
            # Only a node with gRPC loads h2.
            from stream_node.doors.grpc.listener import GrpcListener

            self._grpc = GrpcListener(parts, nursery)
            self.grpc = await _open_door(self._grpc, "gRPC", parts.config.grpc)
        if not parts.config.http:
            # Only the dashboard uses the growth of streams.
            parts.services.directory.counters.tells_growth = False
            return
        # Only a node with HTTP waits for starlette and h11, which take a tenth of a second.
        from stream_node.doors.dashboard.dashboard import Dashboard
        from stream_node.doors.http.endpoints import ENDPOINTS
        from stream_node.doors.http.listener import HttpListener

        dashboard = Dashboard(parts)
        parts.find_troubles = dashboard.find_troubles
        nursery.start_soon(dashboard.watch)
        nursery.start_soon(dashboard.watch_troubles)
        nursery.start_soon(dashboard.watch_trends)
        self._http = HttpListener(parts, (*ENDPOINTS, *dashboard.endpoints), nursery)
        self.http = await _open_door(self._http, "HTTP", parts.config.http)

    @property
    def _doors(self) -> list[HttpListener | GrpcListener]:
        return [each for each in (self._http, self._grpc) if each is not None]

    def _close_identities(self, tcp: TcpTransport, is_meant: Callable[[Identity], bool], reason: str) -> int:
        return sum(each.close_identities(is_meant, reason) for each in (tcp, *self._doors))

    def _end_refused(self, tcp: TcpTransport) -> None:
        for each in (tcp, *self._doors):
            each.end_refused()

    async def _drain(self, parts: NodeParts) -> None:
        logger.info("draining")
        self._notifier.stopping()
        self.condition.is_draining = True
        deadline_s = trio.current_time() + self.config.drain_timeout_s
        # HTTP takes no more connections, and answers the requests that it has.
        for door in self._doors:
            door.stop_accepting()
        # Other nodes of a cluster serve the streams from here on, and clients go on through this node meanwhile. A
        # quarter of the time is for what follows, also if the database is away.
        if self._cluster is not None:
            await self._cluster.leave(deadline_s - self.config.drain_timeout_s / 4)
        # Take no new work. Otherwise a busy peer could keep the node from ever becoming idle.
        parts.tcp.listening.cancel()
        # The operator's workers end first, while their clients still get answers. Half of the time is for what follows.
        if self._hosted is not None:
            await self._hosted.stop(trio.current_time() + (deadline_s - trio.current_time()) / 2)
        parts.tcp.stop_reading()
        parts.services.mirrors.end()
        # All submitted messages are committed and get their confirms.
        with trio.move_on_at(deadline_s):
            await parts.runner.wait_idle()
        # One batch, so that each connection sends all its last messages at once.
        with parts.node.batch():
            parts.services.stop()
        # Secure channels end after the last answers have gone through them.
        if parts.channels is not None:
            with parts.node.batch():
                parts.channels.stop()
        # Connections close only after the peers have been sent their confirms.
        await parts.tcp.close_when_sent(deadline_s)
        for door in self._doors:
            await door.aclose(deadline_s)
        assert self._day_log is not None, "the node has started"
        self._day_log.end(self.statistics())


async def _open_door(door: HttpListener | GrpcListener, name: str, addresses: tuple[str, ...]) -> list[str]:
    try:
        return await door.listen()
    except OSError as error:
        raise CannotListen(f"cannot listen for {name} at {' and '.join(addresses)}: {error}") from error


def _make_tcp(
    config: Config, node: Node, nursery: trio.Nursery, tls: ServerTls | None, tokens: NodeTokens
) -> TcpTransport:
    return TcpTransport(
        node,
        nursery,
        tls=None if tls is None else make_listener(config, tls),
        outgoing_tls=make_outgoing_tls(config),
        allow_forward=config.allow_forward,
        limits=connection_limits(config),
        connections_max=config.connections_max,
        memory_bytes_max=config.peer_memory_bytes_max,
        authenticator=tokens.authenticator,
        outgoing_tokens=tokens.outgoing,
    )


def start_traces(config: Config) -> Tracing | None:
    """Returns the maker of the node's spans, or None if the setting `traces` is not given. Raises ConfigError."""
    if config.traces is None:
        return None
    # Only a node that traces loads OpenTelemetry, which takes a third of a second.
    from ockam.tracing.opening import TracingUnavailable, open_tracing

    try:
        # This is the name of a node in its spans, unless OTEL_SERVICE_NAME gives another one.
        return open_tracing(config.traces, APPLICATION, _note_outage)
    except TracingUnavailable as error:
        raise ConfigError(f"traces: {error}") from error


def _note_outage(is_failing: bool) -> None:
    """Logs in one line that the collector begins to fail, or is back. The metrics have the numbers of lost spans."""
    if is_failing:
        logger.warning("traces_not_exported")
    else:
        logger.info("traces_exported_again")


async def end_traces(tracing: Tracing | None) -> None:
    if tracing is None:
        return
    with trio.CancelScope(shield=True):
        try:
            await trio.to_thread.run_sync(tracing.close)
        except RuntimeError:
            # The system has no room for one more thread. No other task is left, so this thread may wait.
            tracing.close()
    found = tracing.statistics()
    logger.info(
        "traces_ended", exported=found.exported, failed=found.failed, dropped=found.dropped, waiting=found.waiting
    )
