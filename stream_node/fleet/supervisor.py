"""Supervisor: starts the worker processes of one node, starts a dead one again, and stops them together.

All workers listen at the address of the node: each has a socket of its own there (`listen_together`),
among which the kernel shares the connections. The supervisor opens these sockets and keeps them, so a client that
connects while a worker is being started again waits for it. Each worker also has an address of its own, for the other
workers.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain

import msgspec
import structlog
import trio

from ockam.actors.address import split_host_port
from ockam.quotas.shared_use import shared_bytes
from ockam.transport.sockets import socket_name
from stream_node.fleet.worker_place import VARIABLE, WorkerPlace, own_address, worker_name
from stream_node.node.config import Config
from stream_node.node.notify import INHERITED, Notifier
from stream_node.node.server import CannotListen
from stream_storage.directory_lock import DirectoryLock

RESTART_S_MIN, RESTART_S_MAX = 0.2, 5.0
FAILURES_MAX = 5
"""If a worker ends this many times in a row without having listened, the whole node stops. Otherwise clients that the
kernel gives to this worker would wait for ever, and no service manager would see it."""
LISTEN_S_MAX = 840.0
"""A worker that has not listened this long after its start is killed. A start after a crash may check and copy a large
write-ahead log; a service manager gives the whole node 15 minutes (deploy/), and would not say which worker hangs."""
STABLE_S = 30.0
"""After a worker has run for this long, the next pause is the shortest one again."""
ABORT_S = 5.0
"""The time that a worker gets to write to the log where its threads stand, before it is killed."""
RELOAD_S_MAX = 30.0
"""A reload is over after this time, so that a worker that hangs does not keep the others from the next reload."""
BACKLOG = 1_024

logger = structlog.get_logger(__name__)


class NodeEnd(msgspec.Struct, frozen=True):
    """The end of a node with several workers. reason: why it ended, if the worker has not logged that itself."""

    code: int
    reason: str | None = None


class WorkerEnd(msgspec.Struct, frozen=True):
    """The end of one run of a worker. code: 0 if not started. reason: why it did not listen, if it cannot log that."""

    code: int
    has_listened: bool
    reason: str | None = None


class Supervisor:
    def __init__(self, config: Config, lock: DirectoryLock, arguments: Sequence[str], notifier: Notifier) -> None:
        """Opens the sockets of the workers. Raises CannotListen. lock: the lock on the data directory; the workers hold
        it too. arguments: the command line of a worker. notifier: reports to the service manager. If there is one, the
        workers report to this process, and one without progress for the time of the manager's watchdog is killed."""
        # Workers are watched only where a service manager watches this process.
        self._notifier = notifier
        self._watches = [
            WorkerWatch(
                worker_name(number),
                notifier.watchdog_s,
                kill=partial(self._kill, number),
                end_reload=partial(self._end_reload, number),
            )
            for number in range(config.workers if notifier.is_active else 0)
        ]
        self._count = config.workers
        self._lock = lock
        self._arguments = list(arguments)
        try:
            self._public = [
                listen_together(host, port, self._count) for host, port in resolved(*split_host_port(config.listen))
            ]
        except OSError as error:
            raise CannotListen(f"cannot listen at {config.listen}: {error}") from error
        self.addresses = [socket_name(group[0].getsockname()) for group in self._public]
        self._private, self._own_addresses = _open_private(config)
        # Workers know each other by the secret, and notice the end of this process by the pipe.
        self._secret = secrets.token_hex(16)
        self._alive, self._end = os.pipe()
        self._use = tempfile.TemporaryFile()  # noqa: SIM115  (it is open as long as the workers may be started)
        self._use.truncate(shared_bytes(self._count))
        self._processes: dict[int, trio.Process] = {}
        # The workers that have listened once, even if a new process of the worker is being started now.
        self._listening: set[int] = set()
        # The workers whose present process listens, so that it can take signals.
        self._serving: set[int] = set()
        self._all_listening = trio.Event()
        self._ready = trio.Event()
        self._reloading = trio.Lock()
        # By worker, the end of the reload that it has to do.
        self._reloads: dict[int, trio.Event] = {}
        self._stopping = trio.Event()
        self._failure: NodeEnd | None = None

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._stopping.set()
        for process in self._processes.values():
            process.send_signal(number)

    async def reload(self) -> None:
        """Makes all workers read their files again, and reports the begin and the end to the service manager. Waits
        until the workers have listened once: before that, they still read their files for the first time."""
        await self._ready.wait()
        async with self._reloading:
            if self._stopping.is_set():
                return
            self._notifier.reloading()
            # Every worker that runs has to report, also one that is just starting.
            self._reloads = {number: trio.Event() for number in self._processes}
            ends = list(self._reloads.values())
            # A signal would end a process that does not listen yet. It gets the signal when it listens.
            for number in sorted(self._serving):
                self._hang_up(number)
            # The wait is bounded: a worker that hangs must not hold up the manager's `systemctl reload`.
            with trio.move_on_after(RELOAD_S_MAX) as scope:
                for end in ends:
                    await end.wait()
            if scope.cancelled_caught:
                names = [worker_name(number) for number in self._reloads]
                logger.warning("workers_not_reloaded", workers=names, within_s=RELOAD_S_MAX)
            # After `stopping`, the manager expects the end of this process and no other state.
            if not self._stopping.is_set():
                self._notifier.ready()

    def _hang_up(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGHUP)
        if not self._watches:
            # Without a service manager, no worker reports that it has read its files, and nobody waits for that.
            self._end_reload(number)

    def _end_reload(self, number: int) -> None:
        """Notes that a worker has read its files, or has ended: a new process reads them. Safe to repeat."""
        end = self._reloads.pop(number, None)
        if end is not None:
            end.set()

    async def run(self, report_ready: Callable[[], None]) -> NodeEnd:
        """Runs the workers until `stop`, or until one cannot serve. The exit code is the highest one of a worker."""
        codes = [0] * self._count
        async with trio.open_nursery() as nursery:

            async def keep(number: int) -> None:
                codes[number] = await self._keep(number)

            async def tell() -> None:
                await self._all_listening.wait()
                report_ready()
                self._ready.set()

            nursery.start_soon(tell)
            for watch in self._watches:
                nursery.start_soon(watch.run)
            async with trio.open_nursery() as workers:
                for number in range(self._count):
                    workers.start_soon(keep, number)
            nursery.cancel_scope.cancel()
        # A worker that is stopped before it handles signals ends by SIGTERM, and has nothing to drain.
        return self._failure or NodeEnd(max(code if code >= 0 else int(code != -signal.SIGTERM) for code in codes))

    def close(self) -> None:
        for listener in (*chain.from_iterable(self._public), *self._private):
            listener.close()
        for watch in self._watches:
            watch.close()
        self._use.close()

    async def _keep(self, number: int) -> int:
        """Runs one worker, and restarts it when it dies. Returns its exit code after `stop`, or if it cannot serve."""
        name, pause_s, failures = worker_name(number), RESTART_S_MIN, 0
        while True:
            started_s = trio.current_time()
            try:
                end = await self._run_once(number)
            finally:
                # A reload does not wait for a process that is gone.
                self._processes.pop(number, None)
                self._serving.discard(number)
                self._end_reload(number)
            if self._stopping.is_set():
                return end.code
            failures = 0 if end.has_listened else failures + 1
            if number not in self._listening or failures == FAILURES_MAX:
                # A first start that fails finds wrong settings or data, and another attempt would find them as well.
                reason = end.reason
                if number in self._listening:
                    last = "" if reason is None else f"; the last time, {reason}"
                    reason = f"the worker {name} has ended {failures} times in a row before it listened, so the node "
                    reason += f"stops{last}"
                elif reason is None and end.code < 0:
                    reason = f"the worker {name} was ended by signal {-end.code} before it listened"
                self._failure = self._failure or NodeEnd(max(end.code, 1), reason)
                self.stop()
                return end.code
            # A worker that ran long enough failed for a new reason, so the pause is short again.
            if trio.current_time() - started_s > STABLE_S:
                pause_s = RESTART_S_MIN
            logger.error("worker_died", worker=name, code=end.code, restart_in_s=pause_s)
            with trio.move_on_after(pause_s):
                await self._stopping.wait()
                return 0
            pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def _run_once(self, number: int) -> WorkerEnd:
        try:
            process, report = await self._start(number)
        # Python raises RuntimeError if the system has no room for the thread that starts the process.
        except (OSError, RuntimeError) as error:
            # A machine without memory, processes or files for one more worker may have them again soon, and the other
            # workers must go on meanwhile.
            logger.error("worker_not_started", worker=worker_name(number), reason=str(error))
            return WorkerEnd(0, False, f"the system did not start the worker {worker_name(number)}: {error}")
        self._processes[number] = process
        # `stop` may have been called while the process was being started.
        if self._stopping.is_set():
            process.terminate()
        try:
            async with report:
                # The worker has a bounded time to say that it listens; its clients wait in the socket meanwhile.
                has_listened = False
                with trio.move_on_after(LISTEN_S_MAX) as patience:
                    has_listened = await self._read_listening(number, report)
            why = await self._end_silent(number, process) if patience.cancelled_caught else None
            return WorkerEnd(await process.wait(), has_listened, why)
        finally:
            if process.returncode is None:
                process.kill()

    async def _start(self, number: int) -> tuple[trio.Process, trio.abc.ReceiveStream]:
        """Starts a worker. Returns its process, and the pipe by which it reports that it listens. Raises OSError."""
        # The report has a pipe of its own, because the operator's code may print to the standard output.
        report, sender = os.pipe()
        try:
            place = WorkerPlace(
                number=number,
                addresses=self._own_addresses,
                public=[group[number].fileno() for group in self._public],
                private=self._private[number].fileno(),
                supervisor=self._alive,
                report=sender,
                use=self._use.fileno(),
                secret=self._secret,
            )
            # The child keeps these descriptors: its sockets, the pipes, shared usage, and the lock.
            kept = [*place.public, place.private, place.supervisor, sender, place.use, self._lock.descriptor]
            environment = {**os.environ, VARIABLE: msgspec.json.encode(place).decode(), "PYTHONFAULTHANDLER": "1"}
            if self._watches:
                environment |= self._watches[number].environment
                kept.append(self._watches[number].descriptor)
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "stream_node", *self._arguments],
                env=environment,
                pass_fds=kept,
                # A signal of the terminal is for the supervisor, which tells the workers.
                start_new_session=True,
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(sender)
        return process, trio.lowlevel.FdStream(report)

    async def _end_silent(self, number: int, process: trio.Process) -> str:
        """Ends a worker that does not listen. Returns the reason for the log."""
        name = worker_name(number)
        logger.error("worker_silent", worker=name, within_s=LISTEN_S_MAX)
        # At this signal, Python writes to the log where each thread stands, and ends.
        process.send_signal(signal.SIGABRT)
        with trio.move_on_after(ABORT_S):
            await process.wait()
        process.kill()
        told = f"the worker {name} did not listen within {LISTEN_S_MAX:g} s and was killed"
        return f"{told}; its log, the stderr of this node, says where its threads stood"

    def _kill(self, number: int) -> None:
        process = self._processes.get(number)
        if process is not None:
            process.kill()

    async def _read_listening(self, number: int, report: trio.abc.ReceiveStream) -> bool:
        """Waits until a worker reports that it listens, or ends. Returns whether it listens."""
        if not await report.receive_some(1):
            return False
        self._listening.add(number)
        self._serving.add(number)
        if number in self._reloads:
            # The process may have read its files just before they changed.
            self._hang_up(number)
        if len(self._listening) == self._count:
            self._all_listening.set()
        return True


def _open_private(config: Config) -> tuple[list[socket.socket], list[str]]:
    """Opens a socket of its own for each worker. Returns the sockets and their addresses. Raises CannotListen."""
    sockets: list[socket.socket] = []
    addresses = []
    for number in range(config.workers):
        place = own_address(config, number)
        try:
            sockets.append(listen_at(*resolved(place.host, place.port)[0]))
        except OSError as error:
            raise CannotListen(f"the worker {worker_name(number)} cannot listen at {place}: {error}") from error
        addresses.append(place.told or socket_name(sockets[-1].getsockname()))
    return sockets, addresses


def resolved(host: str, port: int) -> list[tuple[str, int]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((str(address[0]), port) for *_, address in found))


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """Returns several sockets that listen at one address, among which the kernel shares the connections (SO_REUSEPORT).

    SO_REUSEPORT alone would let a second node of the same user in. So the first socket begins to listen without it, and
    the kernel refuses that if any socket listens there: one of a single process, of another supervisor, or at a
    wildcard address. Only then the first socket is opened to the further ones. Another supervisor begins without
    SO_REUSEPORT too, so it is refused from then on until the last of these sockets is closed. Port 0 picks a free port.
    Raises OSError.
    """
    with ExitStack() as stack:
        first = stack.enter_context(listen_at(host, port))
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = first.getsockname()[1]
        further = [stack.enter_context(listen_at(host, port, joins=True)) for _ in range(count - 1)]
        stack.pop_all()
    return [first, *further]


def listen_at(host: str, port: int, *, joins: bool = False) -> socket.socket:
    """Returns a socket that listens at an address. Port 0 picks a free port. Raises OSError.
    joins: whether other sockets of this user that have SO_REUSEPORT may listen there, too; otherwise none may."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=joins)
    listening.setblocking(False)
    return listening


class WorkerWatch:
    """The socket to which one worker reports that it has read its files again, and its progress. To the worker it is a
    service manager (`stream_node.node.notify`), which the variables in `environment` name."""

    def __init__(
        self, name: str, watchdog_s: float | None, *, kill: Callable[[], None], end_reload: Callable[[], None]
    ) -> None:
        """watchdog_s: without progress for this time, `kill` is called; None: never. end_reload: ends a reload."""
        self._name = name
        self._watchdog_s = watchdog_s
        self._kill = kill
        self._end_reload = end_reload
        # A pair has no name, so no other program of the machine can send to it, or take its name first.
        self._reports, self._worker_side = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # The worker must not wait for this process. It inherits the socket in this mode.
        self._worker_side.setblocking(False)
        self.descriptor = self._worker_side.fileno()
        self.environment = {"NOTIFY_SOCKET": f"{INHERITED}{self.descriptor}"}
        if watchdog_s is not None:
            self.environment["WATCHDOG_USEC"] = str(round(watchdog_s * 1e6))

    def close(self) -> None:
        self._reports.close()
        self._worker_side.close()

    async def run(self) -> None:
        """Reads reports until it is cancelled. Kills a worker that has served and sends no report for `watchdog_s`."""
        reports = trio.socket.from_stdlib_socket(self._reports)
        is_serving = is_reloading = False
        while True:
            text = b""
            with trio.move_on_after(self._watchdog_s if is_serving and self._watchdog_s else float("inf")) as scope:
                text = await reports.recv(4096)
            if scope.cancelled_caught:
                logger.error("worker_stuck", worker=self._name, within_s=self._watchdog_s)
                self._kill()
            # A new process of the worker reports from its own start on.
            is_serving = bool(text) and text != b"STOPPING=1"
            if is_reloading and text == b"READY=1":
                self._end_reload()
            # Reports of progress come during a reload, too.
            if text != b"WATCHDOG=1":
                is_reloading = text.startswith(b"RELOADING=1")
