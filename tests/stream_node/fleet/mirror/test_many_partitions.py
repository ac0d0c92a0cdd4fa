"""Goal: a change of the role of one partition costs the node the same, however many mirrors it has. So a node with
thousands of them starts, and promotes them, without a pause of everything else.

Method: the calls of functions are counted while partitions get roles; twice as many partitions need twice as many.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import trio

from ockam.actors.node import Node
from stream_node.fleet.mirror.tasks import MirrorTasks
from stream_service.limits import StreamLimits
from stream_service.mirror_rows import MirrorRow
from stream_service.role_machine import StreamRole
from stream_service.workers.clock import Clock
from stream_service.workers.directory import StreamDirectory
from stream_storage.sqlite.database import Database
from tests.support.storage.inline_runner import InlineRunner

PARTITIONS = 50


def calls_of_roles(tasks: MirrorTasks, partitions: int, role: StreamRole | None) -> int:
    """The number of calls while all partitions of a stream get a role."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for partition in range(partitions):
            tasks.note_role(("s", partition), None if role is None else MirrorRow(1, role, "127.0.0.1:1", "s"))
    finally:
        sys.setprofile(None)
    return calls


async def test_a_role_of_one_partition_costs_the_same_among_many(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        runner = InlineRunner(database, nursery, batches=node)
        clock = Clock(lambda: 0, trio.current_time)
        directory = StreamDirectory(node, runner, limits=StreamLimits(), clock=clock, new_id=lambda: "id")
        counts = []
        for factor in (1, 2):
            tasks = MirrorTasks(directory)
            counts.append(
                [
                    calls_of_roles(tasks, PARTITIONS * factor, role)
                    for role in (StreamRole.FOLLOWING, StreamRole.FENCING, None)
                ]
            )
            assert not tasks.has_mirrors
            assert not tasks.copiers
        # Four times as many calls would be those of a walk over all partitions at each change.
        assert all(0 < double < 2.5 * once for once, double in zip(*counts, strict=True)), counts
        await runner.aclose()
        nursery.cancel_scope.cancel()
    database.close()
