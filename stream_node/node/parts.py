"""NodeParts: the parts of a running node, for its server and for observers such as HTTP and the metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ockam.actors.node import Node, NodeStatistics
from ockam.identity.authenticator import Authenticator
from ockam.identity.channel.admission_machine import ChannelStatistics
from ockam.identity.channel.workers.channels import SecureChannels
from ockam.identity.rules.authorizer import AccessStatistics, Authorizer
from ockam.identity.tls import ServerTls
from ockam.quotas.usage import LimitStatistics
from ockam.tracing.statistics import TracingStatistics
from ockam.transport.forwarding import RemoteStreams
from ockam.transport.roster import TcpStatistics
from ockam.transport.tcp import TcpTransport
from stream_node.care.trouble import CurrentTroubles
from stream_node.node.config import Config
from stream_node.node.services import Services, ServicesStatistics
from stream_storage.runner import RunnerStatistics
from stream_storage.thread_runner import ThreadRunner

if TYPE_CHECKING:
    from stream_node.fleet.cluster.member import MemberStatistics


class HttpStatistics(msgspec.Struct, frozen=True):
    """The counts since the start; `open`, `clients` and `body_bytes` are those of now. closed: by reason.
    requests: the answered ones, by status. clients: the number of clients inside the node."""

    open: int
    accepted: int
    closed: dict[str, int]
    requests: dict[str, int]
    clients: int
    body_bytes: int


class GrpcDoorStatistics(msgspec.Struct, frozen=True):
    """The counts since the start; `open`, `open_calls` and `unfinished_bytes` are those of now.

    closed: by reason. calls: ended calls, by status. unfinished_bytes: received bytes of large messages."""

    open: int
    accepted: int
    closed: dict[str, int]
    open_calls: int
    calls: dict[str, int]
    unfinished_bytes: int


class ServerStatistics(msgspec.Struct, frozen=True):
    """The statistics of all parts of the node. None: the part is off."""

    node: NodeStatistics
    tcp: TcpStatistics
    storage: RunnerStatistics
    services: ServicesStatistics
    channels: ChannelStatistics | None
    access: AccessStatistics | None
    limits: LimitStatistics
    http: HttpStatistics | None = None
    grpc: GrpcDoorStatistics | None = None
    traces: TracingStatistics | None = None
    cluster: MemberStatistics | None = None

    @property
    def refused(self) -> int:
        """The number of refused requests since the start: they were not valid, or a rule or a limit forbade them."""
        by_rules = {} if self.access is None else self.access.refused
        invalid = self.services.refused + self.services.index.refused
        return invalid + sum(by_rules.values()) + sum(self.limits.refused.values())


@dataclass
class NodeCondition:
    """The present condition of a node as its server knows it."""

    refusing_pushes: bool = False  # whether the disk is too full for pushes
    free_disk_bytes: int | None = None  # None before it is measured, and if it could not be measured
    disk_failure: str | None = None  # why the free space could not be measured
    # The free space below which pushes are refused: `free_disk_bytes_min`, and the ballast while it is given up
    # (`stream_storage.sqlite.ballast`).
    needed_disk_bytes: int = 0
    is_draining: bool = False  # whether the node is stopping


@dataclass
class NodeParts:
    """The parts of a running node."""

    config: Config  # the settings in force
    folder: Path | None  # of the SQLite database, which a worker process has for itself; None: PostgreSQL
    node: Node
    tcp: TcpTransport
    runner: ThreadRunner
    services: Services
    channels: SecureChannels | None
    authenticator: Authenticator
    authorizer: Authorizer | None  # decides by the rules; None: everybody may do everything
    tls: ServerTls | None
    statistics: Callable[[], ServerStatistics]
    condition: NodeCondition
    remote_streams: RemoteStreams | None = None  # the other nodes of the cluster, or the other workers of the node
    # Returns the present troubles; None without HTTP, where nothing looks for them.
    find_troubles: Callable[[], Awaitable[CurrentTroubles]] | None = None
