"""The membership of a node in its cluster: combines the packages `cluster`, `stream_service` and `index_service`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog
import trio

from block_node.moved import BLOCK_OPENINGS
from ockam.actors.address import Address, complete_address, local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.errors import AddressInUse, ConnectFailed, InvalidAddress
from ockam.transport.connection import Connection
from ockam.transport.forwarding import OpenRequests
from ockam.transport.tcp import TcpTransport
from stream_node.fleet.cluster.member import ClusterMember, FixedMember, MemberStatistics, fixed_view
from stream_node.fleet.cluster.protocol import CLUSTER
from stream_node.fleet.cluster.router import NONCE_BYTES, Link, Router
from stream_node.fleet.cluster.view import ClusterView, shard_of
from stream_node.fleet.cluster.worker import ClusterWorker
from stream_node.fleet.worker_place import WorkerPlace
from stream_node.hosting.hosted import HostedWorkers, worker_home
from stream_node.node.config import Config
from stream_node.node.keepers import chain_address
from stream_service.mirror_rows import list_mirrors
from stream_service.names import stream_address
from stream_service.stored import StoredStream, list_stored
from stream_storage.contract import Do, Engine, Session, StreamRecord
from stream_storage.errors import OperationFailed, StorageError
from stream_storage.runner import Runner

if TYPE_CHECKING:
    from stream_node.node.services import Services

LINK_LOST = "cluster_link_lost"
"""The reason why a client's connection ends if messages of the client were sent to a member that has died."""
logger = structlog.get_logger(__name__)


class StreamShards:
    """Starts and stops the workers of the streams of a shard: a `stream_node.fleet.cluster.member.ShardServices`.
    The block node, and each of the operator's workers (`hosted`), run at the owner of one shard."""

    def __init__(self, services: Services, hosted: HostedWorkers) -> None:
        self._services = services
        self._directory = services.directory
        self._hosted = hosted
        self._chain = shard_of(chain_address(services.config))

    async def open_shards(self, shards: Sequence[int], serve: Callable[[], None]) -> None:
        wanted = frozenset(shards)
        ended, failures = trio.Event(), list[StorageError]()

        def is_wanted(record: StreamRecord) -> bool:
            return shard_of(stream_address(record.name, record.partition)) in wanted

        # The workers start in this callback. If a task that waits for the list starts them a moment later, some
        # messages overtake others, as the simulation of a cluster shows.
        def listed(operation: Do[list[StoredStream]]) -> None:
            error = operation.error
            if error is None:
                try:
                    self._open(operation.result, with_chain=self._chain in wanted)
                    self._hosted.serve(wanted)
                    serve()
                except Exception as raised:
                    # This is a mistake of this program. Without the error, the member would wait for ever.
                    logger.exception("shards_not_opened", shards=len(wanted))
                    error = OperationFailed(f"the workers of {len(wanted)} shards did not start: {raised!r}")
            if error is not None:
                failures.append(error)
            ended.set()

        def work(session: Session) -> list[StoredStream]:
            return list(list_stored(session, list_mirrors(session), is_wanted))

        self._directory.storage.submit_read(Do(work, listed))
        await ended.wait()
        if failures:
            raise failures[0]

    def _open(self, streams: Sequence[StoredStream], *, with_chain: bool) -> None:
        for stream in streams:
            try:
                # An address that is taken concerns one stream; the others of the shard are served.
                self._directory.open_stream(stream)
            except AddressInUse as error:
                logger.error("stream_not_served", stream=stream.record.name, reason=str(error))
        if with_chain:
            self._services.serve_chain()

    def close_shards(self, shards: Sequence[int]) -> dict[int, list[Message]]:
        waiting: dict[int, list[Message]] = {shard: [] for shard in shards}
        # The block node ends first, so that it opens the stream of its chain no more.
        if self._chain in waiting:
            waiting[self._chain] += self._services.leave_chain()
        for shard, messages in self._hosted.leave(shards).items():
            waiting[shard] += messages
        # Stopped workers hand over their mailboxes, so that the messages wait for the next owner.
        for address in self._directory.addresses():
            of_shard = waiting.get(shard_of(address))
            if of_shard is not None:
                of_shard += self._directory.hand_over(address)
        self._services.index.groups.forget(lambda name: shard_of(stream_address(name, 0)) in waiting)
        return waiting


class NodeCluster:
    """The membership of one node, or of one of several worker processes, from its start to its end."""

    def __init__(
        self,
        config: Config,
        node: Node,
        tcp: TcpTransport,
        nursery: trio.Nursery,
        database: Engine,
        place: WorkerPlace | None,
        own_workers: Sequence[str],  # the addresses of the operator's workers, which are the same at all members
    ) -> None:
        self._config = config
        self._node = node
        self._tcp = tcp
        self._nursery = nursery
        self._member: ClusterMember | FixedMember | None = None
        self._view: ClusterView | None = None
        # A worker with a database of its own needs no table: the number of workers says who serves what.
        if place is not None and config.database is None:
            # The shards of such workers never move.
            name, token, self._view = place.name, place.token, fixed_view(place.members)
        else:
            assert config.cluster is not None, "a member of a cluster has a name"
            assert database.owner is not None, "a cluster has a database with several writers"
            name, token = config.cluster, database.owner
        self.router = Router(
            node,
            name,
            token,
            call=lambda link: self._nursery.start_soon(self._connect, link),
            hang_up=self._hang_up,
            new_nonce=lambda: secrets.token_bytes(NONCE_BYTES),
            refresh=self._refresh,
            has_own_database=self._view is not None,
            others_at=chain_address(config) if config.block_node else None,
            openings=BLOCK_OPENINGS,
            homes={local(address): worker_home(address) for address in own_workers},
            linked=self._linked,
        )

    async def start(self, storage: Runner, services: Services, hosted: HostedWorkers, address: str) -> None:
        """Joins the other members, and returns when this is done. address: where the node listens."""
        shards = StreamShards(services, hosted)
        if self._view is not None:
            self._member = FixedMember(self.router, shards, self._view)
        else:
            at = complete_address(self._config.cluster_address or address)
            self._member = ClusterMember(
                self.router, storage, shards, address=at, now_us=lambda: time.time_ns() // 1_000
            )
        member = self._member
        self._node.register([CLUSTER], lambda: ClusterWorker(member))
        await self._nursery.start(member.run)

    async def leave(self, deadline_s: float) -> None:
        if isinstance(self._member, ClusterMember):
            await self._member.leave(deadline_s)

    def statistics(self) -> MemberStatistics | None:
        return None if self._member is None else self._member.statistics()

    def _refresh(self) -> None:
        if self._member is not None:
            self._member.refresh()

    async def _connect(self, link: Link) -> None:
        try:
            connection = await self._tcp.open_connection(link.member.address, link=link)
        except (ConnectFailed, InvalidAddress) as error:
            logger.warning("cluster_member_not_reached", member=link.member.name, reason=str(error))
            link.ended(OpenRequests())
        else:
            link.begin(connection.own_address)

    def _linked(self, address: Address) -> None:
        """Takes a connection that another member has made off the lists of clients: it serves many clients."""
        connection = self._node.find_worker(address)
        if isinstance(connection, Connection):
            self._tcp.roster.forget(connection)

    def _hang_up(self, connections: Sequence[Address]) -> None:
        for address in connections:
            connection = self._node.find_worker(address)
            if isinstance(connection, Connection):
                connection.close(LINK_LOST)
