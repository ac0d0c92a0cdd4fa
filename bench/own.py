"""The node and our clients as one of the systems that are compared: as they come, and with compiled modules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import BenchFailed
from bench.measure import sample_fields
from bench.packages import maybe_compile
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from stream_node.bench.run import Timed

ROOT = Path(__file__).parents[1]
COMPILED = f"{OURS}, compiled"
"""The name of the node and the client that use compiled modules (docs/performance.md)."""


class Own(msgspec.Struct, frozen=True):
    """One of our systems. system: its name in reports. environment: variables for the node and the clients."""

    system: str = OURS
    environment: Mapping[str, str] = {}

    def variables(self) -> dict[str, str]:
        """The whole environment of a process of this system."""
        return {**os.environ, **self.environment}

    def node(self) -> BenchNode:
        return BenchNode(environment=self.environment)

    def measure(self, node: BenchNode, action: str, *, work: str, round_: int, **load: Any) -> Sample:
        """Has a client in a process of its own do this work. Raises BenchFailed.

        action: the name of a function in `bench/own_client.py`. work: the name of the work in the report.
        load: the fields of `Load`.
        """
        cpu_s, written_bytes = node.cpu_seconds(), node.written_bytes()
        command = [sys.executable, "-m", "bench.own_client", node.address, action]
        command.append(msgspec.json.encode(load).decode())
        done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=ROOT, env=self.variables())
        if done.returncode != 0:
            raise BenchFailed(f"{self.system}, {work}: {done.stderr.strip().splitlines()[-1:]}")
        return Sample(
            work=work,
            system=self.system,
            round=round_,
            window=int(load.get("window", 0)),
            size_bytes=int(load["size_bytes"]),
            server_cpu_s=node.cpu_seconds() - cpu_s,
            server_memory_bytes=node.memory_bytes(),
            written_bytes=node.written_bytes() - written_bytes,
            **sample_fields(msgspec.json.decode(done.stdout, type=Timed)),
        )


def own_systems(place: Path, absent: list[str], *, compiles: bool) -> list[Own]:
    """Our system with the pure modules and, if they can be built, with the compiled ones. Building takes a minute.

    place: a folder for packages that only the bench needs.
    absent: gets a line if the compiled modules cannot be built.
    compiles: whether to build them.
    Raises BenchFailed if they are built and not used.
    """
    pure = Own()
    folder = maybe_compile(place) if compiles else None
    if folder is None:
        if compiles:
            absent.append(f"{COMPILED}: the compiled modules cannot be built here (docs/performance.md)")
        return [pure]
    # The bench is imported from the checkout, and everything else from the folder before it: without PYTHONSAFEPATH,
    # Python would look into the working folder first, which is the checkout.
    path = os.pathsep.join(filter(None, [str(folder.resolve()), str(ROOT), os.environ.get("PYTHONPATH")]))
    compiled = Own(COMPILED, {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"})
    # A figure of this system must never be one of pure modules.
    version = [sys.executable, "-m", "stream_node", "--version"]
    done = subprocess.run(version, capture_output=True, check=True, text=True, cwd=ROOT, env=compiled.variables())
    if "compiled" not in done.stdout:
        raise BenchFailed(f"{COMPILED}: the modules are not used: {done.stdout.strip()}")
    return [pure, compiled]
