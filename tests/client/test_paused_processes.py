"""Goal: two processes never process a partition under one fence, also when one is stopped for longer than its leases
last, and what it says late changes nothing.

Method: members in processes of their own, one of them paused by SIGSTOP in the middle, on a node with short leases.
Each writes down what it processes, with the fence; a message that comes again does so under another fence.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path

import pytest

from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.client.members import lines, processed, start_member, wait_for

PARTITIONS = 4
MESSAGES = 3_000


@pytest.mark.slow
def test_a_member_that_was_stopped_does_nothing_under_a_fence_that_is_over(tmp_path: Path) -> None:
    settings = {"STREAM_NODE_LEASE_TTL_S": "0.5"}
    with NodeProcess(tmp_path / "data", environment=settings) as node, blocking.connect(node.address) as client:
        stream = client.create_partitioned("shared", PARTITIONS)
        for part in stream.partitions:
            with part.publisher() as publisher:
                publisher.push_many([b"x"] * MESSAGES)
        files = {name: tmp_path / name for name in "ab"}
        members = {name: start_member(node.address, name, files[name]) for name in files}
        try:
            wait_for(lambda: all(len(lines(file)) > 50 for file in files.values()))
            members["a"].send_signal(signal.SIGSTOP)
            newest = {partition: fence for partition, _, fence in processed(files["b"])}
            last = {partition: fence for partition, _, fence in processed(files["a"])}
            held = {partition: fence for partition, fence in last.items() if fence > newest.get(partition, 0)}
            wait_for(lambda: any(fence > held.get(at, fence) for at, _, fence in processed(files["b"])))
            members["a"].send_signal(signal.SIGCONT)
            wait_for(lambda: "lost" in lines(files["a"]))
            wait_for(lambda: lines(files["a"])[-1] != "lost")
        finally:
            for member in members.values():
                member.kill()
                member.wait()
    owners: dict[tuple[int, int], set[str]] = defaultdict(set)
    for name, file in files.items():
        for partition, _, fence in processed(file):
            owners[partition, fence].add(name)
    assert [place for place, names in owners.items() if len(names) > 1] == []
