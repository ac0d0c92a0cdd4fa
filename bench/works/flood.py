"""Flood: how long a client waits for its pushes while another identity, with or without limits, floods the node.

Each round starts one node for each way. The honest client pushes in short turns, beside the flood and while the flood
stands still, so that other work on the machine disturbs both figures alike.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from bench.measure import push_in_turn, sample_fields
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from ockam.identity.rules.rights import ALL_RIGHTS
from ockam.identity.rules.rule_file import rule_text
from ockam.identity.rules.rules import Rule
from stream_client import Tls, connect
from stream_node.bench.run import Timed
from stream_node.care.certificates import create_authority, create_certificate
from stream_node.node.config import ENVIRONMENT_PREFIX

FLOODED: Final = "flood: pushed beside a flood"
ALONE: Final = "stream-node, no flood"
UNLIMITED, UNLIMITED_ALONE = "stream-node, default limits", "stream-node, default limits, no flood"
WINDOWS: Final = (1, 10)
SETTLE_S: Final = 0.5
"""The time between the beginning of a turn, in which the flood goes on or stands still, and its first push."""
FLOODER_LIMITS: Final = {"requests_per_second": 500, "bytes_per_second": 500_000, "streams_per_hour": 1_000}
"""The limits of the flooding identity in OURS. docs/security.md names them."""
WAYS: Final[Mapping[str, tuple[str, Mapping[str, int]]]] = {
    OURS: (ALONE, FLOODER_LIMITS),
    UNLIMITED: (UNLIMITED_ALONE, {}),
}
"""For each system beside the flood, the name of that system without the flood, and the limits of the flooder."""


def samples(plan: Plan, place: Path) -> Iterator[Sample]:
    """The samples of this work."""
    keys = place / "flood"
    if not keys.exists():
        create_authority(keys)
        create_certificate(keys, "node", hosts=("127.0.0.1",))
        create_certificate(keys, "honest")
        create_certificate(keys, "flooder")
    for round_ in range(plan.rounds):
        for system, (alone, limits) in WAYS.items():
            if system == OURS and not plan.flood_limited:
                continue
            with _node(keys, limits) as node, _flooder(node, keys) as process:
                for window in WINDOWS:
                    # A push beside the flood with default limits takes a hundred times as long.
                    messages = plan.single if system == OURS else plan.single // 10
                    beside, without = _in_turn(node, keys, process, plan, messages, window)
                    for name, timed in ((alone, without), (system, beside)):
                        yield Sample(
                            work=FLOODED,
                            system=name,
                            round=round_,
                            window=window,
                            size_bytes=plan.size_bytes,
                            server_memory_bytes=node.memory_bytes(),
                            **sample_fields(timed),
                        )


def _in_turn(
    node: BenchNode, keys: Path, process: subprocess.Popen[bytes], plan: Plan, messages: int, window: int
) -> tuple[Timed, Timed]:
    """Pushes in short turns, with the flood and without it. Returns the times beside the flood, and those alone."""
    found: tuple[list[Timed], list[Timed]] = ([], [])
    for turn in range(2 * plan.flood_turns):
        process.send_signal(signal.SIGSTOP if turn % 2 else signal.SIGCONT)
        time.sleep(SETTLE_S)
        share = max(window, messages // plan.flood_turns)
        found[turn % 2].append(trio.run(_push, node.address, keys, share, plan.size_bytes, window))
    process.send_signal(signal.SIGCONT)
    beside, alone = (
        Timed(
            sum(each.messages for each in timed),
            sum(each.seconds for each in timed),
            [time_us for each in timed for time_us in each.times_us],
        )
        for timed in found
    )
    return beside, alone


@contextmanager
def _node(keys: Path, limits: Mapping[str, int]) -> Iterator[BenchNode]:
    rules = keys / "access.toml"
    table = "".join(f"{name} = {value}\n" for name, value in limits.items())
    rules.write_text(f'{rule_text(Rule("all", ("*",), may=ALL_RIGHTS))}\n[limits."certificate:flooder"]\n{table}')
    settings = {"tls_certificate": "node.pem", "tls_certificate_key": "node.key", "tls_client_ca": "ca.pem"}
    settings["access_rules"] = rules.name
    variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": str(keys / file) for name, file in settings.items()}
    with BenchNode(environment=variables) as node:
        yield node


@contextmanager
def _flooder(node: BenchNode, keys: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that floods the node."""
    files = [str(keys / file) for file in ("ca.pem", "flooder.pem", "flooder.key")]
    command = [sys.executable, "-m", "bench.works.flooder", node.address, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process
            assert process.poll() is None, "the flooding program has ended"
        finally:
            process.kill()


async def _push(address: str, keys: Path, messages: int, size_bytes: int, window: int) -> Timed:
    tls = Tls(*(str(keys / file) for file in ("ca.pem", "honest.pem", "honest.key")))
    async with connect(address, tls=tls) as client:
        stream = await client.create("honest")
        return await push_in_turn([stream], messages=messages, size_bytes=size_bytes, window=window)
