"""The node and our clients as one of the systems that are compared: as they come, and with compiled modules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.bench_node import BenchNode
from bench.errors import BenchFailed
from bench.measure import sample_fields
from bench.report import OURS, Sample
from stream_node.bench.loads import Timed

ROOT = Path(__file__).parents[1]


class Own(msgspec.Struct, frozen=True):
    """system: its name in reports. environment: variables for the processes of the node and of the client."""

    system: str = OURS
    environment: Mapping[str, str] = {}

    def variables(self) -> dict[str, str]:
        """The whole environment of a process of this system."""
        return {**os.environ, **self.environment}

    def node(self) -> BenchNode:
        return BenchNode(environment=self.environment)

    def measure(self, node: BenchNode, action: str, *, work: str, round_: int, **load: Any) -> Sample:
        """Have a client in a process of its own do this work. Raises BenchFailed.

        action: the name of a function in `bench/own_client.py`. work: the name of the work in the report.
        load: the fields of `Load`.
        """
        cpu_s = node.cpu_seconds()
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
            **sample_fields(msgspec.json.decode(done.stdout, type=Timed)),
        )
