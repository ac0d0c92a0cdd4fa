"""Security: what encrypted connections cost. The same pushes over each way to a node, in turn.

A way is an entry of WAYS: it starts a node and says how a client connects to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from bench.bench_node import BenchNode
from bench.measure import push_in_turn, sample_fields
from bench.plan import Plan
from bench.report import OURS, Sample
from stream_client import Tls, connect
from stream_node.bench.loads import Timed
from stream_node.certificates import create_authority, create_certificate
from stream_node.config import ENVIRONMENT_PREFIX

PUSHED: Final = "security: pushed"
TLS: Final = "stream-node, mutual TLS"
WINDOWS: Final = (1, 100, 1_000)


class Way(NamedTuple):
    """A node, and the arguments of `stream_client.connect` that say how to connect to it."""

    node: BenchNode
    arguments: dict[str, Any]


@contextmanager
def _plain(place: Path) -> Iterator[Way]:
    with BenchNode() as node:
        yield Way(node, {})


@contextmanager
def _tls(place: Path) -> Iterator[Way]:
    keys = place / "keys"
    if not keys.exists():
        create_authority(keys)
        create_certificate(keys, "node", hosts=("127.0.0.1",))
        create_certificate(keys, "client")
    settings = {"tls_certificate": "node.pem", "tls_certificate_key": "node.key", "tls_client_ca": "ca.pem"}
    variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": str(keys / file) for name, file in settings.items()}
    with BenchNode(environment=variables) as node:
        yield Way(node, {"tls": Tls(*(str(keys / file) for file in ("ca.pem", "client.pem", "client.key")))})


WAYS: dict[str, Callable[[Path], AbstractContextManager[Way]]] = {OURS: _plain, TLS: _tls}


def samples(plan: Plan, place: Path) -> Iterator[Sample]:
    """The samples of this work: each way pushes with each window in each round."""
    for round_ in range(plan.rounds):
        for window in WINDOWS:
            for system, opened in WAYS.items():
                with opened(place) as way:
                    messages = plan.single if window == 1 else plan.messages
                    cpu_s = way.node.cpu_seconds()
                    timed = trio.run(_push, way, messages, plan.size_bytes, window)
                    yield Sample(
                        work=PUSHED,
                        system=system,
                        round=round_,
                        window=window,
                        size_bytes=plan.size_bytes,
                        server_cpu_s=way.node.cpu_seconds() - cpu_s,
                        server_memory_bytes=way.node.memory_bytes(),
                        **sample_fields(timed),
                    )


async def _push(way: Way, messages: int, size_bytes: int, window: int) -> Timed:
    async with connect(way.node.address, **way.arguments) as client:
        stream = await client.create("bench.0")
        return await push_in_turn([stream], messages=messages, size_bytes=size_bytes, window=window)
