"""Supervisor: starts the worker processes of one node, starts a dead one again, and stops them together.

All workers listen at the address of the node: each has a socket of its own there (`stream_node.worker_sockets`), among
which the kernel shares the connections. The supervisor opens these sockets and keeps them, so a client that connects while a worker is
being started again waits for it. Each worker also has an address of its own on this machine, for the other workers.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import structlog
import trio

from ockam.address import split_host_port
from ockam.sockets import socket_name
from storage.directory_lock import DirectoryLock
from stream_node.config import Config
from stream_node.server import CannotListen
from stream_node.worker_place import VARIABLE, WorkerPlace, worker_name
from stream_node.worker_sockets import listen_alone, listen_together, resolved
from stream_node.worker_watch import WorkerWatch

RESTART_S_MIN, RESTART_S_MAX = 0.2, 5.0
"""The shortest and the longest pause before a dead worker is started again. The pause doubles each time."""
STABLE_S = 30.0
"""If a worker has run for this long, the next pause is the shortest one again."""

logger = structlog.get_logger(__name__)


class WorkerFailed(Exception):
    """Error: a worker process could not start, and said why. code: its exit code."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"the worker {name} did not start; its reason is above")
        self.code = code


class Supervisor:
    """The worker processes of one node.

    addresses: the `host:port` at which they listen together.
    """

    def __init__(
        self, config: Config, lock: DirectoryLock, arguments: Sequence[str], watchdog_s: float | None = None
    ) -> None:
        """Opens the sockets of the workers. Raises CannotListen.

        lock: the lock on the data directory, which the workers hold too, so that it lasts as long as any of them lives.
        arguments: the command line of a worker. watchdog_s: after how many seconds without progress a worker is killed;
        None: never.
        """
        self._watches = [
            WorkerWatch(worker_name(number), watchdog_s, partial(self._kill, number))
            for number in range(config.workers if watchdog_s is not None else 0)
            if watchdog_s is not None
        ]
        self._count = config.workers
        self._lock = lock
        self._arguments = list(arguments)
        host, port = split_host_port(config.listen)
        try:
            self._public = [listen_together(host, port, self._count) for host, port in resolved(host, port)]
            self._private = [
                listen_alone("127.0.0.1" if config.database is None else host, 0) for _ in range(self._count)
            ]
        except OSError as error:
            raise CannotListen(f"cannot listen at {config.listen}: {error}") from error
        self.addresses = [socket_name(group[0].getsockname()) for group in self._public]
        self._secret = secrets.token_hex(16)
        self._alive, self._end = os.pipe()
        self._processes: dict[int, trio.Process] = {}
        self._listening: set[int] = set()
        self._all_listening = trio.Event()
        self._stops = False

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Makes all workers stop. Safe to repeat."""
        self._stops = True
        for process in self._processes.values():
            process.send_signal(number)

    def reload(self) -> None:
        """Makes all workers read their files again."""
        for process in self._processes.values():
            process.send_signal(signal.SIGHUP)

    async def run(self, tell_ready: Callable[[], None]) -> int:
        """Runs the workers until `stop`. Returns the highest exit code of a worker. Raises WorkerFailed.

        tell_ready: called once, when all workers listen.
        """
        codes = [0] * self._count
        async with trio.open_nursery() as nursery:

            async def keep(number: int) -> None:
                codes[number] = await self._keep(number)

            async def tell() -> None:
                await self._all_listening.wait()
                tell_ready()

            nursery.start_soon(tell)
            for watch in self._watches:
                nursery.start_soon(watch.run)
            async with trio.open_nursery() as workers:
                for number in range(self._count):
                    workers.start_soon(keep, number)
            nursery.cancel_scope.cancel()
        return max(codes)

    async def _keep(self, number: int) -> int:
        """Runs one worker, and starts it again when it dies. Returns its exit code after `stop`."""
        pause_s = RESTART_S_MIN
        while True:
            started_s = trio.current_time()
            try:
                code = await self._run_once(number)
            finally:
                self._processes.pop(number, None)
            if self._stops:
                return code
            if number not in self._listening:
                # Its settings or its data are wrong, and another attempt would find them as they are.
                self.stop()
                raise WorkerFailed(worker_name(number), code)
            if trio.current_time() - started_s > STABLE_S:
                pause_s = RESTART_S_MIN
            logger.error("worker_died", worker=worker_name(number), code=code, restart_in_s=pause_s)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def _run_once(self, number: int) -> int:
        place = self._place(number)
        kept = [*place.public, place.private, place.supervisor, self._lock.descriptor]
        environment = {**os.environ, VARIABLE: msgspec.json.encode(place).decode()}
        if self._watches:
            environment |= self._watches[number].environment
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "stream_node", *self._arguments],
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=kept,
            # A signal of the terminal is for the supervisor, which tells the workers.
            start_new_session=True,
        )
        self._processes[number] = process
        if self._stops:
            process.terminate()
        try:
            assert process.stdout is not None, "its output is a pipe"
            async with process.stdout:
                await self._read_listening(number, process.stdout)
                return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()

    def _kill(self, number: int) -> None:
        process = self._processes.get(number)
        if process is not None:
            process.kill()

    async def _read_listening(self, number: int, output: trio.abc.ReceiveStream) -> None:
        """Reads the output of a worker until it says that it listens, or ends."""
        text = b""
        while b"\n" not in text:
            chunk = await output.receive_some()
            if not chunk:
                return
            text += chunk
        if json.loads(text.splitlines()[0]).get("event") == "listening":
            self._listening.add(number)
            if len(self._listening) == self._count:
                self._all_listening.set()

    def _place(self, number: int) -> WorkerPlace:
        return WorkerPlace(
            number=number,
            addresses=[socket_name(each.getsockname()) for each in self._private],
            public=[group[number].fileno() for group in self._public],
            private=self._private[number].fileno(),
            supervisor=self._alive,
            secret=self._secret,
        )
