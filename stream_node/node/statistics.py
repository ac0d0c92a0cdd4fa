"""ServerStatistics: the statistics of all parts of a running node. It counts nothing itself."""

from __future__ import annotations

import msgspec

from ockam.actors.node import NodeStatistics
from ockam.identity.channel.limits import ChannelStatistics
from ockam.identity.rules.authorizer import AccessStatistics
from ockam.quotas.usage import LimitStatistics
from ockam.tracing.statistics import TracingStatistics
from ockam.transport.tcp_statistics import TcpStatistics
from stream_node.doors.http.statistics import HttpStatistics
from stream_node.fleet.cluster.statistics import MemberStatistics
from stream_node.node.services import ServicesStatistics
from stream_storage.runner import RunnerStatistics


class ServerStatistics(msgspec.Struct, frozen=True):
    """The statistics of all parts of the node.

    channels: the statistics of secure channels; None if they are off.
    access: the statistics of the rules; None without rules.
    limits: the statistics of the limits per identity.
    http: the statistics of HTTP; None if it is off.
    traces: what became of the node's spans; None if it makes none.
    cluster: the statistics of the node as a member of its cluster; None without a cluster.
    """

    node: NodeStatistics
    tcp: TcpStatistics
    storage: RunnerStatistics
    services: ServicesStatistics
    channels: ChannelStatistics | None
    access: AccessStatistics | None
    limits: LimitStatistics
    http: HttpStatistics | None = None
    traces: TracingStatistics | None = None
    cluster: MemberStatistics | None = None

    @property
    def refused(self) -> int:
        """The number of requests that were refused since the start: they were not valid, or a rule or a limit forbade
        them."""
        by_rules = {} if self.access is None else self.access.refused
        invalid = self.services.refused + self.services.index.refused
        return invalid + sum(by_rules.values()) + sum(self.limits.refused.values())
