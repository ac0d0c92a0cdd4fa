"""Goal: a clock that jumps deletes nothing, is told once, and leaves no wrong year behind it.

Method: the running command, whose wall clock the test sets; and the search by time against looking at every message.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from spark_export.source.catalog import FileCatalog
from stream_client import FromTime, Retention, Stream, connect
from stream_node.node.process import NodeProcess
from stream_service.publisher_rows import NotedAppend
from stream_service.stored import first_index_at
from stream_storage.contract import Append, ignore_done
from tests.stream_storage.test_migration import unpacked
from tests.support.data_dir import open_session
from tests.support.jumping_clock import JumpingClock, jumping_clock
from tests.support.served import PATIENCE_S

__all__ = ["jumping_clock"]

YEARS_10 = 10 * 365 * 86_400
SAME_S = 3_000
"""Times of one test differ by less, also on a machine that is busy with other work."""
OFTEN = {"STREAM_NODE_RETENTION_INTERVAL_S": "0.05"}


def node_with(clock: JumpingClock, tmp_path: Path, trust_s: str = "86400") -> NodeProcess:
    environment = {**clock.environment, **OFTEN, "STREAM_NODE_CLOCK_TRUST_S": trust_s}
    return NodeProcess(tmp_path / "data", environment=environment)


def events(node: NodeProcess, event: str) -> list[Any]:
    lines = [json.loads(line) for line in node.log_file.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.02)


async def times(stream: Stream) -> list[int]:
    """Of all stored messages, in seconds."""
    return [message.time_us // 1_000_000 for message in (await stream.pull_page(0)).messages]


async def test_nothing_is_deleted_by_a_clock_that_jumps_and_one_line_says_so(
    jumping_clock: JumpingClock, tmp_path: Path
) -> None:
    """Also over a restart of the node; other limits than age hold on."""
    with node_with(jumping_clock, tmp_path) as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            await stream.set_retention(Retention(age_s=3_600, messages=3))
            for _ in range(3):
                await stream.push(b"x")
            jumping_clock.set(YEARS_10)
            await until(lambda: events(node, "clock_jumped"))
            await stream.push(b"y")
            with trio.fail_after(PATIENCE_S):
                while (await stream.info()).first_index != 1:
                    await trio.sleep(0.02)
            stored = await times(stream)
            assert len(stored) == 3
            assert max(stored) - min(stored) < SAME_S, "the message of the jump has the time as it was before"
        assert node.stop() == 0
        assert len(events(node, "clock_jumped")) == 1
        node.start()
        async with connect(node.address) as client:
            stream = await client.create("s")
            await until(lambda: len(events(node, "clock_jumped")) == 2)
            await stream.push(b"z")
            assert (await stream.info()).count >= 3
            jumping_clock.set(0)
            await until(lambda: events(node, "clock_back"))
            await stream.push(b"right again")
            stored = await times(stream)
            assert max(stored) - min(stored) < SAME_S
        assert node.stop() == 0


@pytest.mark.slow
async def test_a_clock_that_is_believed_and_was_wrong_keeps_no_later_message_in_its_year(
    jumping_clock: JumpingClock, tmp_path: Path
) -> None:
    with node_with(jumping_clock, tmp_path, trust_s="0") as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            await stream.push(b"right")
            jumping_clock.set(YEARS_10)
            await until(lambda: events(node, "clock_accepted"))
            await stream.push(b"ten years ahead")
            jumping_clock.set(0)
            await until(lambda: len(events(node, "clock_accepted")) == 2)
            for _ in range(2):
                await stream.push(b"right again")
            first, wrong, *later = await times(stream)
            assert wrong - first > YEARS_10 - SAME_S
            assert all(abs(each - first) < SAME_S for each in later), "one push in 2036 made all later ones 2036"
            page = await stream.pull_page(FromTime(later[0] * 1_000_000))
            assert page.messages[0].index <= 2, "no message is passed over"
            assert not (await stream.pull_page(FromTime((later[-1] + 100) * 1_000_000))).messages
        assert node.stop() == 0
        node.start()
        async with connect(node.address) as client:
            stream = await client.create("s")
            await stream.push(b"after a restart")
            assert abs((await times(stream))[-1] - first) < SAME_S
        assert node.stop() == 0


@pytest.mark.slow
@given(
    times_us=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    deleted=st.integers(0, 12),
)
def test_the_search_by_time_finds_what_looking_at_every_message_finds(times_us: list[int], deleted: int) -> None:
    """What it is to find: the first message from which on none is before the time asked for. The searches are the
    node's, and that of Spark's source in the node's file."""
    with tempfile.TemporaryDirectory() as folder, open_session(Path(folder)) as session:
        session.begin()
        record = session.log.ensure_stream("s", 0, 0)
        before_us = 0
        for index, time_us in enumerate(times_us):
            place = record.stream_id, index, time_us, [b"x"]
            if time_us < before_us:
                NotedAppend(*place, falls=True, publishers={}, on_done=ignore_done).apply(session)
            else:
                Append(*place).apply(session)
            before_us = time_us
        session.log.truncate_before(record.stream_id, deleted)
        session.commit()
        record = session.log.get_stream(record.stream_id)
        found = FileCatalog(folder)
        (end,) = found.list_partitions()
        for wanted_us in range(32):
            indexes = range(record.first_index, record.next_index)
            expected = next((at for at in indexes if min(times_us[at:]) >= wanted_us), record.next_index)
            assert first_index_at(session, record, wanted_us) == expected, (times_us, wanted_us)
            # Each look at the file is a connection of its own.
            assert wanted_us % 5 or found.index_at(end, wanted_us) == expected, (times_us, wanted_us)


def test_a_file_of_version_1_is_searched_by_time(tmp_path: Path) -> None:
    """A node of that version noted no falls, and its database has no table of them. Spark reads the rest of it."""
    found = FileCatalog(str(unpacked(tmp_path / "data")))
    (end,) = found.list_partitions("block_node.blocks")
    assert [found.index_at(end, 1_700_000_000_000_010 + later) for later in range(5)] == [1, 1, 2, 3, 4]
