"""Peers: other servers that the node is compared with. Each is started on a free loopback port, if it is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import PeerFailed
from bench.measure import sample_fields
from bench.packages import NATS, REDIS, maybe_install
from bench.report import Sample
from stream_node.bench.loads import Timed
from stream_node.process import cpu_seconds, memory_bytes

PEERS = ("redis", "nats")
START_TIMEOUT_S = 20.0
REQUIREMENTS = {"redis": REDIS, "nats": NATS}
PROGRAMS = {"redis": "redis-server", "nats": "nats-server"}
DURABILITY = {
    "redis": "fsync before every answer (appendonly yes, appendfsync always)",
    "nats": "file storage, written but not synced before the answer (the server's default: every 2 minutes)",
}


def maybe_peer(name: str, place: Path, absent: list[str]) -> Peer | None:
    """The peer, ready to be started. If it or its client is missing: None, and a line in `absent` that says so."""
    program = shutil.which(PROGRAMS[name])
    if program is None:
        absent.append(f"{name}: {PROGRAMS[name]} is not installed")
        return None
    folder = maybe_install(REQUIREMENTS[name], place)
    if folder is None:
        absent.append(f"{name}: its client {REQUIREMENTS[name]} cannot be installed")
        return None
    return Peer(name, program, folder)


class Peer:
    """One server, with its data below the working directory like ours. A context manager: it ends with the block."""

    def __init__(self, name: str, program: str, client: Path) -> None:
        self.name = name
        self._program = program
        self._client = client
        self._port = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._streams = 0

    @property
    def version(self) -> str:
        """The versions of the server, as it prints it, and of its client."""
        said = subprocess.run([self._program, "--version"], capture_output=True, check=True, text=True).stdout
        return f"{said.splitlines()[0]}; {REQUIREMENTS[self.name]}"

    def __enter__(self) -> Peer:
        self._directory = tempfile.TemporaryDirectory(prefix=".bench-", dir=".")
        place = Path(self._directory.name).resolve()
        self._port = _free_port()
        with (place / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self._program, *self._arguments(place)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._wait_until_it_listens(place)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def new_stream(self) -> str:
        self._streams += 1
        return f"bench{self._streams}"

    def measure(self, work: str, round_: int, *, stream: str, messages: int, size_bytes: int, window: int) -> Sample:
        """Have the client do this work in a process of its own. Raises PeerFailed."""
        assert self._process is not None, "the server is not running"
        cpu_s = cpu_seconds(self._process.pid)
        command = [sys.executable, "-P", str(Path(__file__).with_name("peer_client.py")), str(self._client)]
        command += [self.name, str(self._port), work, str(messages), str(size_bytes), str(window), stream]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        if done.returncode != 0:
            raise PeerFailed(f"{self.name}, {work}: {done.stderr.strip().splitlines()[-1:]}")
        timed = msgspec.json.decode(done.stdout, type=Timed)
        # A pipeline has one time for all of its pushes, which is not the time of any of them.
        fields: dict[str, Any] = sample_fields(msgspec.structs.replace(timed, times_us=[]) if work == "push" else timed)
        return Sample(
            work=work,
            system=self.name,
            durability=DURABILITY[self.name],
            round=round_,
            window=window,
            size_bytes=size_bytes,
            server_cpu_s=cpu_seconds(self._process.pid) - cpu_s,
            server_memory_bytes=memory_bytes(self._process.pid),
            **fields,
        )

    def _arguments(self, place: Path) -> list[str]:
        if self.name == "nats":
            return ["-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(place)]
        return [
            *("--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(place), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"),
        ]

    def _wait_until_it_listens(self, place: Path) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), 0.1).close()
            except OSError:
                self._pause()
            else:
                return
        last = (place / "log").read_text(errors="replace").splitlines()[-1:]
        raise PeerFailed(f"{self._program} does not listen: {' '.join(last) or 'it wrote nothing'}")

    def _pause(self) -> None:
        """Wait for a moment, or for the end of the server if that comes first."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
