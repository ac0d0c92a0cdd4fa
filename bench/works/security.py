"""Security: what encrypted connections and rules cost. The same pushes over each way to a node, in turn.

A way is an entry of WAYS: it starts a node and says how a client connects to it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from bench.measure import push_in_turn, sample_fields
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from ockam.identity.channel.identity_file import create_identity
from ockam.identity.channel.trust_list import save_trusted
from ockam.identity.rules.rights import Right
from ockam.identity.rules.rule_file import rule_text
from ockam.identity.rules.rules import Rule
from stream_client import SecureChannel, Stream, Tls, connect
from stream_node.bench.run import Timed
from stream_node.care.certificates import create_authority, create_certificate
from stream_node.node.config import ENVIRONMENT_PREFIX

PUSHED: Final = "security: pushed"
TURNED: Final = "security: pushed in short turns"
TLS: Final = "stream-node, mutual TLS"
CHANNEL: Final = "stream-node, secure channel"
RULED: Final = "stream-node, rules"
WINDOWS: Final = (1, 100, 1_000)
TURNS_OF_A_RUN: Final = 10
"""A short turn pushes a tenth of the messages that a whole measurement pushes."""
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
    for round_ in range(plan.rounds):
        with _plain(place) as plain, _ruled(place) as ruled:
            yield from trio.run(_push_in_short_turns, {OURS: plain, RULED: ruled}, plan, round_)


async def _push_in_short_turns(ways: dict[str, Way], plan: Plan, round_: int) -> list[Sample]:
    """Pushes to both nodes in short turns, and returns a sample of each node.

    Rules cost less than the speed of a shared machine changes from second to second. Such changes last longer than a
    turn, so they fall on both nodes.
    """
    seconds = dict.fromkeys(ways, 0.0)
    cpu_s = dict.fromkeys(ways, 0.0)
    turn_messages = plan.messages // TURNS_OF_A_RUN
    async with AsyncExitStack() as stack:
        streams: dict[str, Stream] = {}
        for system, way in ways.items():
            client = await stack.enter_async_context(connect(way.node.address, **way.arguments))
            streams[system] = await client.create("bench.0")
        # The first turn only warms both nodes up. Each node is the first one in every other turn.
        for turn in range(1 + plan.rule_turns):
            for system in tuple(ways)[:: -1 if turn % 2 else 1]:
                before_s = ways[system].node.cpu_seconds()
                timed = await push_in_turn(
                    [streams[system]], messages=turn_messages, size_bytes=plan.size_bytes, window=WINDOWS[-1]
                )
                if turn:
                    seconds[system] += timed.seconds
                    cpu_s[system] += ways[system].node.cpu_seconds() - before_s
    return [
        Sample(
            work=TURNED,
            system=system,
            round=round_,
            window=WINDOWS[-1],
            size_bytes=plan.size_bytes,
            messages=turn_messages * plan.rule_turns,
            seconds=seconds[system],
            server_cpu_s=cpu_s[system],
            server_memory_bytes=way.node.memory_bytes(),
        )
        for system, way in ways.items()
    ]


async def _push(way: Way, messages: int, size_bytes: int, window: int) -> Timed:
    async with connect(way.node.address, **way.arguments) as client:
        stream = await client.create("bench.0")
        return await push_in_turn([stream], messages=messages, size_bytes=size_bytes, window=window)
