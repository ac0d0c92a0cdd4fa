"""Goal: the tables are those of a full rebuild, row by row, however the messages were cut into increments.

Method: the table of an export that grows by random cuts of every partition, in each format, with compactions between
them, and kills at each site.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cardinal_streams.produce.simulation_machine import SimulationOptions, simulate
from cardinal_streams.transports.transport import is_reorg_topic
from spark_export.pipeline import canon, outputs
from spark_export.pipeline.bronze import BronzeTable
from spark_export.pipeline.run import Pipeline
from spark_export.pipeline.silver_cardinal import Topics
from spark_export.pipeline.step import Settings
from spark_export.tables.errors import ExportError, TableRefused
from stream_storage.failpoint import ENVIRONMENT_VARIABLE, PIPELINE_SITES
from tests.spark_export.pipeline.lake import BASE_US, Lake, Row, all_rows, read_rows
from tests.spark_export.pipeline.makers import block_messages, odd_chain

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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


# A smaller seed is no simpler one, so that nothing is to be shrunk.
@pytest.mark.timeout(1800)
@settings(
    max_examples=2,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 10**6))
def test_random_increments_make_the_tables_of_a_rebuild(
    session: Any, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("increments")
    randomness = random.Random(seed)
    lake, rest = Lake(folder / "lake", randomness.choice(("parquet", "delta"))), messages(seed)
    step_rows = randomness.choice((60, 10**6))
    # With a small window increments decide without most of the chain, or find that they need it.
    patch = pytest.MonkeyPatch()
    patch.setattr(canon, "WINDOW", randomness.choice((1, 3, 8, 4096)))
    patch.setattr(outputs, "SMALL_FILES_MAX", randomness.choice((2, 64)))
    while any(rest.values()):
        grow(lake, rest, randomness)
        if randomness.random() < 0.3:
            lake.log.compact()
        if randomness.random() < 0.7 or not any(rest.values()):
            Pipeline(lake.table, folder / "out", CARDINAL, step_rows=step_rows).run(session)
    Pipeline(lake.table, folder / "anew", CARDINAL).run(session)
    assert all_rows(folder / "out") == all_rows(folder / "anew")
    patch.undo()
    shutil.rmtree(folder)


def test_what_increments_must_get_right_is_in_the_messages() -> None:
    """The property above would hold for tables without reorgs, gaps or late values too."""
    found = messages(3)
    assert any(is_reorg_topic(stream) for stream, _ in found)
    assert len({row[1] for row in found["orders", 0]}) < found["orders", 0][-1][1] + 1


CHILD = """
import sys
from pathlib import Path
from spark_export import open_session
from spark_export.pipeline.bronze import BronzeTable
from spark_export.pipeline.run import Pipeline
from spark_export.pipeline.step import Settings
from spark_export.pipeline.silver_cardinal import Topics
spark = open_session("local[1]", config={"spark.sql.shuffle.partitions": "1"})
Pipeline(BronzeTable(sys.argv[1]), Path(sys.argv[2]), Settings(Topics(sys.argv[3]))).run(spark)
"""


@pytest.fixture(scope="module")
def grown(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that has grown since the tables in `out` were made, and those of a rebuild in `anew`."""
    folder, rest, randomness = tmp_path_factory.mktemp("grown"), messages(1), random.Random(2)
    lake = Lake(folder / "lake")
    grow(lake, rest, randomness)
    Pipeline(lake.table, folder / "out", CARDINAL).run(session)
    while any(rest.values()):
        grow(lake, rest, randomness)
    Pipeline(lake.table, folder / "anew", CARDINAL).run(session)
    return folder


@pytest.mark.soak
@pytest.mark.parametrize("site", sorted(PIPELINE_SITES))
def test_killed_at_a_site_and_run_again(session: Any, grown: Path, tmp_path: Path, site: str) -> None:
    """Until a step is published, readers have the tables before it; the next run makes those of a rebuild."""
    lake, out = grown / "lake", tmp_path / "out"
    shutil.copytree(grown / "out", out)
    before, expected = all_rows(out), all_rows(grown / "anew")
    assert before != expected
    killed = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(lake), str(out), TOPICS],
        env={**os.environ, ENVIRONMENT_VARIABLE: site},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert all_rows(out) == (expected if site == "pipeline_published" else before)
    Pipeline(BronzeTable(str(lake)), out, CARDINAL).run(session)
    assert all_rows(out) == expected


def test_a_step_that_failed_between_two_tables_leaves_nothing(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a step that was not published does not count twice. Method: the publication fails; then it works."""
    lake = Lake(tmp_path / "lake")
    lake.add_run({"orders": [(0, index, index, None, [], b"old") for index in range(3)]})
    Pipeline(lake.table, tmp_path / "out", Settings()).run(session)
    before = all_rows(tmp_path / "out")
    lake.add_run({"orders": [(0, index, index, None, [], b"new") for index in range(3, 6)]})
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "write_durably", lambda *given: (_ for _ in ()).throw(ExportError("no room")))
        with pytest.raises(ExportError, match="no room"):
            Pipeline(lake.table, tmp_path / "out", Settings()).run(session)
    assert all_rows(tmp_path / "out") == before
    assert Pipeline(lake.table, tmp_path / "out", Settings()).run(session).rows == 3
    found = sorted((row["index"], row["text"]) for row in read_rows(tmp_path / "out", "silver/messages"))
    assert found == [*((index, "old") for index in range(3)), *((index, "new") for index in range(3, 6))]
    assert sum(row["messages"] for row in read_rows(tmp_path / "out", "gold/rates")) == 6


def test_a_stream_made_anew_and_a_partition_added(session: Any, tmp_path: Path) -> None:
    """A stream made anew repeats its indexes. What retention took is a gap."""
    lake, out = Lake(tmp_path / "lake"), tmp_path / "out"
    lake.add_run({"orders": [(0, index, index, None, [], b"old") for index in (0, 1, 5, 6)]})
    Pipeline(lake.table, out, Settings()).run(session)
    (gap,) = read_rows(out, "gold/index_gaps")
    assert (gap["first"], gap["last"], gap["missing"], gap["era"]) == (2, 4, 3, 0)
    assert (gap["after"].timestamp(), gap["before"].timestamp()) == (BASE_US / 1e6 + 1, BASE_US / 1e6 + 5)
    lake.add_run({"orders": [(1, index, index, None, [], b"more") for index in range(2)]})
    lake.add_run({"orders": [(0, index, 60 + index, None, [], b"new") for index in range(3)]}, {"orders": 1})
    assert Pipeline(lake.table, out, Settings()).run(session).rows == 5
    found = sorted(
        (row["era"], row["partition"], row["index"], row["text"]) for row in read_rows(out, "silver/messages")
    )
    assert found == [
        *((0, 0, index, "old") for index in (0, 1, 5, 6)),
        *((0, 1, index, "more") for index in range(2)),
        *((1, 0, index, "new") for index in range(3)),
    ]
    rates = [(row["messages"], row["bytes"]) for row in read_rows(out, "gold/rates")]
    assert sorted(rates) == [(3, 9), (6, 20)]


def test_rows_that_others_removed_and_rewrote(session: Any, tmp_path: Path) -> None:
    """Goal: a pipeline reads a table as its log says. Method: deltalake deletes rows that were not read yet, and
    rewrites all files; what was read before stays."""
    from deltalake import DeltaTable

    lake, out = Lake(tmp_path / "lake", "delta"), tmp_path / "out"
    lake.add_run({"a b/c": [(0, index, index, None, [], b"%d" % index) for index in range(4)]})
    Pipeline(lake.table, out, Settings()).run(session)
    lake.add_run({"a b/c": [(0, index, index, None, [], b"%d" % index) for index in range(4, 8)]})
    table = DeltaTable(lake.log.address)
    table.delete("index IN (1, 5)")
    table.optimize.compact()
    assert Pipeline(lake.table, out, Settings()).run(session).rows == 3
    assert sorted(row["index"] for row in read_rows(out, "silver/messages")) == [0, 1, 2, 3, 4, 6, 7]
    Pipeline(lake.table, out, Settings()).run(session, rebuild=True)
    assert sorted(row["index"] for row in read_rows(out, "silver/messages")) == [0, 2, 3, 4, 6, 7]


def test_other_settings_and_exports_are_refused_until_a_rebuild(session: Any, tmp_path: Path) -> None:
    """Increments from another export would pass over messages whose indexes were taken from the first one."""
    lake, out = Lake(tmp_path / "lake"), tmp_path / "out"
    lake.add_run({"orders": [(0, 0, 0, None, [], b"x")]})
    Pipeline(lake.table, out, Settings()).run(session)
    with pytest.raises(TableRefused, match="built with cardinal=None, and now"):
        Pipeline(lake.table, out, CARDINAL).run(session)
    assert Pipeline(lake.table, out, CARDINAL).run(session, rebuild=True).rebuilt
    other = Lake(tmp_path / "other")
    with pytest.raises(TableRefused, match="built from the export"):
        Pipeline(other.table, out, CARDINAL).run(session)
    with pytest.raises(TableRefused, match="holds no table"):
        Pipeline(BronzeTable(str(tmp_path / "none")), out, CARDINAL).run(session)
    with Pipeline(lake.table, out, CARDINAL).alone(), pytest.raises(TableRefused, match="another pipeline works"):
        Pipeline(lake.table, out, CARDINAL).run(session)


def test_a_damaged_page_of_an_export_ends_the_run(session: Any, tmp_path: Path) -> None:
    """Goal: no damaged value becomes silver. Method: a flipped bit in the data of a message."""
    lake, out = Lake(tmp_path / "lake"), tmp_path / "out"
    lake.add_run({"orders": [(0, 0, 0, None, [], b"a message to be found")]})
    Pipeline(lake.table, out, Settings()).run(session)
    lake.add_run({"orders": [(0, 1, 1, None, [], random.Random(1).randbytes(1_000))]})
    path = max((lake.folder / "messages").resolve().rglob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[content.index(random.Random(1).randbytes(1_000)[100:116])] ^= 1
    path.write_bytes(content)
    with pytest.raises(ExportError, match="missing or damaged"):
        Pipeline(lake.table, out, Settings()).run(session)
    assert len(read_rows(out, "silver/messages")) == 1


def test_an_empty_export_has_empty_tables(session: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    Pipeline(lake.table, tmp_path / "out", CARDINAL).run(session)
    found = all_rows(tmp_path / "out")
    assert set(found) >= {"silver/messages", "silver/updates", "gold/reorgs", "gold/block_gaps"}
    assert not any(found.values())
    lake.add_run({"orders": [(0, 0, 0, None, [], b"x")]})
    assert Pipeline(lake.table, tmp_path / "out", CARDINAL).run(session).rows == 1
