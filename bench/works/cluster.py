"""A message that goes through a node of a cluster which owns nothing, beside one that goes straight to the owner.

Two nodes and their PostgreSQL server share the cores and the disk. One node is drained, so the other one owns all
streams. Both are asked in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.errors import BenchFailed
from bench.measure import PAGE_MESSAGES, STREAM
from bench.own import Own
from bench.plan import Plan
from bench.report import Sample
from bench.servers.bench_node import BenchNode
from bench.servers.postgres_server import PostgresServer
from bench.works.postgres import SETTINGS, why_impossible
from stream_client import blocking
from stream_node.fleet.cluster.protocol import CLUSTER, DRAIN, STATUS, ClusterStatusRequest, DrainRequest
from stream_node.node.config import ENVIRONMENT_PREFIX

PUSHED: Final = "cluster: pushed"
PULLED: Final = "cluster: pulled"
DIRECT: Final = "stream-node in a cluster, the owner"
FORWARDED: Final = "stream-node in a cluster, another node"
DURABILITY: Final = "fsync before every confirm (synchronous_commit=on, fsync=on: the defaults)"
PATIENCE_S = 60.0
ASKED, OWNER = "asked", "owner"


def samples(plan: Plan, own: Own, absent: list[str]) -> Iterator[Sample]:
    """The samples of this work. absent: gets a line if PostgreSQL is not here."""
    reason = why_impossible()
    if reason is not None:
        absent.append(f"nodes in a cluster: {reason}")
        return
    for window in plan.windows:
        messages = plan.single if window == 1 else plan.messages
        load = {"messages": messages, "seconds": plan.seconds, "size_bytes": plan.size_bytes, "window": window}
        with running_pair(own) as pair:
            for round_ in range(plan.rounds):
                for system in _in_turn(round_):
                    yield _measure(own, pair, system, "push", work=PUSHED, round_=round_, **load)
    load = {"messages": plan.messages, "size_bytes": plan.size_bytes, "window": PAGE_MESSAGES}
    with running_pair(own) as pair:
        _measure(own, pair, DIRECT, "fill", work="fill", round_=0, **load)
        for round_ in range(plan.rounds):
            for system in _in_turn(round_):
                yield _measure(own, pair, system, "pull", work=PULLED, round_=round_, **load)


@contextmanager
def running_pair(own: Own) -> Iterator[dict[str, BenchNode]]:
    """The two nodes by their systems, on an empty database. The node at FORWARDED owns nothing."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(SETTINGS, under=Path()))
        nodes = {}
        for name in (ASKED, OWNER):
            database = {f"{ENVIRONMENT_PREFIX}DATABASE": server.url, f"{ENVIRONMENT_PREFIX}CLUSTER": name}
            nodes[name] = stack.enter_context(BenchNode(environment={**own.environment, **database}))
        with blocking.connect(nodes[OWNER].address) as client:
            client.session.ask((CLUSTER,), DRAIN, DrainRequest(0, ASKED, True))
        for node in nodes.values():
            _wait_owned(node)
        yield {FORWARDED: nodes[ASKED], DIRECT: nodes[OWNER]}


def _wait_owned(node: BenchNode) -> None:
    """Returns when this node knows that OWNER owns all streams."""
    deadline_s = time.monotonic() + PATIENCE_S
    with blocking.connect(node.address) as client:
        while any(
            shard.owner != OWNER for shard in client.session.ask((CLUSTER,), STATUS, ClusterStatusRequest(0)).shards
        ):
            if time.monotonic() > deadline_s:
                raise BenchFailed("cluster: the drained node still owns streams")
            time.sleep(0.05)


def _measure(
    own: Own, pair: dict[str, BenchNode], system: str, action: str, *, work: str, round_: int, **load: Any
) -> Sample:
    others_s = _others_cpu_s(pair, system)
    sample = own.measure(pair[system], action, work=work, round_=round_, stream=STREAM, **load)
    spent_s = (sample.server_cpu_s or 0.0) + _others_cpu_s(pair, system) - others_s
    return msgspec.structs.replace(sample, system=system, durability=DURABILITY, server_cpu_s=spent_s)


def _others_cpu_s(pair: dict[str, BenchNode], system: str) -> float:
    return sum(node.cpu_seconds() for name, node in pair.items() if name != system)


def _in_turn(round_: int) -> list[str]:
    return [DIRECT, FORWARDED] if round_ % 2 else [FORWARDED, DIRECT]
