"""Security: what encrypted connections and rules cost. The same pushes over each way to a node, in turn.

A way is an entry of WAYS: it starts a node and says how a client connects to it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from access.rights import Right
from access.rule_file import rule_text
from access.rules import Rule
from bench.bench_node import BenchNode
from bench.measure import push_in_turn, sample_fields
from bench.plan import Plan
from bench.report import OURS, Sample
from secure_channel.identity_file import create_identity
from secure_channel.trust_list import save_trusted
from stream_client import SecureChannel, Tls, connect
from stream_node.bench.loads import Timed
from stream_node.certificates import create_authority, create_certificate
from stream_node.config import ENVIRONMENT_PREFIX

PUSHED: Final = "security: pushed"
TLS: Final = "stream-node, mutual TLS"
CHANNEL: Final = "stream-node, secure channel"
RULED: Final = "stream-node, rules"
WINDOWS: Final = (1, 100, 1_000)
RULES: Final = (
    Rule("one writes", ("anonymous",), may=Right.WRITE | Right.CREATE, on=("bench",)),
    Rule("all read", ("*",), may=Right.READ | Right.INDEX, on=("bench", "other")),
    Rule("others", ("certificate:*", "token:a*"), may=Right.READ | Right.WRITE, on=("", "x")),
    Rule("nobody deletes", ("*",), may_not=Right.DELETE | Right.ADMIN, on=("",)),
)
"""The pusher has no more than the rights that it needs, so that the node cannot skip the check of its messages."""


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
    with BenchNode(environment=_variables({name: keys / file for name, file in settings.items()})) as node:
        yield Way(node, {"tls": Tls(*(str(keys / file) for file in ("ca.pem", "client.pem", "client.key")))})


@contextmanager
def _channel(place: Path) -> Iterator[Way]:
    """The node's identity and its list of trusted identities must stand in its data directory before it starts."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder:
        data_dir, now_s = Path(folder) / "data", int(time.time())
        client = create_identity(Path(folder) / "client.json", now_s)
        peer = create_identity(data_dir / "identity.json", now_s)
        save_trusted(data_dir / "trusted_identities", {client.identifier: "bench"})
        with BenchNode(data_dir) as node:
            yield Way(node, {"channel": SecureChannel(identity=client, peer=str(peer))})


@contextmanager
def _ruled(place: Path) -> Iterator[Way]:
    file = place / "access.toml"
    file.write_text("\n".join(map(rule_text, RULES)))
    with BenchNode(environment=_variables({"access_rules": file})) as node:
        yield Way(node, {})


def _variables(settings: dict[str, Path]) -> dict[str, str]:
    """Returns the environment variables that give a node these settings."""
    return {f"{ENVIRONMENT_PREFIX}{name.upper()}": str(path) for name, path in settings.items()}


WAYS: dict[str, Callable[[Path], AbstractContextManager[Way]]] = {
    OURS: _plain,
    TLS: _tls,
    CHANNEL: _channel,
    RULED: _ruled,
}


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
