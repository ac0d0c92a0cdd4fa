"""NodeParts: the parts of a running node, for observers within the node such as HTTP and the metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ockam.actors.node import Node
from ockam.identity.authenticator import Authenticator
from ockam.identity.rules.authorizer import Authorizer
from ockam.identity.tls import ServerTls
from ockam.transport.remote_streams import RemoteStreams
from ockam.transport.tcp import TcpTransport
from stream_node.care.trouble import CurrentTroubles
from stream_node.node.config import Config
from stream_node.node.services import Services
from stream_node.node.statistics import ServerStatistics
from stream_storage.thread_runner import ThreadRunner


@dataclass
class NodeCondition:
    """The present condition of a node as its server knows it.

    refusing_pushes: because the disk is nearly full. free_disk_bytes: None if it could not be measured (disk_failure
    has the reason), and before the first time. needed_disk_bytes: the free space below which pushes are refused:
    `free_disk_bytes_min`, and the ballast while it is given up (`stream_storage.sqlite.ballast`). is_draining: whether
    the node is stopping.
    """

    refusing_pushes: bool = False
    free_disk_bytes: int | None = None
    disk_failure: str | None = None
    needed_disk_bytes: int = 0
    is_draining: bool = False


@dataclass
class NodeParts:
    """The parts of a running node. config: the settings in force. tls: None without TLS.
    authorizer: decides by the rules; None: everybody may do everything. elsewhere: the other nodes of the cluster, or
    the other workers of the node. find_troubles: returns the present troubles; None without HTTP, where nothing looks
    for them."""

    config: Config
    node: Node
    tcp: TcpTransport
    runner: ThreadRunner
    services: Services
    authenticator: Authenticator
    authorizer: Authorizer | None
    tls: ServerTls | None
    statistics: Callable[[], ServerStatistics]
    condition: NodeCondition
    remote_streams: RemoteStreams | None = None
    find_troubles: Callable[[], Awaitable[CurrentTroubles]] | None = None
