"""Goal: the tables are those of a full rebuild, row by row, however the messages were cut into increments.

Method: an export's folder that grows by random cuts of every partition, with files that a compaction merged, ranges
that come late, and kills at each site.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cardinal_streams.produce.simulation_machine import SimulationOptions, simulate
from cardinal_streams.transports.transport import is_reorg_topic
from spark_export.exporter.errors import ExportError, ExportInUse
from spark_export.exporter.failpoint import ENVIRONMENT_VARIABLE, PIPELINE_SITES
from spark_export.exporter.tables.layout import ExportLock
from spark_export.pipeline import increment
from spark_export.pipeline.increment import PipelineMismatch, Settings, run_pipeline
from spark_export.pipeline.jobs import main
from spark_export.pipeline.tables import known_blocks
from spark_export.pipeline.topics import Topics
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_world import World
from tests.spark_export.pipeline.lake import BASE_US, Lake, Row, all_rows, read_rows
from tests.spark_export.pipeline.makers import block_messages, odd_chain

pytestmark = pytest.mark.slow

TOPICS = r"(sim|odd)-.*"
CARDINAL = Settings(Topics(TOPICS))
Source = tuple[str, int]
"""A stream and a partition."""


def messages(seed: int) -> dict[Source, list[Row]]:
    """The messages of each partition in the order of their indexes: a chain with deep reorgs, an odd chain, orders with
    event times, and the block node's blocks."""
    randomness = random.Random(seed)
    found: dict[Source, list[Row]] = defaultdict(list)
    options = SimulationOptions(blocks=30, deep_reorgs=1, producers=1 + seed % 2, fork_rate=0.4, keys=1)
    for at, step in enumerate(simulate(randomness, options).steps):
        partition = 0 if is_reorg_topic(step.topic) else zlib.crc32(step.record.key) % 2
        rows = found[step.topic, partition]
        rows.append((partition, len(rows), at, step.record.key, [], step.record.value))
    for record in odd_chain(randomness):
        rows = found["odd-blocks", 0]
        rows.append((0, len(rows), randomness.randrange(40), record.key, [], record.value))
    for at in range(120):
        rows = found["orders", at % 3]
        late = BASE_US + at * 1_000_000 - randomness.randrange(10**6)
        headers = [{"key": "event_time_us", "value": b"%d" % late}] if at % 3 else []
        rows.append((at % 3, len(rows) + (at > 60) * 5, at, b"k", headers, b"\xff" if at == 7 else b"x" * at))
    # Blocks come again, cut in other places or under another root, in any order and with any time. A compaction puts
    # one partition before the other.
    blocks = block_messages((700, 1100))
    blocks += randomness.sample(blocks, len(blocks) // 2)
    randomness.shuffle(blocks)
    for at, (_, key, headers, data) in enumerate(blocks):
        rows = found["block_node.main", at % 2]
        rows.append((at % 2, len(rows), randomness.randrange(200), key, headers, data))
    return dict(found)


def grow(lake: Lake, rest: dict[Source, list[Row]], randomness: random.Random) -> None:
    """A run that exports a random part of what is left of each partition; sometimes nothing of it."""
    run: dict[str, list[Row]] = defaultdict(list)
    for (stream, partition), rows in rest.items():
        count = randomness.choice((0, 1, len(rows) // 3, len(rows)))
        run[stream] += rows[:count]
        rest[stream, partition] = rows[count:]
    lake.add_run({stream: rows for stream, rows in run.items() if rows})


def compact(lake: Lake) -> None:
    """All files of each stream become one, in the folder of the latest run, as a compaction does it."""
    for stream in {path.parts[-3] for path in lake.folder.rglob("*.parquet")}:
        paths = sorted(lake.folder.glob(f"messages/*/{stream}/*/*.parquet"))
        merged = pa.concat_tables(pq.ParquetFile(path).read() for path in paths)
        for path in paths:
            path.unlink()
        pq.write_table(merged, paths[-1].with_name(f"merged-{lake.runs}.parquet"))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_random_increments_make_the_tables_of_a_rebuild(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("increments")
    randomness = random.Random(seed)
    lake, rest = Lake(folder / "lake"), messages(seed)
    sized = Settings(Topics(TOPICS), step_bytes=randomness.choice((1, 20_000, 10**9)), keep_s=0.0)
    # With a small window increments decide without most of the chain, or find that they need it.
    patch = pytest.MonkeyPatch()
    patch.setattr(known_blocks, "WINDOW", randomness.choice((1, 3, 8, 4096)))
    while any(rest.values()):
        grow(lake, rest, randomness)
        if randomness.random() < 0.3:
            compact(lake)
        if randomness.random() < 0.7 or not any(rest.values()):
            run_pipeline(lake.folder, folder / "out", sized)
            if randomness.random() < 0.5:
                rebuilt = run_pipeline(lake.folder, folder / "anew", CARDINAL, rebuild=True)
                assert all_rows(folder / "out" / "latest") == all_rows(rebuilt.folder)
    rebuilt = run_pipeline(lake.folder, folder / "anew", CARDINAL, rebuild=True)
    assert all_rows(folder / "out" / "latest") == all_rows(rebuilt.folder)
    assert len(list((folder / "out" / "builds").iterdir())) <= 2
    patch.undo()
    shutil.rmtree(folder)


def test_what_increments_must_get_right_is_in_the_messages() -> None:
    """The property above would hold for tables without reorgs, gaps or late values too."""
    found = messages(3)
    assert any(is_reorg_topic(stream) for stream, _ in found)
    assert len({row[1] for row in found["orders", 0]}) < found["orders", 0][-1][1] + 1


@pytest.mark.parametrize("site", sorted(PIPELINE_SITES))
@pytest.mark.parametrize("anew", [False, True], ids=["increment", "rebuild"])
def test_killed_at_a_site_and_run_again(tmp_path: Path, site: str, anew: bool) -> None:
    lake, rest = Lake(tmp_path / "lake"), messages(1)
    randomness = random.Random(2)
    grow(lake, rest, randomness)
    run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
    before = all_rows(tmp_path / "out" / "latest")
    while any(rest.values()):
        grow(lake, rest, randomness)
    rebuilt = run_pipeline(lake.folder, tmp_path / "anew", CARDINAL, rebuild=True)
    expected = all_rows(rebuilt.folder)
    assert before != expected
    arguments = [str(lake.folder), str(tmp_path / "out"), "--cardinal", TOPICS, *(["--rebuild"] if anew else [])]
    killed = subprocess.run(
        [sys.executable, "-W", "error", "-m", "spark_export.pipeline.jobs", *arguments],
        env={**os.environ, ENVIRONMENT_VARIABLE: site},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert all_rows(tmp_path / "out" / "latest") == (expected if site == "pipeline_published" else before)
    run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
    assert all_rows(tmp_path / "out" / "latest") == expected


def test_a_reader_keeps_the_version_that_it_resolved(tmp_path: Path) -> None:
    lake, rest = Lake(tmp_path / "lake"), messages(4)
    randomness = random.Random(5)
    grow(lake, rest, randomness)
    opened = run_pipeline(lake.folder, tmp_path / "out", CARDINAL).folder
    before = all_rows(opened)
    while any(rest.values()):
        grow(lake, rest, randomness)
        run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
    assert (tmp_path / "out" / "latest").resolve() != opened
    assert all_rows(opened) == before


def test_eras_and_a_range_that_comes_late(tmp_path: Path) -> None:
    """A stream made anew repeats its indexes; a repaired range lies below what was taken."""
    lake = Lake(tmp_path / "lake")
    lake.add_run({"orders": [(0, index, index, None, [], b"old") for index in (0, 1, 5, 6)]})
    run_pipeline(lake.folder, tmp_path / "out", Settings())
    tables = tmp_path / "out" / "latest"
    (gap,) = read_rows(tables, "gold/index_gaps")
    assert (gap["first"], gap["last"], gap["missing"], gap["era"]) == (2, 4, 3, 0)
    assert (gap["after"].timestamp(), gap["before"].timestamp()) == (BASE_US / 1e6 + 1, BASE_US / 1e6 + 5)
    lake.write(1, "orders", [(0, index, index, None, [], b"late") for index in (2, 3, 4)], name="repaired")
    lake.add_run({"orders": [(0, index, 60 + index, None, [], b"new") for index in range(3)]}, {"orders": 1})
    assert run_pipeline(lake.folder, tmp_path / "out", Settings()).rows == 6
    assert read_rows(tables, "gold/index_gaps") == []
    found = sorted((row["era"], row["index"], row["text"]) for row in read_rows(tables, "silver/messages"))
    assert found == [
        *((0, index, "late" if 2 <= index <= 4 else "old") for index in range(7)),
        *((1, index, "new") for index in range(3)),
    ]
    rates = [(row["messages"], row["bytes"]) for row in read_rows(tables, "gold/rates")]
    assert sorted(rates) == [(3, 9), (7, 24)]


def test_many_small_files_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increment, "SMALL_FILES_MAX", 3)
    lake, rest = Lake(tmp_path / "lake"), messages(6)
    randomness = random.Random(7)
    while any(rest.values()):
        grow(lake, rest, randomness)
        run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
        for table in ("silver/messages", "silver/updates"):
            assert len(list((tmp_path / "out" / "latest").resolve().glob(f"{table}/part*"))) <= 4
    rebuilt = run_pipeline(lake.folder, tmp_path / "anew", CARDINAL, rebuild=True)
    assert all_rows(tmp_path / "out" / "latest") == all_rows(rebuilt.folder)


def test_other_settings_are_refused_until_a_rebuild(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.add_run({"orders": [(0, 0, 0, None, [], b"x")]})
    run_pipeline(lake.folder, tmp_path / "out", Settings())
    with pytest.raises(PipelineMismatch, match="built with cardinal=None, and now"):
        run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
    assert run_pipeline(lake.folder, tmp_path / "out", CARDINAL, rebuild=True).rebuilt
    with ExportLock(tmp_path / "out"), pytest.raises(ExportInUse):
        run_pipeline(lake.folder, tmp_path / "out", CARDINAL)


def test_a_flipped_bit_of_an_export_ends_the_run(node: NodeProcess, tmp_path: Path) -> None:
    """Goal: no damaged value becomes silver. Method: a file whose text changed and that Parquet still reads."""
    world = World(tmp_path / "lake", node, "rotten")
    world.push(50)
    world.run()
    path = next((world.folder / "messages").resolve().rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.set_column(table.column_names.index("data"), "data", pa.array([b"x"] * len(table))), path)
    with pytest.raises(ExportError, match="is not what the exporter wrote"):
        run_pipeline(world.folder, tmp_path / "out", Settings())
    assert not (tmp_path / "out" / "latest").exists()


def test_a_real_export_and_another_one_under_its_path(node: NodeProcess, tmp_path: Path) -> None:
    """Increments from another export would pass over messages whose indexes were taken from the first one."""
    world = World(tmp_path / "lake", node, "increments")
    world.push(300)
    world.run()
    assert run_pipeline(world.folder, tmp_path / "out", Settings()).rows == 300
    for _ in range(2):
        world.push(50)
        world.run()
    world.compact()
    report = run_pipeline(world.folder, tmp_path / "out", Settings())
    assert (report.rows, report.rebuilt) == (100, False)
    taken = Counter((row["partition"], row["index"]) for row in read_rows(report.folder, "silver/messages"))
    assert len(taken) == 400
    assert set(taken.values()) == {1}
    assert sum(row["messages"] for row in read_rows(report.folder, "gold/rates")) == 400
    shutil.rmtree(world.folder)
    other = Lake(world.folder)
    other.add_run({"orders": [(0, 0, 0, None, [], b"x")]})
    with pytest.raises(PipelineMismatch, match="built from the export"):
        run_pipeline(world.folder, tmp_path / "out", Settings())
    assert run_pipeline(world.folder, tmp_path / "out", Settings(), rebuild=True).rows == 1


def test_versions_are_whole_for_readers_that_read_while_they_change(tmp_path: Path) -> None:
    """Every message is in one row of rates, and every complete block's updates are there, in each version."""
    lake, rest = Lake(tmp_path / "lake"), messages(8)
    randomness = random.Random(9)
    grow(lake, rest, randomness)
    run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
    done = threading.Event()
    seen: set[Path] = set()

    def read() -> None:
        while not done.is_set():
            tables = (tmp_path / "out" / "latest").resolve()
            rows = len(read_rows(tables, "silver/messages"))
            assert rows == sum(row["messages"] for row in read_rows(tables, "gold/rates"))
            batches = read_rows(tables, "silver/batches")
            keys = sum((row["updates"] or 0) + (row["deletes"] or 0) for row in batches)
            assert keys == len(read_rows(tables, "silver/updates"))
            reorged = sum(row["blocks"] for row in read_rows(tables, "gold/reorgs"))
            assert reorged == sum(row["reorged"] for row in batches)
            seen.add(tables)

    with ThreadPoolExecutor() as pool:
        reading = [pool.submit(read) for _ in range(2)]
        while any(rest.values()):
            grow(lake, rest, randomness)
            run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
        done.set()
        for each in reading:
            each.result()
    assert seen


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(tmp_path / "lake")
    lake.add_run({"orders": [(0, 0, 0, None, [], b"x")]})
    assert main([str(lake.folder), str(tmp_path / "out")]) == 0
    assert '"rows": 1' in capsys.readouterr().out
    out = str(tmp_path / "out")
    for arguments, says in (
        ([str(tmp_path / "none"), out], "holds no table"),
        ([str(lake.folder), out, "--cardinal", "("], "no regular expression"),
        ([str(lake.folder), out, "--cardinal", "a", "--start", "0x12"], "64 hex digits"),
        ([str(lake.folder), out, "--start", "12" * 32], "give it too"),
        ([str(lake.folder), out, "--cardinal", "(a|b)-.*", "--start", "12" * 32], "write it as CHAIN=HASH"),
        ([str(lake.folder), out, "--cardinal", "a", "--start", "a=" + "12" * 32], "write it as HASH"),
        ([str(lake.folder), out, "--cardinal", "(a)", *(["--start", "a=" + "12" * 32] * 2)], "already"),
        ([str(lake.folder), out, "--cardinal", "a"], "--rebuild"),
        (["s3://bucket/lake", out], "no object stores"),
        ([str(lake.folder), "ftp://host/out"], "nothing serves ftp"),
    ):
        assert main(arguments) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert says in line


def test_an_empty_export_has_empty_tables(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    report = run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
    found = all_rows(report.folder)
    assert set(found) >= {"silver/messages", "silver/updates", "gold/reorgs", "gold/block_gaps"}
    assert not any(found.values())
    assert issubclass(PipelineMismatch, ExportError)
