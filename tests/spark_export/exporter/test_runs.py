"""Goal: runs take everything new, each message once, and say where they are. Method: a real node, tasks in threads."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.parquet as pq

from spark_export.exporter.errors import ExportInUse, ExportMismatch, StreamsLeftOut
from spark_export.exporter.model import RunState
from spark_export.exporter.node_side import Selection
from spark_export.exporter.runs.run import Exporter, Progress
from spark_export.exporter.tables.layout import ExportLock
from spark_export.exporter.tables.write_files import FILE_SCHEMA
from stream_client import Header, NodeUnreachable, StreamNotFound
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_world import World, rows_of


def test_each_run_takes_what_is_new(world: World) -> None:
    world.push(1_000)
    first = world.run()
    assert (first.run_id, first.rows, first.partitions, first.data_bytes) == (1, 1_000, 2, 20_000)
    world.assert_whole()
    world.push(10)
    assert (world.run().rows, world.run().run_id) == (10, None)
    world.assert_whole()
    assert [world.position(partition) for partition in (0, 1)] == [505, 505]


def test_a_partition_and_a_stream_that_come_later_are_taken(world: World) -> None:
    world.push(10, partitions=1)
    matching = Selection(pattern=f"{world.stream}.*")
    assert world.run(selection=matching).rows == 10
    world.push(30, partitions=3)
    other = f"{world.stream}/other = 50%"
    world.push(5, stream=other, partitions=1)
    outcome = world.run(selection=matching)
    assert (outcome.rows, outcome.partitions) == (35, 4)
    world.assert_whole((world.stream, other))


def test_keys_headers_times_and_empty_data_are_kept(world: World) -> None:
    with world.client() as client:
        stream = client.create(world.stream)
        stream.push(b"", key=b"\x00k", headers=[Header("a", b"1"), Header("a", b"")])
        stream.push(b"\xff" * 3)
        stored = stream.pull_page(0).messages
    world.run()
    (file,) = (world.folder / "messages").resolve().rglob("*.parquet")
    table = pq.read_table(file, partitioning=None)
    assert table.schema.equals(FILE_SCHEMA)
    rows = table.to_pylist()
    assert [row["key"] for row in rows] == [b"\x00k", None]
    assert [row["data"] for row in rows] == [b"", b"\xff\xff\xff"]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": b""}]
    assert not rows[1]["headers"]
    assert [int(row["timestamp"].timestamp() * 1e6) for row in rows] == [each.time_us for each in stored]
    assert file.parent.name == f"date={rows[0]['timestamp'].date()}"


def test_a_selection_is_by_name_or_pattern(world: World) -> None:
    for name in ("a.1", "a.2", "b.1"):
        world.push(2, stream=name, partitions=1)
    assert world.run(selection=Selection(("b.1",), r"a\.1")).rows == 4
    assert {row[0] for row in world.rows()} == {"a.1", "b.1"}
    with pytest.raises(StreamNotFound, match="nosuch"):
        world.run(selection=Selection(("nosuch",)))
    with capture_logs() as logs:
        assert world.run(selection=Selection(pattern="nosuch-.*")).run_id is None
    assert {"event": "no stream of the node matches", "pattern": "nosuch-.*", "log_level": "warning"} in logs


def test_what_retention_took_is_reported(world: World) -> None:
    world.push(10, partitions=1)
    world.run()
    world.push(10, partitions=1)
    with world.client() as client:
        client.create(world.stream).truncate(15)
    with pytest.raises(StreamsLeftOut, match="retention deleted 5 messages"):
        world.run()
    outcome = world.run(accept_lost=True)
    assert (outcome.rows, outcome.lost) == (5, 5)
    verdict = world.verify()
    assert (verdict.problems, verdict.rows, verdict.lost) == ((), 15, 5)


def test_a_stream_made_anew_is_told_apart(world: World) -> None:
    world.push(10, partitions=1)
    world.run()
    with world.client() as client:
        client.create(world.stream).delete()
    world.push(4, partitions=1)
    with pytest.raises(StreamsLeftOut, match="made anew"):
        world.run()
    assert world.run(accept_lost=True).rows == 4
    verdict = world.verify()
    assert (verdict.problems, verdict.rows) == ((), 14)
    assert world.position(0) == 4


def test_a_node_put_back_to_a_backup_is_refused_however_much_it_has_grown_since(tmp_path: Path) -> None:
    """Goal: messages at indexes that were exported before, with other contents, are never taken for those."""
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "orders")
        world.push(10)
        world.run()
        node.stop()
        shutil.copytree(tmp_path / "data", tmp_path / "kept")
        node.start()
        world.push(10)
        world.run()
        node.stop()
        shutil.rmtree(tmp_path / "data")
        (tmp_path / "kept").rename(tmp_path / "data")
        node.start()
        world.push(30)
        for _ in range(2):
            with pytest.raises(
                StreamsLeftOut, match="keeps 5 as the export's position: it was put back to an earlier state"
            ):
                world.run(accept_lost=True)
        assert world.verify().sound
        assert world.run(folder=tmp_path / "new").rows == 40
        assert node.stop() == 0


def test_retention_that_wins_a_race_fails_the_run_and_publishes_nothing(world: World) -> None:
    """The truncation comes between the plan and the reading, as a slow run would meet it."""
    world.push(100, partitions=1)

    async def main(exporter: Exporter) -> None:
        listed = exporter._node.list_ends

        def list_then_truncate(selection: Selection) -> object:
            ends = listed(selection)
            with world.client() as client:
                client.create(world.stream).truncate(50)
            return ends

        exporter._node.list_ends = list_then_truncate  # type: ignore[method-assign, assignment]
        with pytest.raises(StreamsLeftOut, match="indexes 0 to 49") as told:
            await exporter.run()
        assert (told.value.outcome.run_id, told.value.outcome.rows) == (None, 0)
        (run,) = await exporter._ledger.load_runs()
        assert run.state is RunState.ABANDONED
        assert "0 to 49" in (run.error or "")

    world.with_exporter(main)
    assert not list((world.folder / "messages").resolve().iterdir())
    assert world.run().rows == 50
    verdict = world.verify()
    assert (verdict.problems, verdict.rows) == ((), 50)


def test_messages_pushed_during_a_run_are_of_the_next_one(world: World) -> None:
    world.push(5_000)
    pushing = threading.Thread(target=world.push, args=(5_000,))
    pushing.start()
    rows = world.run().rows
    pushing.join()
    assert rows + world.run().rows == 10_000
    world.assert_whole()


def test_progress_is_told(world: World) -> None:
    seen: list[Progress] = []
    world.push(20_000)
    world.run(on_progress=seen.append)
    assert all(each.rows_planned == 20_000 and 0 <= each.rows <= 20_000 for each in seen)
    assert [each.rows for each in seen] == sorted(each.rows for each in seen)


def test_a_second_exporter_is_refused(world: World) -> None:
    world.push(1)
    world.run()
    with ExportLock(world.folder), pytest.raises(ExportInUse, match="in use by another exporter"):
        world.run()
    assert world.verify().sound


def test_a_folder_of_another_format_or_program_is_refused(world: World, tmp_path: Path) -> None:
    world.push(1)
    world.run()
    with pytest.raises(ExportMismatch, match="holds a table in the format parquet, not delta"):
        world.run(format="delta")
    (tmp_path / "empty").mkdir()
    world.folder = tmp_path / "empty"
    with pytest.raises(ExportMismatch, match="holds no export"):
        world.verify()


def test_a_node_that_is_not_there_is_told_and_harms_nothing(world: World) -> None:
    world.push(5)
    world.run()
    with pytest.raises(NodeUnreachable):
        world.run(node="127.0.0.1:1")
    world.assert_whole()


def test_a_reader_sees_whole_runs_only(world: World) -> None:
    """Method: readers list and read the folder all the time while small runs are published; each sees a sum of runs."""
    seen: list[int] = []
    done = threading.Event()
    world.push(10)
    world.run()

    def read() -> None:
        while not done.is_set():
            seen.append(len(rows_of(world.folder / "messages")))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(8):
        world.push(10)
        asyncio.run(asyncio.sleep(0))
        world.run()
    done.set()
    reader.join()
    assert set(seen) <= set(range(10, 91, 10))
    assert seen == sorted(seen)
