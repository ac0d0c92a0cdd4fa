"""Goal: the partitions of a member that is killed go on, each message comes to somebody, and the living members never
stop meanwhile.

Method: three members in processes of their own, which reach the streams through a forwarding node; one of them gets
SIGKILL. Each writes down what it processes. Independent: the saved positions and their holders, as the node lists them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_client import blocking
from stream_client.blocking.admin import list_positions
from stream_node.process import NodeProcess
from tests.support.command import ROOT
from tests.support.served import PATIENCE_S

PARTITIONS, MESSAGES = 6, 900
MEMBER = """
import sys, trio
from ockam.address import tcp
from stream_client import LeaseLost, LeaseMember, connect

async def main(door, store, name):
    async with connect(door, via=(tcp(store),)) as client:
        stream = await client.get_stream("shared")
        member = LeaseMember(client, "c", member_id=name)
        async with stream.shared_consumer(member, page_messages=20, save_messages=50) as consumer:
            while True:
                try:
                    async for partition, message in consumer:
                        print(partition, message.index, consumer.fences[partition], flush=True)
                        await trio.sleep(0.002)
                except LeaseLost:
                    # On a machine that does much else, a member can be late for its own leases.
                    continue

trio.run(main, *sys.argv[1:])
"""


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
        members = {name: _start(door.address, store.address, name, files[name]) for name in files}
        try:
            # Each has its two partitions, and processes them.
            _wait_for(lambda: all(len(_held(file)) == 2 for file in files.values()))
            lost = _held(files["a"])
            own = {name: _held(files[name]) for name in "bc"}
            members["a"].kill()
            members["a"].wait()
            before = {name: len(_processed(files[name])) for name in own}
            # The others process their own partitions before anybody has taken over those of the killed one.
            for name in own:
                _wait_for(lambda name=name: len(_processed(files[name])) > before[name])  # type: ignore[misc]
            fences = {partition: fence for partition, _, fence in _processed(files["a"]) if partition in lost}
            _wait_for(lambda: all(_has_gone_on(files, *each) for each in fences.items()))
            _wait_for(lambda: len(_seen(files)) == PARTITIONS * MESSAGES)
        finally:
            for member in members.values():
                member.kill()
                member.wait()
        holders = {each.partition: each.holder for each in list_positions(client, stream_name="shared", client_id="c")}
    for name, partitions in own.items():
        rows = _processed(files[name])[before[name] :]
        taken_over = next((at for at, row in enumerate(rows) if row[0] in lost), len(rows))
        assert any(partition in partitions for partition, *_ in rows[:taken_over]), "it stopped until it got more"
    assert {holders[partition] for partition in lost} <= {"b", "c"}
    # One fence of a partition has one holder.
    owners: dict[tuple[int, int], set[str]] = defaultdict(set)
    for name, file in files.items():
        for partition, _, fence in _processed(file):
            owners[partition, fence].add(name)
    assert all(len(names) == 1 for names in owners.values())


def _start(door: str, store: str, name: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        command = [sys.executable, "-c", MEMBER, door, store, name]
        return subprocess.Popen(command, stdout=file, cwd=ROOT, stdin=subprocess.DEVNULL)


def _processed(file: Path) -> list[tuple[int, int, int]]:
    """Partition, index and fence of each message that a member has processed; whole lines only."""
    lines = file.read_text().rpartition("\n")[0].splitlines()
    return [(int(partition), int(index), int(fence)) for partition, index, fence in map(str.split, lines)]


def _held(file: Path) -> set[int]:
    """The partitions that a member has processed lately."""
    return {partition for partition, *_ in _processed(file)[-60:]}


def _has_gone_on(files: dict[str, Path], partition: int, fence: int) -> bool:
    """Whether a living member has processed the partition under a later fence."""
    rows = [row for name in "bc" for row in _processed(files[name])]
    return any(row[0] == partition and row[2] > fence for row in rows)


def _seen(files: dict[str, Path]) -> set[tuple[int, int]]:
    return {(partition, index) for file in files.values() for partition, index, _ in _processed(file)}


def _wait_for(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 2 * PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
