"""ServerStatistics: the statistics of all parts of a running node. It counts nothing itself."""

from __future__ import annotations

import msgspec

from ockam.actors.node import NodeStatistics
from ockam.identity.channel.limits import ChannelStatistics
from ockam.identity.rules.authorizer import AccessStatistics
from ockam.quotas.usage import LimitStatistics
from ockam.tracing.statistics import TracingStatistics
from ockam.transport.tcp_statistics import TcpStatistics
from stream_node.doors.grpc.statistics import GrpcDoorStatistics
from stream_node.doors.http.statistics import HttpStatistics
from stream_node.fleet.cluster.statistics import MemberStatistics
from stream_node.node.services import ServicesStatistics
from stream_storage.runner import RunnerStatistics


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
