"""WorkerWatch: notices when a worker process has read its files again, and kills one that reports no progress.
To the worker it is a service manager: the worker reports its progress by the protocol of `stream_node.node.notify`."""

from __future__ import annotations

import os
from collections.abc import Callable

import structlog
import trio

logger = structlog.get_logger(__name__)


class WorkerWatch:
    """The socket to which one worker reports. environment: the variables by which the worker finds the socket."""

    def __init__(
        self, name: str, watchdog_s: float | None, *, kill: Callable[[], None], end_reload: Callable[[], None]
    ) -> None:
        """watchdog_s: the time without progress after which the worker is killed; None: never. end_reload: called when
        it has read its files again."""
        self._name = name
        self._watchdog_s = watchdog_s
        self._kill = kill
        self._end_reload = end_reload
        # A name that begins with @ has no file, and ends with this process.
        address = f"stream-node-{os.getpid()}-{name}"
        self.environment = {"NOTIFY_SOCKET": f"@{address}"}
        if watchdog_s is not None:
            self.environment["WATCHDOG_USEC"] = str(round(watchdog_s * 1e6))
        self._address = f"\0{address}"

    async def run(self) -> None:
        """Reads the reports without end. The time begins when the worker reports that it serves."""
        with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM) as reports:
            await reports.bind(self._address)
            is_serving = is_reloading = False
            while True:
                text = b""
                with trio.move_on_after(self._watchdog_s if is_serving and self._watchdog_s else float("inf")):
                    text = await reports.recv(4096)
                if not text:
                    logger.error("worker_stuck", worker=self._name, within_s=self._watchdog_s)
                    self._kill()
                # A new process of the worker reports from its own start on.
                is_serving = bool(text) and text != b"STOPPING=1"
                if is_reloading and text == b"READY=1":
                    self._end_reload()
                # Reports of progress come during a reload, too.
                if text != b"WATCHDOG=1":
                    is_reloading = text.startswith(b"RELOADING=1")
