"""Goal: the partitions of a member that is killed go on, each message comes to somebody, and the living members never
stop meanwhile.

Method: three members in processes of their own, which reach the streams through a forwarding node; one of them gets
SIGKILL. Each writes down what it processes. Independent: the saved positions and their holders, as the node lists them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from stream_client import blocking
from stream_client.blocking import list_positions
from stream_node.node.process import NodeProcess
from tests.client.members import processed, start_member, wait_for

PARTITIONS, MESSAGES = 6, 900


@pytest.mark.slow
def test_the_partitions_of_a_killed_member_go_on_and_the_others_never_stop(tmp_path: Path) -> None:
    settings = {"STREAM_NODE_LEASE_TTL_S": "2"}
    with (
        NodeProcess(tmp_path / "store", environment=settings) as store,
        NodeProcess(tmp_path / "door", arguments=("--allow-forward", store.address)) as door,
        blocking.connect(store.address) as client,
    ):
        stream = client.create_partitioned("shared", PARTITIONS)
        for part in stream.partitions:
            with part.publisher() as publisher:
                publisher.push_many([b"x"] * MESSAGES)
        files = {name: tmp_path / name for name in "abc"}
        members = {name: start_member(door.address, name, files[name], store.address) for name in files}
        try:
            # Each has its two partitions, and processes them.
            wait_for(lambda: all(len(_held(file)) == 2 for file in files.values()))
            lost = _held(files["a"])
            own = {name: _held(files[name]) for name in "bc"}
            members["a"].kill()
            members["a"].wait()
            before = {name: len(processed(files[name])) for name in own}
            # The others process their own partitions before anybody has taken over those of the killed one.
            for name in own:
                wait_for(lambda name=name: len(processed(files[name])) > before[name])  # type: ignore[misc]
            fences = {partition: fence for partition, _, fence in processed(files["a"]) if partition in lost}
            wait_for(lambda: all(_has_gone_on(files, *each) for each in fences.items()))
            wait_for(lambda: len(_seen(files)) == PARTITIONS * MESSAGES)
        finally:
            for member in members.values():
                member.kill()
                member.wait()
        holders = {each.partition: each.holder for each in list_positions(client, stream_name="shared", client_id="c")}
    for name, partitions in own.items():
        rows = processed(files[name])[before[name] :]
        taken_over = next((at for at, row in enumerate(rows) if row[0] in lost), len(rows))
        assert any(partition in partitions for partition, *_ in rows[:taken_over]), "it stopped until it got more"
    assert {holders[partition] for partition in lost} <= {"b", "c"}
    # One fence of a partition has one holder.
    owners: dict[tuple[int, int], set[str]] = defaultdict(set)
    for name, file in files.items():
        for partition, _, fence in processed(file):
            owners[partition, fence].add(name)
    assert all(len(names) == 1 for names in owners.values())


def _held(file: Path) -> set[int]:
    """The partitions that a member has processed lately."""
    return {partition for partition, *_ in processed(file)[-60:]}


def _has_gone_on(files: dict[str, Path], partition: int, fence: int) -> bool:
    """Whether a living member has processed the partition under a later fence."""
    rows = [row for name in "bc" for row in processed(files[name])]
    return any(row[0] == partition and row[2] > fence for row in rows)


def _seen(files: dict[str, Path]) -> set[tuple[int, int]]:
    return {(partition, index) for file in files.values() for partition, index, _ in processed(file)}
