"""Goal: the Spark application exports each message once, and goes on where the small engine has stopped, and the other
way round. Method: an embedded Spark, workers and drivers that are killed, and tables read by their own libraries.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from pyspark.errors import StreamingQueryException

from spark_export import decoder
from spark_export.exporter.application import (
    SparkExporter,
    blamed_streams,
    task_error,
)
from spark_export.exporter.node_side import Selection
from spark_export.exporter.planning import ExportStep
from spark_export.exporter.run import OVERTAKEN_MAX, ExportOutcome
from spark_export.tables.errors import ExportStopped, PositionsMoved, StreamsLeftOut, TableRefused
from spark_export.tables.model import Commit, FilesPlan, Incarnation, IndexRange, Written
from stream_client import NodeUnreachable
from stream_storage.failpoint import ENVIRONMENT_VARIABLE
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import command, wait_until
from tests.spark_export.exporter.export_world import World

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 300.0
MASTER = ("--master", "local[2,4]", "--every", "1s", "--compact-files", "0")


def on_spark(world: World, spark: Any, on_step: Any = None, **changes: Any) -> ExportOutcome:
    with SparkExporter(replace(world.settings, **changes), session=spark) as exporter:
        return exporter.run(on_step=on_step)


@pytest.mark.older_spark
def test_both_engines_continue_the_same_table(spark: Any, each_format: World) -> None:
    """Goal: the positions of the table decide, whoever wrote it. Method: the engines in turn, the first on Spark in
    several micro-batches."""
    world, steps = each_format, list[ExportStep]()
    world.push(300, partitions=3)
    outcome = on_spark(world, spark, steps.append, rows_max=120)
    assert (outcome.rows, outcome.steps, outcome.partitions) == (300, len(steps), 3)
    assert len(steps) > 1
    world.push(40)
    assert world.run().rows == 40
    world.push(7)
    assert on_spark(world, spark).rows == 7
    assert on_spark(world, spark).run_id is None
    assert sum(world.position(partition) for partition in range(3)) == 347
    world.assert_whole()


def test_a_stream_that_lost_messages_is_left_out(spark: Any, world: World) -> None:
    """As with the small engine: the other streams are exported, and `accept_lost` goes on behind the loss."""
    other = f"{world.stream}-other"
    world.push(20, partitions=1)
    on_spark(world, spark)
    world.push(20, partitions=1)
    world.push(5, partitions=1, stream=other)
    with world.client() as client:
        client.create(world.stream).truncate(30)
    both = replace(world.settings.selection, streams=(world.stream, other))
    with pytest.raises(StreamsLeftOut, match="retention deleted 10 messages") as left_out:
        on_spark(world, spark, selection=both)
    assert left_out.value.outcome.rows == 5
    outcome = on_spark(world, spark, selection=both, accept_lost=True)
    assert (outcome.rows, outcome.lost) == (10, 10)
    with world.client() as client:
        client.create(world.stream).truncate(40)
    world.verify(contents=False)


def test_workers_that_are_killed_double_nothing(spark: Any, world: World) -> None:
    """Killed once, while the node's answers are held and rows are in files; Spark starts their tasks again."""
    world.push(60_000, partitions=1, size=1_000)
    opened, killed = threading.Event(), set[int]()

    def kill() -> None:
        while not list(world.folder.glob("staging/*/**/*.parquet")):
            if opened.wait(0.05):
                return
        for pid in python_workers():
            # A worker may end between the listing and the signal.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        opened.set()

    with door(world.node.address, [20_000_000] * 40, opened) as address:
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            assert on_spark(world, spark, node=address).rows == 60_000
        finally:
            opened.set()
            killer.join()
    assert killed
    world.assert_whole()


def test_decoded_columns_are_written_by_both_engines(spark: Any, world: World) -> None:
    """Goal: the decoder works in Spark's tasks, and a table has the same columns from both. Method: Python's JSON."""
    pushed = [b'{"id":%d,"amount":"%d.50"}' % (at, at) for at in range(60)] + [b"no json"]
    decoding: dict[str, Any] = {
        "decoder": decoder("json", "id INT, amount DECIMAL(10,2), _problem STRING"),
        "without_data": True,
    }
    for part, export in ((pushed[:40], partial(on_spark, world, spark)), (pushed[40:], world.run)):
        with world.client() as client, client.create(world.stream).publisher() as publisher:
            publisher.push_many(part)
        assert export(**decoding).rows == len(part)
    rows = world.read(["index", "id", "amount", "_problem"]).sort_by("index").to_pylist()
    wanted = [(at, at, Decimal(f"{at}.50"), None) for at in range(60)]
    assert [tuple(row.values()) for row in rows] == [*wanted, (60, None, None, "the message is not one JSON object")]


def test_an_older_spark_exports_in_batches(spark: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: Spark 4.0 and 4.1 bound no micro-batches, and steps have a bound. Method: the source without limits."""
    monkeypatch.setattr("spark_export.exporter.application.HAS_LIMITS", False)
    world.push(90, partitions=3)
    outcome = on_spark(world, spark, bytes_max=1_000)
    assert (outcome.rows, outcome.steps) == (90, 2)
    world.assert_whole()


@pytest.mark.soak
@pytest.mark.parametrize("site", ["planned", "tasks_done", "before_commit", "committed", "saved"])
def test_the_driver_is_killed_at_a_site(each_format: World, site: str) -> None:
    """Goal: a crash of the driver is harmless, and the small engine goes on. Method: SIGKILL at a named site."""
    world = each_format
    world.push(100)
    world.run()
    before = world.rows()
    world.push(100)
    killed = subprocess.run(
        command(world, "daemon", *MASTER),
        env={**os.environ, ENVIRONMENT_VARIABLE: site},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert world.rows() == (world.stored() if site in ("committed", "saved") else before)
    world.push(7)
    world.run()
    world.assert_whole()


@pytest.mark.soak
def test_a_daemon_outlives_its_spark(world: World) -> None:
    """Goal: a JVM that dies fails a run at most; the daemon starts another. Method: SIGKILL to it between two runs."""
    world.push(100)
    with subprocess.Popen(
        command(world, "daemon", *MASTER),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            wait_until(lambda: taken(world) == 100, daemon, PATIENCE_S)
            first = jvm_below(daemon.pid)
            assert first is not None
            world.push(50)
            wait_until(lambda: taken(world) == 150, daemon, PATIENCE_S)
            assert jvm_below(daemon.pid) == first, "the session is kept between runs"
            os.kill(first, signal.SIGKILL)
            world.push(7)
            wait_until(lambda: taken(world) == 157, daemon, PATIENCE_S)
            assert jvm_below(daemon.pid) not in (None, first)
            daemon.send_signal(signal.SIGTERM)
            _, log = daemon.communicate(timeout=PATIENCE_S)
        finally:
            daemon.kill()
    assert daemon.returncode == 0, log
    world.assert_whole()


@pytest.mark.soak
def test_no_java_is_told(world: World, tmp_path: Path) -> None:
    """Goal: what is missing is said in one line, and how to go on without it."""
    world.push(3)
    with subprocess.Popen(
        command(world, "daemon", *MASTER),
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            assert daemon.stderr is not None
            line = next(each for each in daemon.stderr if "run failed" in each)
        finally:
            daemon.kill()
    assert re.search(r"JAVA_HOME=\S+ has no bin/java", line)
    assert world.run().rows == 3, "the run that could not begin took nothing"


def test_a_loss_without_rows_is_told_as_a_step(world: World) -> None:
    """Goal: the metrics of a daemon with Spark count such a loss, too. Method: nothing else is new, so Spark is not
    started."""
    world.push(10, partitions=1)
    world.run()
    world.push(5, partitions=1)
    with world.client() as client:
        client.create(world.stream).truncate(15)
    told: list[ExportStep] = []
    with SparkExporter(replace(world.settings, accept_lost=True), session=object()) as exporter:
        assert exporter.run(on_step=told.append).lost == 5
    assert [step.lost for step in told] == [5]


def test_a_stop_during_the_commit_of_a_loss_ends_the_run(world: World) -> None:
    """Goal: a signal that comes during this commit is not forgotten after it. Method: the run is stopped in the
    commit, while another stream has rows left; the session of Spark is none, so a query would fail."""
    world.push(10, partitions=1)
    world.run()
    world.push(5, partitions=1)
    with world.client() as client:
        client.create(world.stream).truncate(15)
    other = f"{world.stream}-other"
    world.push(10, stream=other, partitions=1)
    told: list[ExportStep] = []

    settings = replace(world.settings, accept_lost=True, selection=Selection((world.stream, other)))
    with SparkExporter(settings, session=object()) as exporter:
        append = exporter._log.append

        def append_and_stop(plan: FilesPlan, written: Written) -> Commit:
            exporter.stop.set()
            return append(plan, written)

        exporter._log.append = append_and_stop  # type: ignore[method-assign]
        with pytest.raises(ExportStopped):
            exporter.run(on_step=told.append)
    assert [step.lost for step in told] == [5]


def test_only_conflicts_in_a_row_end_a_run(spark: Any, world: World) -> None:
    """Goal: a long run gets on beside other exporters. Method: after each commit one that finds its positions moved,
    more of them than may follow each other."""
    world.push(OVERTAKEN_MAX * 20 + 40, partitions=1)
    calls = count()

    with SparkExporter(replace(world.settings, rows_max=20), session=spark) as exporter:
        append = exporter._log.append

        def append_in_turn(plan: FilesPlan, written: Written) -> Commit:
            if next(calls) % 2:
                raise PositionsMoved("another exporter was quicker")
            return append(plan, written)

        exporter._log.append = append_in_turn  # type: ignore[method-assign]
        assert exporter.run().rows == OVERTAKEN_MAX * 20 + 40
    assert next(calls) > 2 * OVERTAKEN_MAX
    world.assert_whole()


def test_a_stream_made_anew_after_the_plan_is_noticed(world: World) -> None:
    """Goal: rows of a new stream do not get the era of the old one. Method: the check before a micro-batch is read."""
    world.push(1, partitions=1)
    with SparkExporter(world.settings, session=object()) as exporter:
        (end,) = world.settings.node_side().list_ends(world.settings.selection)
        of = Incarnation(world.stream, 0, 0, end.created_us)
        exporter._planned = {of.place: IndexRange(of, 0, 1)}
        exporter._check_incarnations()
        exporter._planned = {of.place: IndexRange(of._replace(created_us=1), 0, 1)}
        with pytest.raises(PositionsMoved, match="made anew"):
            exporter._check_incarnations()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x\n  spark_export.errors.DataLoss: orders/0: gone\n at java", "orders/0: gone"),
        ("x\nspark_export.tables.errors.RangeIncomplete: too few\n", "too few"),
        (
            "x\nTraceback\n  File\nOSError: [Errno 28] No space left on device\n\n\tat org.apache",
            "Spark could not finish the run: OSError: [Errno 28] No space left on device",
        ),
        ("Job aborted\n due to", "Spark could not finish the run: Job aborted due to"),
    ],
)
def test_errors_are_found_in_what_spark_says(text: str, said: str) -> None:
    assert str(task_error(text)) == said


class FailingQuery(MagicMock):
    """Stands for a query of Spark, which wraps the error of `foreachBatch` in an error of its own."""

    def foreachBatch(self, take: Any) -> FailingQuery:
        self.take = take
        return self

    def option(self, *given: Any, **more: Any) -> FailingQuery:
        return self

    trigger = option

    def start(self) -> FailingQuery:
        return self

    def awaitTermination(self, timeout: float) -> bool:
        try:
            self.take(None, 0)
        except Exception as error:
            raise StreamingQueryException(str(error)) from None
        return True


def test_a_node_that_restarts_during_a_micro_batch_is_told_as_such(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the daemon counts such a run as failed, and goes on. Method: a query whose `foreachBatch` has the client's
    error, as the daemon expects it."""
    session, query = MagicMock(), FailingQuery()
    session.readStream.format.return_value.options.return_value.load.return_value.writeStream = query
    session.sparkContext.master = "local[2]"
    of = Incarnation(world.stream, 0, 0, 1)

    def fail(rows: Any) -> None:
        raise NodeUnreachable("127.0.0.1:4000 cannot be reached")

    with SparkExporter(world.settings, session=session) as exporter:
        exporter._planned = {of.place: IndexRange(of, 0, 1)}
        monkeypatch.setattr(exporter, "_take", fail)
        with pytest.raises(NodeUnreachable):
            exporter._query()


def test_a_stream_whose_name_ends_like_another_one_is_not_blamed() -> None:
    """Goal: only the stream that cannot be read is left out. Method: names of which one is the end of the other."""
    places = [("orders", 0), ("orders", 1), ("new-orders", 0), ("new-orders", 1)]
    assert blamed_streams(places, "data is lost: new-orders/1 indexes 0 to 3: gone") == {"new-orders"}
    assert blamed_streams(places, "orders/0: too few; new-orders/0: too few") == {"orders", "new-orders"}
    assert blamed_streams(places, "no room") == set()


def taken(world: World) -> int:
    """How many messages the table has, as its log says; 0 before the first run has made it."""
    try:
        return sum(each.end for each in world.log().load().positions.values())
    except TableRefused:
        # There is no table yet.
        return 0


def jvm_below(pid: int) -> int | None:
    """The Java that is a child of that process, or that a child became."""
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for each in child.read_text().split():
            if b"org.apache.spark" in Path(f"/proc/{each}/cmdline").read_bytes():
                return int(each)
    return None


def python_workers() -> set[int]:
    """Spark's Python workers below this process: the children of its daemons, whatever they run."""
    parents: dict[int, int] = {}
    daemons = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(re.findall(r"(\w+):\s+(\S+)", status.read_text()))
            line = status.with_name("cmdline").read_bytes()
        except OSError:
            continue
        pid = int(fields["Pid"])
        parents[pid] = int(fields["PPid"])
        if b"pyspark.daemon" in line:
            daemons.add(pid)

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid for pid in daemons if is_ours(pid) and parents[pid] in daemons}
