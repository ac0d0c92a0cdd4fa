"""Watches the disk of a node: refuses pushes while the disk is nearly full, and keeps the ballast, a file that the
node empties to make room (`stream_storage.sqlite.ballast`)."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path

import structlog
import trio

from stream_node.node.parts import NodeParts
from stream_storage.sqlite.ballast import Ballast

DISK_INTERVAL_S = 1.0

BALLAST_AFTER_S = 5.0
"""How long after its start a node makes a ballast. So a node that runs only for a moment leaves none."""

TIGHT_BYTES = 64 * 1024 * 1024
"""The node keeps the write-ahead log short if the free space is less than `free_disk_bytes_min` plus this number.
With more free space, the log may take up to about this number of bytes."""

logger = structlog.get_logger(__name__)


async def watch_disk(
    parts: NodeParts, folder: Path, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Measures the free space of the disk at intervals, refuses pushes near the limit, and makes the ballast.
    Reports its start after the first measurement, so that no push comes earlier. folder: that of the database."""
    condition, services, ballast = parts.condition, parts.services, Ballast(folder)
    parts.runner.tell_no_room = partial(services.leave_room, 0)
    ballast_from_s = trio.current_time() + BALLAST_AFTER_S

    async def measure() -> None:
        least_bytes = parts.config.free_disk_bytes_min
        try:
            free_bytes = (await trio.to_thread.run_sync(shutil.disk_usage, folder)).free
            # While the ballast is an empty file, pushes leave its room free, too.
            ensure = partial(ballast.ensure, free_bytes - least_bytes, begins=trio.current_time() >= ballast_from_s)
            least_bytes += await trio.to_thread.run_sync(ensure)
        # Python raises RuntimeError if the system has no room for one more thread.
        except (OSError, RuntimeError) as error:
            # The free space is unknown, so the limits stay as they are.
            condition.free_disk_bytes, condition.disk_failure = None, str(error)
            logger.error("disk_not_seen", data_dir=str(folder), reason=str(error))
            return
        condition.free_disk_bytes, condition.needed_disk_bytes = free_bytes, least_bytes
        condition.disk_failure = None
        services.leave_room(free_bytes - least_bytes if least_bytes else math.inf)
        parts.runner.writer.save_room(free_bytes - least_bytes < TIGHT_BYTES)
        if (free_bytes < least_bytes) != condition.refusing_pushes:
            condition.refusing_pushes = free_bytes < least_bytes
            logger.warning("disk_floor", refusing_pushes=condition.refusing_pushes, free_bytes=free_bytes)

    await measure()
    task_status.started()
    while True:
        await trio.sleep(DISK_INTERVAL_S)
        await measure()
