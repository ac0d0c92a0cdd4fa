"""Reads the memory limit of this process (its cgroup), and bounds the memory of a node for its clients by it.
A node that exceeds the limit is killed. The defaults of the settings suit a machine with 1 GiB."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from stream_node.node.config import Config
from stream_storage.sqlite.freed_memory import return_freed

SUITED_BYTES = 1024 * 1024 * 1024
"""With at least this much memory, the settings hold as they are."""
PEER_SHARE, IN_FLIGHT_SHARE, CACHE_SHARE = 8, 32, 16
"""A worker's share of a smaller limit, divided by these, bounds all clients together, the requests of one client, and
SQLite's page caches. On its way, a request or an answer takes several times its size, and Python takes 80 MiB."""
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
BYTES_MIN = 1024 * 1024

logger = structlog.get_logger(__name__)


def find_memory_limit() -> int | None:
    """Returns the smallest memory limit of the cgroups of this process, in bytes; None without one."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A container sees its own group at the root.
        own = root / path.strip("/")
        for folder in (own, *own.parents):
            with suppress(OSError):
                if folder.is_relative_to(root) and (text := (folder / name).read_text().strip()).isdigit():
                    limits.append(int(text))
    return min(limits, default=None)


def bounded(config: Config, limit_bytes: int | None) -> Config:
    """Returns the settings of a node with this memory limit, or without one (None)."""
    if limit_bytes is None or limit_bytes >= SUITED_BYTES * config.workers:
        return config
    own_bytes = limit_bytes // config.workers
    peer_bytes = min(config.peer_memory_bytes_max, max(BYTES_MIN, own_bytes // PEER_SHARE))
    in_flight_bytes = min(config.identity_in_flight_bytes_max, max(BYTES_MIN, own_bytes // IN_FLIGHT_SHARE))
    # The process itself changes, too: by default it keeps much of what it has freed.
    return_freed(own_bytes // CACHE_SHARE)
    logger.info("memory_bounded", limit_bytes=limit_bytes, peer_bytes=peer_bytes, in_flight_bytes=in_flight_bytes)
    return msgspec.structs.replace(
        config,
        peer_memory_bytes_max=peer_bytes,
        identity_in_flight_bytes_max=in_flight_bytes,
        identity_limits_loopback=True,
    )
