"""Goal: a repair brings back exactly the rows of damaged files, or says what is lost; at a kill, all or nothing.

Method: files are flipped, cut or removed; tables are compared with the node by each format's own reader.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import DataLost, ExportError
from spark_export.exporter.failpoint import ENVIRONMENT_VARIABLE
from spark_export.exporter.repair import Repair
from spark_export.exporter.report import repair_lines, verdict_lines
from spark_export.exporter.runs.job import open_repairer
from stream_client.blocking import set_position
from tests.cli.promised import promised
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.tables.table_readers import LIBRARIES, rows_in
from tests.spark_export.exporter.tables.test_true_tables import data_files, flip
from tests.spark_export.exporter.test_crashes import export_child

SITES = ("compact_planned", "compact_written", "between_turn_and_ledger")


def repair(world: World, **options: Any) -> Repair:
    async def main() -> Repair:
        async with open_repairer(world.folder, world.node.address, **options) as repairer:
            return await repairer.run()

    return asyncio.run(main())


def repair_child(world: World, site: str = "", *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "stream_node", "export", "repair", str(world.folder), "--json"]
    return subprocess.run(
        [*command, *more, "--node", world.node.address],
        env={**os.environ, ENVIRONMENT_VARIABLE: site},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(params=LIBRARIES)
def exported(request: pytest.FixtureRequest, world: World) -> World:
    """Three runs of three partitions, in three files."""
    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    world.settings = replace(world.settings, format=request.param)
    for _ in range(3):
        world.push(60, partitions=3)
        world.run()
    return world


def assert_whole(world: World) -> None:
    assert rows_in(world) == world.stored()
    verdict = world.verify()
    assert (verdict.problems, verdict.lost) == ((), 0)


def test_damaged_and_lost_files_are_taken_again(exported: World) -> None:
    first, second, _ = data_files(exported)
    flip(first)
    second.unlink()
    done = repair_child(exported)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=promised.Repaired)
    assert (len(report.damaged), report.rows, report.lost, report.generation) == (2, 120, 0, 2)
    assert_whole(exported)
    assert repair(exported).generation is None
    exported.push(5)
    exported.run()
    exported.compact()
    assert_whole(exported)


@pytest.mark.parametrize("site", SITES)
def test_a_repair_killed_at_a_site_is_the_old_table_or_the_new(exported: World, site: str) -> None:
    flip(data_files(exported)[1])
    killed = repair_child(exported, site)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    problems = exported.verify().problems
    assert problems == () or (len(problems) <= 4 and "SHA-256" in problems[0])
    if site == "compact_planned":
        assert problems
    repair(exported)
    assert_whole(exported)
    exported.push(5)
    exported.run()
    assert_whole(exported)


def test_rows_that_the_node_has_no_more_are_told_and_given_up_only_on_request(exported: World) -> None:
    file = data_files(exported)[0]
    flip(file)
    with exported.client() as client:
        for part in client.get_stream(exported.stream).partitions:
            part.truncate(5)
    before = file.read_bytes()
    refused = repair_child(exported)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "15 rows of damaged files are not on the node any more" in line
    assert "from 0 to 4; --accept-lost" in line
    assert file.read_bytes() == before
    assert not exported.verify().sound
    done = repair(exported, accept_lost=True)
    assert (done.rows, done.lost) == (45, 15)
    said = [f"lost: {exported.stream}/{partition} from 0 to 4" for partition in range(3)]
    assert list(repair_lines(done))[1:] == [
        "1 damaged or missing file taken out; 45 rows of them read again from the node",
        *said,
        "15 rows lost for good, as the ledger notes",
    ]
    verdict = exported.verify()
    assert list(verdict_lines(verdict))[-1].endswith("every index once; 15 exported rows lost, which a repair gave up")
    assert (verdict.problems, verdict.rows, verdict.lost) == ((), 165, 15)
    assert rows_in(exported) == exported.stored()
    exported.compact()
    assert exported.verify().lost == 15
    flip(data_files(exported)[-1])
    assert repair(exported, accept_lost=True).lost == 0
    assert exported.verify().problems == ()


def test_a_node_that_was_put_back_gives_no_row(exported: World) -> None:
    """It may have other messages under the same indexes."""
    flip(data_files(exported)[0])
    with exported.client() as client:
        set_position(client, exported.consumer(), exported.stream, 0, 3)
    with pytest.raises(DataLost, match="the node was put back"):
        repair(exported, accept_lost=True)


def test_a_stream_that_was_made_anew_gives_no_row(exported: World) -> None:
    flip(data_files(exported)[0])
    with exported.client() as client:
        client.get_stream(exported.stream).delete()
    exported.push(300, partitions=3)
    with pytest.raises(DataLost, match="60 rows of damaged files"):
        repair(exported)
    assert repair(exported, accept_lost=True).lost == 60
    assert exported.verify().problems == ()


@pytest.mark.parametrize("also_the_link", [False, True])
def test_a_lost_generation_is_taken_again(world: World, also_the_link: bool) -> None:
    for _ in range(2):
        world.push(50)
        world.run()
    shutil.rmtree(world.folder / "generations")
    if also_the_link:
        (world.folder / "messages").unlink()
    assert export_child(world, "run").returncode == 1
    assert repair(world).rows == 100
    world.push(5)
    world.run()
    world.assert_whole()


def test_a_run_whose_end_was_not_saved_is_told_from_a_node_that_was_put_back(world: World) -> None:
    world.push(50)
    world.run()
    world.push(50)
    assert export_child(world, "run", "published").returncode == -signal.SIGKILL
    flip(data_files(world)[0])
    with pytest.raises(ExportError, match=r"`stream-node export run` saves it, then repair again"):
        repair(world)
    world.run()
    assert repair(world).rows == 50
    world.assert_whole()
