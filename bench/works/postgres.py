"""A whole node whose streams are in PostgreSQL, beside one with SQLite: the same pushes and pulls, in turn.

PostgreSQL runs on the same cores and the same disk as the node: alone, and with a synchronous standby that must have
synced every commit. The servers run during the whole bench; each measurement of pushes has a fresh database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.measure import PAGE_MESSAGES, STREAM
from bench.own import Own
from bench.plan import Plan
from bench.report import OUR_DURABILITY, OURS, Sample
from bench.servers.bench_node import BenchNode
from bench.servers.postgres_server import PostgresServer, find_programs
from stream_node.node.config import ENVIRONMENT_PREFIX

PUSHED: Final = "postgres: pushed"
PULLED: Final = "postgres: pulled"
ALONE: Final = "stream-node on PostgreSQL"
WITH_STANDBY: Final = "stream-node on PostgreSQL with a standby"
SETTINGS: Final = {"wal_compression": "on", "max_wal_size": "4GB"}
"""The settings that docs/scale.md recommends for every server."""


def why_impossible() -> str | None:
    """The reason why this bench cannot run here; None if it can."""
    if find_spec("psycopg") is None:
        return "the extra `postgres` is not installed"
    return None if find_programs() is not None else "PostgreSQL is not installed"


class Kind(msgspec.Struct, frozen=True):
    """One of the nodes that are compared.

    system, durability: as in a `Sample`. servers: the primary and its standby; empty for a node with SQLite.
    """

    system: str
    durability: str
    servers: tuple[PostgresServer, ...] = ()

    @contextmanager
    def node(self, own: Own) -> Iterator[tuple[Own, BenchNode]]:
        """A node with an empty database."""
        environment = {**own.environment}
        name = f"bench_{next(_numbers)}"
        if self.servers:
            self.servers[0].ask(f"CREATE DATABASE {name}")
            environment[f"{ENVIRONMENT_PREFIX}DATABASE"] = self.servers[0].url_of(name)
        named = Own(self.system, environment)
        with named.node() as node:
            yield named, node
        if self.servers:
            # This writes a checkpoint, so that the next measurement does not pay for what this one has left.
            self.servers[0].ask(f"DROP DATABASE {name} WITH (FORCE)")

    def measure(self, own: Own, node: BenchNode, action: str, *, work: str, round_: int, **load: Any) -> Sample:
        """Has a client do this work. The processor time of the servers counts as that of the node."""
        cpu_s = self._servers_cpu_s()
        sample = own.measure(node, action, work=work, round_=round_, stream=STREAM, **load)
        spent_s = (sample.server_cpu_s or 0.0) + self._servers_cpu_s() - cpu_s
        return msgspec.structs.replace(sample, durability=self.durability, server_cpu_s=spent_s)

    def _servers_cpu_s(self) -> float:
        return sum(server.cpu_seconds() for server in self.servers)


def samples(plan: Plan, own: Own, absent: list[str]) -> Iterator[Sample]:
    """The samples of this work. absent: gets a line if PostgreSQL is not here."""
    reason = why_impossible()
    if reason is not None:
        absent.append(f"nodes on PostgreSQL: {reason}")
        return
    with running_kinds() as kinds:
        for round_ in range(plan.rounds):
            for window in plan.windows:
                messages = plan.single if window == 1 else plan.messages
                load = {"messages": messages, "seconds": plan.seconds, "size_bytes": plan.size_bytes, "window": window}
                for kind in _in_turn(kinds, round_):
                    with kind.node(own) as (named, node):
                        yield kind.measure(named, node, "push", work=PUSHED, round_=round_, **load)
        yield from _pulls(plan, own, kinds)


@contextmanager
def running_kinds() -> Iterator[list[Kind]]:
    """The kinds of nodes, with their servers running. The data of the servers lies under the working directory."""
    with ExitStack() as stack:
        alone = stack.enter_context(PostgresServer(SETTINGS, under=Path()))
        primary = stack.enter_context(PostgresServer(SETTINGS, under=Path()))
        standby = stack.enter_context(PostgresServer(SETTINGS, primary, under=Path()))
        # On the primary alone: the standby has nobody to wait for.
        primary.ask("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
        primary.ask("SELECT pg_reload_conf()")
        yield [
            Kind(OURS, OUR_DURABILITY),
            Kind(ALONE, "fsync before every confirm (synchronous_commit=on, fsync=on: the defaults)", (alone,)),
            Kind(WITH_STANDBY, "fsync on two servers before every confirm (ANY 1 (*))", (primary, standby)),
        ]


def _pulls(plan: Plan, own: Own, kinds: Sequence[Kind]) -> Iterator[Sample]:
    """Stored messages read from the first to the last, a thousand a page."""
    load: dict[str, Any] = {"messages": plan.messages, "size_bytes": plan.size_bytes, "window": PAGE_MESSAGES}
    with ExitStack() as stack:
        filled = {}
        for kind in kinds:
            named, node = filled[kind.system] = stack.enter_context(kind.node(own))
            kind.measure(named, node, "fill", work="fill", round_=0, **load)
        for round_ in range(plan.rounds):
            for kind in _in_turn(kinds, round_):
                named, node = filled[kind.system]
                yield kind.measure(named, node, "pull", work=PULLED, round_=round_, **load)


def _in_turn(kinds: Sequence[Kind], round_: int) -> list[Kind]:
    """The kinds in another order in each round, so that none always runs after the same other one."""
    first = round_ % len(kinds)
    return [*kinds[first:], *kinds[:first]]


_numbers = count()
