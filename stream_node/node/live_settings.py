"""The settings that a running node can change, and their change. It reads no file; other settings need a new start."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
import trio

from ockam.quotas.limits import LIMIT_NAMES
from ockam.quotas.usage import SETTING_PREFIX
from ockam.transport.connection_machine import ConnectionLimits
from stream_node.node.config import LOG_LEVELS, Config, shown
from stream_node.node.identity.access import identity_limits
from stream_node.node.logs import set_level
from stream_node.node.parts import NodeParts

WHILE_RUNNING = frozenset(
    (
        *("allow_forward", "idle_timeout_s", "frame_timeout_s", "send_timeout_s", "drain_timeout_s"),
        *("connections_max", "peer_memory_bytes_max", "free_disk_bytes_min", "log_level"),
        *("http_hosts", "http_origins", "http_connections_max", "http_body_bytes_max", "http_body_timeout_s"),
        *("streams_max", "partitions_max", "pull_bytes_max", "identity_limits_loopback", "secure_channel_trusted"),
        *(SETTING_PREFIX + name for name in LIMIT_NAMES),
        *("retention_age_s", "retention_messages", "retention_bytes"),
        *("block_retention_blocks", "block_retention_bytes"),
        *("metrics_names_max", "consumer_stuck_after", "export_folders"),
    )
)
FILES_READ_AGAIN = frozenset(
    (
        *("tls_certificate", "tls_certificate_key", "tls_client_ca", "tls_revoked", "tls_forward_ca"),
        *("access_rules", "forward_tokens"),
    )
)
"""The settings that name files which the node reads again while it runs. Another file name needs a new start."""

logger = structlog.get_logger(__name__)


def change_settings(parts: NodeParts, running: Config, wanted: Config, source: str) -> Config:
    """Changes the settings of a running node that can change, and returns the settings in force afterwards.
    Logs the changes and the settings that wait for the next start. source: where they were read, for the log."""
    changes = {
        name: (before, after)
        for name in Config.__struct_fields__
        if (before := getattr(running, name)) != (after := getattr(wanted, name))
    }
    now = {name: after for name, (_, after) in changes.items() if name in WHILE_RUNNING}
    config = msgspec.structs.replace(running, **now)
    if now:
        _apply(parts, config)
    # The lower level of the two is in force for this line, so that a change of the level does not hide it.
    set_level(min(running.log_level, config.log_level, key=LOG_LEVELS.index))
    logger.info(
        "settings_loaded",
        file=source,
        changed=[_change(name, *changes[name]) for name in now],
        at_next_start=[_change(name, *values) for name, values in changes.items() if name not in now],
    )
    set_level(config.log_level)
    return config


def connection_limits(config: Config) -> ConnectionLimits:
    return ConnectionLimits(frame_s=config.frame_timeout_s, send_s=config.send_timeout_s, idle_s=config.idle_timeout_s)


def _apply(parts: NodeParts, config: Config) -> None:
    """Gives the settings to the parts.
    The server obeys `free_disk_bytes_min` and `drain_timeout_s` itself, and gives HTTP the settings in force."""
    parts.tcp.allow_forward(config.allow_forward)
    parts.tcp.change_limits(
        connection_limits(config),
        connections_max=config.connections_max,
        memory_bytes_max=config.peer_memory_bytes_max,
    )
    parts.node.usages.replace_limits(
        identity_limits(config), trio.current_time(), limits_loopback=config.identity_limits_loopback
    )
    parts.services.change_settings(config)
    if parts.channels is not None:
        parts.channels.trust.replace_identifiers(config.secure_channel_trusted)


def _change(name: str, before: Any, after: Any) -> str:
    return f"{name}: {shown(before)} -> {shown(after)}"
