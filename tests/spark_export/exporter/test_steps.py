"""Goal: an export works in steps that are published one by one, and a loss of one stream keeps no other from the table.

Method: real nodes and folders, tasks in threads, and the command in a child process where its words are the claim.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.errors import SourceUnreachable
from spark_export.exporter.node_side import Selection
from spark_export.exporter.planning import ExportStep
from spark_export.exporter.run import Exporter, Progress
from spark_export.tables.errors import StreamsLeftOut
from spark_export.tables.files import write_ranges
from spark_export.tables.model import Incarnation, IndexRange
from stream_node.node.process import NodeProcess
from tests.cli.promised import promised
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import export_child
from tests.spark_export.exporter.export_world import World


def test_what_is_new_is_published_in_steps_of_the_given_size(world: World) -> None:
    world.push(1_000)
    seen: list[tuple[ExportStep, int]] = []
    progress: list[Progress] = []

    def main(exporter: Exporter) -> object:
        def on_step(step: ExportStep) -> None:
            seen.append((step, len(world.rows())))

        return exporter.run(on_step=on_step)

    outcome = world.with_exporter(main, rows_max=300)
    assert (outcome.rows, outcome.steps, outcome.rows_left, outcome.run_id) == (1_000, 4, 0, 4)
    assert [rows for _, rows in seen] == [300, 600, 900, 1_000], "a reader sees each step when it is told"
    assert sum(step.rows for step, _ in seen) == 1_000
    assert [len(step.ranges) for step, _ in seen] == [2] * 4, "no partition waits for another one"
    world.assert_whole()
    world.push(2_000)
    outcome = world.run(bytes_max=20 * 500, on_progress=progress.append)
    assert (outcome.rows, outcome.steps) == (2_000, 4)
    assert all(0 < each.step <= 4 and each.rows <= each.rows_planned == 2_000 for each in progress)
    world.assert_whole()


def test_an_export_ends_though_a_producer_does_not(world: World) -> None:
    """Method: after each step more is pushed than the step has taken."""
    world.push(500)

    def main(exporter: Exporter) -> object:
        def on_step(step: ExportStep) -> None:
            world.push(200)

        return exporter.run(on_step=on_step)

    outcome = world.with_exporter(main, rows_max=100)
    assert (outcome.rows, outcome.rows_left) == (500, 0)
    assert world.run().rows == 200 * outcome.steps
    world.assert_whole()


def test_no_step_begins_after_the_time_and_the_rest_is_told(world: World) -> None:
    world.push(50)
    ended = export_child(world, "run", "--seconds-max", "0")
    report = msgspec.json.decode(ended.stdout, type=promised.Exported)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (report.run, report.steps, report.rows_left, report.data_bytes_left) == (None, 0, 50, 1_000)
    assert world.run(seconds_max=600.0).rows_left == 0
    world.assert_whole()


def test_a_stream_with_a_loss_is_left_out_and_the_others_are_exported(world: World) -> None:
    """Goal: the command tells each stream in one line, in JSON and by its exit code, at each run until it is mended."""
    names = {kind: f"{world.stream}-{kind}" for kind in ("cut", "anew", "whole")}
    names["long"] = f"{world.stream}-" + "é" * 120 + "=" * 60
    pattern = ("--pattern", f"{world.stream}-.*")
    for kind in ("cut", "anew", "whole"):
        world.push(10, stream=names[kind], partitions=1)
    assert export_child(world, "run", *pattern).returncode == 0
    with world.client() as client:
        client.create(names["anew"]).delete()
    for name in names.values():
        world.push(10, stream=name, partitions=1)
    with world.client() as client:
        client.create(names["cut"]).truncate(15)
    ended = export_child(world, "run", *pattern)
    report = msgspec.json.decode(ended.stdout, type=promised.Exported)
    assert (ended.returncode, report.rows, report.steps) == (1, 10, 1)
    reasons = {each.stream: each.reason for each in report.left_out}
    assert reasons.keys() == {names["cut"], names["anew"], names["long"]}
    assert "retention deleted 5 messages" in reasons[names["cut"]]
    assert "made anew" in reasons[names["anew"]]
    assert "makes a folder's name of" in reasons[names["long"]]
    *logged, said = map(msgspec.json.decode, ended.stderr.splitlines())
    assert [line["event"] for line in logged] == ["stream left out"] * 3
    assert all(reason in said["error"] for reason in reasons.values())
    again = export_child(world, "run", *pattern)
    assert (again.returncode, msgspec.json.decode(again.stdout, type=promised.Exported).run) == (1, None)
    accepted = world.run(accept_lost=True, selection=Selection((names["cut"], names["anew"], names["whole"])))
    assert (accepted.rows, accepted.lost) == (15, 5)
    verdict = world.verify()
    assert (verdict.problems, verdict.rows, verdict.lost) == ((), 55, 5)


def test_a_stream_that_is_cut_while_it_is_read_is_left_out_alone(world: World) -> None:
    """Method: the truncation comes between the plan and the reading, as a slow run would meet it."""
    other = f"{world.stream}-other"
    for name in (world.stream, other):
        world.push(100, partitions=2, stream=name)
    both = Selection((world.stream, other))

    def main(exporter: Exporter) -> None:
        listed = exporter._node.list_ends

        def list_then_truncate(selection: Selection) -> object:
            ends = listed(selection)
            with world.client() as client:
                client.create(world.stream).truncate(20)
            return ends

        exporter._node.list_ends = list_then_truncate  # type: ignore[method-assign, assignment]
        with pytest.raises(StreamsLeftOut, match="indexes 0 to 19"):
            exporter.run()

    world.with_exporter(main, selection=both)
    assert world.rows() == world.stored((other,))
    assert world.verify().problems == ()
    outcome = world.run(selection=both)
    assert outcome.rows == world.verify().rows - 100 == len(world.stored((world.stream,)))


def damage(data_dir: Path, stream: str, index: int) -> None:
    """Changes a byte of a stored message, as a disk does."""
    with sqlite3.connect(data_dir / "streams.sqlite") as database:
        (stream_id,) = database.execute("SELECT id FROM streams WHERE name = ?", (stream,)).fetchone()
        changed = database.execute(
            "UPDATE messages SET data = CAST('!' || substr(data, 2) AS BLOB) WHERE stream_id = ? AND idx = ?",
            (stream_id, index),
        )
        assert changed.rowcount == 1
    database.close()


@pytest.mark.parametrize("of_the_file", [False, True])
def test_a_stream_with_a_damaged_page_is_left_out_alone(tmp_path: Path, of_the_file: bool) -> None:
    """Goal: neither rows before nor rows after the damage are published without the damaged one, and other streams are.

    A stream of many messages, so that whole pages are read before the damage.
    """
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "damaged")
        world.push(20_000, partitions=1, size=500)
        world.push(100, partitions=1, stream="whole")
        node.stop()
        damage(tmp_path / "data", "damaged", 19_000)
        node.start()
        data_dir = tmp_path / "data" if of_the_file else None
        with pytest.raises(StreamsLeftOut, match=r"^damaged/0: message 19000 is not what was written") as told:
            world.run(selection=Selection(), data_dir=data_dir, verify_checksums=True)
        outcome = told.value.outcome
        assert (outcome.rows, [each.stream for each in outcome.left_out]) == (100, ["damaged"])
        assert world.rows() == world.stored(("whole",))
        assert world.verify().problems == ()
        node.kill()


@pytest.mark.parametrize("answers_others", [True, False])
def test_a_node_that_ends_each_read_is_told_from_a_node_that_has_gone(world: World, answers_others: bool) -> None:
    """Goal: a page at which the node ends the connection leaves out its stream; without the node, the run fails.

    Method: a door that ends the connections of the only task after some bytes, and then all others or none.
    """
    world.push(1_000, partitions=1, size=100)
    wanted = IndexRange(Incarnation(world.stream, 0, 0, 0), 0, 1_000)
    log = world.settings.open_log()
    plan = world.settings.plan_files(log, log.load())
    # A listing of the node's streams fits into the larger limit, and a page of messages does not.
    with door(world.node.address, [20_000 if answers_others else 64] * 1_000) as address:
        settings = replace(world.settings, node=address)
        node = settings.node_side()
        node.source["requestTimeoutMs"] = "1000"
        if answers_others:
            written = write_ranges([wanted], node.read, plan, is_of_stream=node.is_of_stream)
            assert (written.files, [each.stream for each in written.left_out]) == ([], [world.stream])
        else:
            with pytest.raises(SourceUnreachable):
                write_ranges([wanted], node.read, plan, is_of_stream=node.is_of_stream)
    assert list(Path(plan.root).rglob("*.parquet")) == []
    log.abandon(plan)
