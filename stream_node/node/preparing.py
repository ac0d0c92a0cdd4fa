"""Checks the settings of a server before its start, and makes the TCP of the node."""

from __future__ import annotations

import structlog
import trio

from ockam.actors.node import Node
from ockam.identity.tls import ServerTls
from ockam.transport.tcp import TcpTransport
from stream_node.fleet.cluster_services import check_cluster
from stream_node.node.config import Config, without_effect
from stream_node.node.identity.access import check_exposure
from stream_node.node.identity.tls_settings import make_listener, make_outgoing_tls
from stream_node.node.identity.token_services import NodeTokens
from stream_node.node.live_settings import connection_limits

logger = structlog.get_logger(__name__)


def check_settings(config: Config) -> None:
    """Raises ConfigError if the settings do not fit together. Logs those that have no effect."""
    check_exposure(config)
    check_cluster(config)
    for setting, reason in without_effect(config).items():
        logger.warning("setting_without_effect", setting=setting, reason=reason)


def make_tcp(
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
