"""The service `node_status`: answers with the state of the node, and counters from which a client computes rates."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
import trio

import bare
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.worker import TaskAnsweringWorker
from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from ockam.protocol import Protocol
from stream_node.care.trouble_service import register_troubles
from stream_node.version import __version__

if TYPE_CHECKING:
    from stream_node.node.parts import NodeParts

ADDRESS = "node_status"
MADE_EVERY_S = 0.1
"""The shortest interval between two answers that differ: gathering the statistics takes milliseconds."""


# type NodeStatusRequest struct { request_id: uint }
class NodeStatusRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt


# type NodeStatus struct { request_id: uint  version: str  schema_version: uint  now_us: u64  started_us: u64
#   connections: uint  partitions: uint  messages: uint  commits: uint  commit_us: uint  commit_us_max: uint
#   reads: uint  waiting: uint  failed: uint  refused: uint  memory_bytes: uint  free_disk_bytes: optional<uint>
#   refusing_pushes: bool  write_failure: optional<str>  chain: optional<str> }
class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The condition of a node. Times are in microseconds since 1970; counters begin at the start of the node."""

    request_id: bare.UInt
    version: str  # the version of the program
    schema_version: bare.UInt  # the version of the tables in its database
    now_us: bare.U64  # the time of the node's streams
    started_us: bare.U64
    connections: bare.UInt  # the number of open connections
    partitions: bare.UInt  # the number of partitions that are served
    messages: bare.UInt  # the number of messages that were stored
    commits: bare.UInt  # the number of committed transactions, each with a sync
    commit_us: bare.UInt  # the duration of all commits together, in microseconds
    commit_us_max: bare.UInt  # the duration of the longest commit
    reads: bare.UInt  # the number of finished reads of the database
    waiting: bare.UInt  # the number of operations that wait for the database now
    failed: bare.UInt  # the number of reads and writes that ended with an error
    refused: bare.UInt  # the number of requests that were refused, see `ServerStatistics`
    memory_bytes: bare.UInt  # the memory that the node holds for its peers
    free_disk_bytes: bare.UInt | None  # the free space of the disk with the data; None if it is not known
    refusing_pushes: bool  # whether pushes are refused because the disk is nearly full
    # Why pushes are not stored: the reason of the last push, or of a write that the node has tried; None after a push
    # has succeeded.
    write_failure: str | None
    chain: str | None  # the name of the chain of the block node; None if it is off


NODE_STATUS = Protocol("node/status/1", NodeStatusRequest, NodeStatus)


class NodeStatusService(TaskAnsweringWorker):
    def __init__(self, parts: NodeParts, started_us: int, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self._parts = parts
        self._started_us = started_us
        self._status: NodeStatus | None = None
        self._made_at_s = 0.0

    def answer(self, message: Message) -> None:
        self.start_task(partial(self._answer, message, NODE_STATUS.decode_request(message.payload)))

    async def _answer(self, message: Message, request: NodeStatusRequest) -> None:
        # It is known then whether pushes are stored.
        await self._parts.services.trials.settle()
        if self._status is None or monotonic() > self._made_at_s + MADE_EVERY_S:
            self._status, self._made_at_s = self._make(), monotonic()
        answer = msgspec.structs.replace(self._status, request_id=request.request_id)
        self.reply(message, NODE_STATUS.encode_response(answer))

    def demand(self, message: Message) -> Demand:
        """Returns the rights of which the sender needs one.
        If the only right were one to administer, each question would get a line in the audit log."""
        return Demand(Right.OPERATE | Right.ADMIN, EVERY_NAME)

    def _make(self) -> NodeStatus:
        """Returns the present status, with the request id 0."""
        # `stream-node status` and `top` import this module for its protocol, and do without SQLAlchemy.
        from stream_storage.sqlite.schema import SCHEMA_VERSION

        # One snapshot of all statistics, so that the counters of an answer belong together.
        parts, found = self._parts, self._parts.statistics()
        storage, services = found.storage, found.services
        return NodeStatus(
            request_id=0,
            version=__version__,
            schema_version=SCHEMA_VERSION,
            now_us=parts.services.now_us(),
            started_us=self._started_us,
            connections=len(found.tcp.connections),
            partitions=services.streams,
            messages=storage.rows,
            commits=storage.commits,
            commit_us=round(storage.commit_s_total * 1e6),
            commit_us_max=round(storage.commit_s_max * 1e6),
            reads=storage.reads,
            waiting=storage.writes_waiting + storage.reads_waiting,
            failed=storage.failed,
            refused=found.refused,
            memory_bytes=found.tcp.memory.size_bytes,
            free_disk_bytes=parts.condition.free_disk_bytes,
            refusing_pushes=parts.condition.refusing_pushes,
            write_failure=storage.failure or services.write_failure,
            chain=parts.config.block_chain if parts.config.block_node else None,
        )


def register_status(parts: NodeParts, nursery: trio.Nursery) -> None:
    """Starts this service and that of `stream_node.care.trouble_service` on a node."""
    # Operators compare the times of messages and positions with this clock.
    started_us = parts.services.now_us()
    parts.node.register([local(ADDRESS)], lambda: NodeStatusService(parts, started_us, nursery))
    register_troubles(parts, nursery)
