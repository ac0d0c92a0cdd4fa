"""Notifier: reports the state of the node to the service manager (systemd) by the protocol of sd_notify(3).
A message is one datagram to the Unix socket that the variable NOTIFY_SOCKET names; without it, nothing is sent.
A worker process reports to its supervisor in the same way, over a socket that it has inherited."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

import structlog
import trio

from stream_storage.thread_runner import ThreadRunner

WATCHDOG_SHARE = 4
"""The node reports its progress this many times in the time after which the service manager would kill it."""
INHERITED = "descriptor:"
"""The beginning of NOTIFY_SOCKET if the number of an inherited socket follows."""

logger = structlog.get_logger(__name__)


class Notifier:
    """Sends the states of one process to its service manager. A message that cannot be sent is logged and lost.
    is_active: whether there is a service manager that wants messages. watchdog_s: the service manager kills the node
    when it reports no progress for this long; None: never."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """environment: loses the variables of sd_notify, so that no child process reports for this one."""
        name = environment.pop("NOTIFY_SOCKET", "")
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        watched = environment.pop("WATCHDOG_PID", "") or str(os.getpid())
        # A name that begins with @ has no file: in the address, its first byte is 0.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._inherited = int(name.removeprefix(INHERITED)) if name.startswith(INHERITED) else None
        self.is_active = bool(name)
        is_watched = self.is_active and watchdog_us.isdecimal() and int(watchdog_us) > 0 and watched == str(os.getpid())
        self.watchdog_s = int(watchdog_us) / 1e6 if is_watched else None

    def ready(self) -> None:
        """Reports that the node serves, after its start or after its files were read again."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Reports that the node reads its files again. `ready` reports the end."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    async def report_progress(self, runner: ThreadRunner) -> None:
        """Reports progress without end, as long as the trio loop and the writing thread go on.
        This task runs in the trio loop, so it reports nothing while the loop stands still. The writing thread is woken
        each time: nothing is reported if it has not finished a pass since, or has given up writing."""
        if self.watchdog_s is None:
            return
        is_stuck = False
        while True:
            before = runner.writer.passes
            # The writing thread does one more pass, also if nothing waits for it.
            runner.writer.wake_up()
            await trio.sleep(self.watchdog_s / WATCHDOG_SHARE)
            if runner.writer.passes == before or not runner.is_writing:
                if not is_stuck:
                    logger.error("writing_stuck", within_s=self.watchdog_s, then="the service manager ends this node")
                is_stuck = True
                continue
            is_stuck = False
            self._send("WATCHDOG=1")

    async def report_alive(self) -> None:
        """Reports progress without end, as long as the trio loop goes on: for a process that writes nothing itself."""
        while self.watchdog_s is not None:
            await trio.sleep(self.watchdog_s / WATCHDOG_SHARE)
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self.is_active:
            return
        try:
            if self._inherited is not None:
                # Writing opens no descriptor, so a worker that has none left can still report.
                os.write(self._inherited, text.encode())
                return
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # The service manager reads soon, and the node must not wait for it.
                sender.setblocking(False)
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            logger.warning("not_notified", message=text.partition("\n")[0], reason=str(error))
