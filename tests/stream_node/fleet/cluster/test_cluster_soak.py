"""Goal: through hundreds of deaths and freezes of owners, every shard is served again within seconds, no index is given
twice, confirmed messages and blocks are there once, and a node that was replaced writes nothing.

Method: three real nodes on a real PostgreSQL server, users at all of them, psql at the end. `-s` shows the figures.
"""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_client import ClientError, blocking
from stream_node.fleet.cluster.view import shard_of
from stream_node.node.process import NodeProcess
from stream_service.names import stream_address
from tests.conftest import SOAK_S_MAX
from tests.stream_node.fleet.cluster.block_users import BlockReader, BlockSource, check_chain, check_chain_rows
from tests.stream_node.fleet.cluster.cluster_auditor import ClusterAuditor
from tests.stream_node.fleet.cluster.nodes import Nodes, Publisher, User, log_lines, rows, wait_for
from tests.stream_node.fleet.cluster.soak_users import GroupMember, ManyNodes, Numbered, Waiting
from tests.support.postgres import PostgresServer

ROUNDS = 200
PUBLISHERS = 4
PROBES = 40
"""Streams that are pushed to in each round, so that all owners have some of them."""
BLOCK_PAUSE_S = 0.2
SERVED_S_MAX = 60.0
"""A bound of the test, and no promise: machines that run tests are shared."""


class Soak:
    """The nodes and users of this test. served_s: by the kind of a failure, how long the probes had to wait."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        server.ask("CREATE DATABASE soak")
        self.nodes = Nodes(server, "soak", folder, 3, lease_ttl_s=4)
        self.rng = random.Random(1)
        self.auditor = ClusterAuditor()
        self.served_s: dict[str, list[float]] = {}
        self.refused = 0
        self.probes = [f"probe{number}" for number in range(PROBES)]
        self.pushed: Counter[str] = Counter()
        self.publishers = [
            Publisher(self.some_address, f"s{number}", patient=False, pause_s=0.02) for number in range(PUBLISHERS)
        ]
        self.numbered = [Numbered(self.some_address, f"numbered{number}") for number in range(2)]
        self.waiting = [Waiting(self.some_address, f"s{number}") for number in range(2)]
        members = [GroupMember(self.some_address, "shared", f"m{number}", self.auditor) for number in range(2)]
        self.many: list[ManyNodes] = [*self.numbered, *self.waiting, *members]
        self.source: BlockSource | None = None
        self.block_readers: list[BlockReader] = []

    def begin(self) -> list[User]:
        """Makes the streams that are pushed to in each round, and starts all users."""
        with blocking.connect(self.some_address()) as client:
            for probe in self.probes:
                client.create(probe)
        addresses = [node.address for node in self.nodes.all]
        self.source = BlockSource(addresses, pause_s=BLOCK_PAUSE_S)
        self.block_readers = [BlockReader(addresses[first:] + addresses[:first]) for first in range(2)]
        users: list[User] = [*self.publishers, *self.many, self.source, *self.block_readers]
        for user in users:
            user.start()
        return users

    def some_address(self) -> str:
        return random.choice(self.nodes.all).address

    def owned_probes(self, name: str) -> list[str]:
        ask = f"SELECT shard FROM cluster_shards WHERE convert_from(owner, 'UTF8') = '{name}'"
        shards = set(map(int, self.nodes.ask(ask).split()))
        return [probe for probe in self.probes if shard_of(stream_address(probe, 0)) in shards]

    def round(self) -> None:
        """Kills or freezes one node, and starts it again."""
        number = self.rng.randrange(3)
        node, name = self.nodes.all[number], f"n{number}"
        others = [each for each in self.nodes.all if each is not node]
        probes = self.owned_probes(name)
        assert probes, f"{name} owns no stream"
        kind = self.rng.choice(("killed", "killed and started at once", "frozen"))
        began_s = time.monotonic()
        if kind == "frozen":
            node.signal(signal.SIGSTOP)
        else:
            node.kill()
            if kind != "killed":
                node.start()
        self._push_to(probes, self.rng.choice(others), began_s)
        served_s = time.monotonic() - began_s
        self.served_s.setdefault(kind, []).append(served_s)
        print(f"{name} {kind}: its {len(probes)} streams were served after {served_s:.1f} s")
        if kind == "frozen":
            node.signal(signal.SIGCONT)
            assert node.wait() != 0
            assert "another node has taken over" in str(log_lines(node)[-20:])
            self.refused += 1
        if kind != "killed and started at once":
            node.start()
        self.nodes.wait_shared(3)

    def _push_to(self, probes: list[str], node: NodeProcess, began_s: float) -> None:
        """Pushes to each of these streams at this node until the push is confirmed."""
        left = list(probes)
        while left:
            ends = [log_lines(each)[-2:] for each in self.nodes.all]
            assert time.monotonic() - began_s < SERVED_S_MAX, f"{left} are not served; the logs end with {ends}"
            try:
                with blocking.connect(node.address, reconnect=None, answer_timeout_s=SERVED_S_MAX) as client:
                    while left:
                        client.create(left[0]).push(b"%d" % self.pushed[left[0]])
                        self.pushed[left.pop(0)] += 1
            except (ClientError, OSError):
                # The push that was lost may be stored, so its number is not used again.
                self.pushed[left[0]] += 1

    def check(self) -> None:
        for publisher in self.publishers:
            publisher.end()
        assert self.source is not None, "the soak has begun"
        for user in (*self.many, *self.block_readers, self.source):
            user.end()
        ask = self.nodes.ask
        check_chain(self.source, self.block_readers, [node.address for node in self.nodes.all])
        check_chain_rows(ask, self.source.acknowledged)
        print(f"blocks: {self.source.acknowledged + 1}, read {[len(each.roots) for each in self.block_readers]}")
        for number, publisher in enumerate(self.publishers):
            stored = rows(ask, f"s{number}")
            late = publisher.check_once(stored)
            print(f"s{number}: {len(stored)} stored, {len(publisher.doubtful)} doubtful, late: {late}")
            # A connection that was lost says nothing about the order with the next one.
            assert set(late) <= publisher.doubtful, "a confirmed message is stored behind a later one"
            for waiting in self.waiting[number : number + 1]:
                waiting.check(stored)
        for number, numbered in enumerate(self.numbered):
            numbered.check(rows(ask, f"numbered{number}"))
        for probe in self.probes:
            numbers = [int(data) for data in rows(ask, probe)]
            assert len(numbers) == len(set(numbers)), f"{probe} has a number twice"
        assert self.auditor.old_fences

    def tell(self) -> None:
        for kind, times_s in sorted(self.served_s.items()):
            half_s = statistics.median(times_s)
            print(f"{kind}, {len(times_s)} times: served after {half_s:.1f} s (half), {max(times_s):.1f} s (at most)")
        confirmed = sum(len(each.confirmed) for each in self.publishers), sum(each.confirmed for each in self.numbered)
        read = sum(len(each.read) for each in self.waiting)
        print(f"replaced nodes that ended: {self.refused}; confirmed: {confirmed}; read: {read}")
        auditor = self.auditor
        print(f"leases: {auditor.leased}; saves: {auditor.saves}; old fences refused: {auditor.old_fences}")


@pytest.mark.soak
def test_many_deaths_of_owners(tmp_path: Path) -> None:
    with PostgresServer() as server:
        soak = Soak(server, tmp_path)
        with soak.nodes:
            soak.nodes.wait_shared(3)
            users = soak.begin()
            end_s = time.monotonic() + SOAK_S_MAX * 0.8
            for _ in range(ROUNDS):
                soak.round()
                assert all(user.is_alive() for user in users), [user.failure for user in users]
                if time.monotonic() > end_s:
                    break
            wait_for(lambda: all(each.confirmed for each in soak.numbered))
            soak.tell()
            soak.check()
