"""Followers of one stream on plain sockets, beside those of NATS (`bench/peer_clients/followers.py`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.errors import BenchFailed
from bench.measure import sample_fields
from bench.own import ROOT, Own
from bench.peers import Peer, Work
from bench.plan import Plan
from bench.report import OUR_DURABILITY, Sample
from stream_node.bench.run import Timed

WORK = "follow"
PULLED = ", whole pages"
"""The end of the name of a system whose followers ask for each page, as older clients do."""


def samples(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Deliveries to all followers, at the rates of the plan. Each is timed from when its push was due."""
    for followers, rate in plan.followers:
        load: dict[str, Any] = {
            "stream": "bench",
            "messages": 1 << 60,
            "size_bytes": plan.size_bytes,
            "rate": rate,
            "seconds": plan.follow_seconds,
        }
        for round_ in range(plan.rounds):
            for own in owns:
                for kind, name in (("parts", own.system), ("pull", own.system + PULLED)):
                    with own.node() as node:
                        port = int(node.address.rpartition(":")[2])
                        fields = {"system": name, "durability": OUR_DURABILITY, "round": round_}
                        yield _measured(node, kind, port, followers, load, fields)
            for peer in peers:
                if peer.does(Work.FOLLOW):
                    promise = {"durability": peer.kind.durability, "synced": peer.kind.synced}
                    fields = {"system": peer.name, "round": round_, **promise}
                    there = {**load, "stream": peer.new_stream()}
                    yield _measured(peer.server, peer.kind.work, peer.server.port, followers, there, fields)


def _measured(
    server: Any, kind: str, port: int, followers: int, load: dict[str, Any], fields: dict[str, Any]
) -> Sample:
    """Measures one server, a `BenchNode` or a `PeerServer`. Its processor time counts once all followers wait."""
    command = [sys.executable, "-m", "bench.peer_clients.followers", kind, str(port), str(followers)]
    command.append(msgspec.json.encode(load).decode())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdout.readline()
        cpu_s = server.cpu_seconds()
        client.stdin.write(b"go\n")
        client.stdin.close()
        said = client.stdout.readline()
        cpu_s = server.cpu_seconds() - cpu_s
    if client.returncode != 0:
        raise BenchFailed(f"{fields['system']}, {WORK}: the followers have failed")
    return Sample(
        work=WORK,
        clients=followers,
        size_bytes=load["size_bytes"],
        server_cpu_s=cpu_s,
        server_memory_bytes=server.memory_bytes(),
        **fields,
        **sample_fields(msgspec.json.decode(said, type=Timed)),
    )
