"""Goal: Delta and Iceberg tables on a store have each message once, whoever is killed and whoever else writes.

Method: runs against a real S3 server, killed with SIGKILL at each named site; a second exporter that commits while the
first one is about to; a proxy that loses answers. The tables are read by deltalake and pyiceberg, and compared with a
pull from the node.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.exporter.history import history_of
from spark_export.exporter.upkeep import forget
from spark_export.tables.errors import ExportError, TableRefused
from stream_storage.failpoint import EXPORT_SITES
from tests.spark_export.exporter.test_other_programs import written
from tests.spark_export.store.store_world import StoreWorld

USUAL = {"before_commit", "committed"}
RUN_SITES = [
    pytest.param(site, marks=() if site in USUAL else pytest.mark.soak)
    for site in sorted(EXPORT_SITES - {"rewrite_written", "rewritten"})
]
BEFORE_COMMIT = {"planned", "writing", "tasks_done", "before_commit"}


def test_runs_compactions_and_forgetting_add_up(stored: StoreWorld) -> None:
    for count in (300, 1, 40):
        stored.push(count)
        assert stored.run().rows == count
        stored.assert_whole()
    assert stored.run().run_id is None
    assert len(stored.data_files()) == 3
    assert stored.compact().merged == 3
    stored.assert_whole()
    assert len(stored.data_files()) == 4, "readers of an earlier version still find its files"
    stored.push(10, key=b"k")
    stored.run()
    stored.assert_whole()
    before = stored.rows()
    done = forget(stored.log(), history_of(stored.settings.place()), stored.stream, b"k", keep_s=0.0)
    assert done["rows"] == 10
    left = stored.rows()
    assert (len(left), set(left) < set(before)) == (341, True)
    assert stored.verify().problems == ()
    assert [each.rows for each in history_of(stored.settings.place()).load_runs(9)] == [10, 40, 1, 300]


@pytest.mark.parametrize("site", RUN_SITES)
def test_killed_at_a_site_and_run_again(stored: StoreWorld, site: str) -> None:
    stored.push(300)
    stored.run()
    before = stored.rows()
    stored.push(20_000 if site == "writing" else 300, size=1_000)
    killed = stored.child("run", site=site)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert stored.rows() == (before if site in BEFORE_COMMIT else stored.stored())
    stored.push(7)
    stored.run()
    stored.assert_whole()


def test_a_slower_exporter_changes_nothing(stored: StoreWorld) -> None:
    """Goal: two commits of the same positions: the store, or the catalog, lets one of them win."""
    stored.push(50, partitions=1)
    first, second = stored.settings.open_log(), stored.settings.open_log()
    one, other = written(stored, first, 0, 20), written(stored, second, 0, 30)
    first.append(*one)
    with pytest.raises(ExportError, match="has them up to 20"):
        second.append(*other)
    second.abandon(other[0], other[1].files)
    assert stored.run().rows == 30
    stored.assert_whole()
    assert len(stored.data_files()) == 2, "nothing is left of the slower one"


def test_a_table_needs_no_options_again_but_those_of_the_store(stored: StoreWorld) -> None:
    stored.push(5)
    stored.run()
    stored.push(5)
    assert stored.run(format=None, catalog=None).rows == 5
    stored.assert_whole()


def test_plain_parquet_on_a_store_is_refused_with_a_sentence(stored: StoreWorld) -> None:
    with pytest.raises(TableRefused, match="exported into folders only"):
        stored.run(format="parquet", catalog=None)
    with pytest.raises(TableRefused, match="needs a catalog: --catalog NAME"):
        stored.run(format="iceberg", catalog=None)


def test_a_store_that_is_away_is_told_in_one_line(stored: StoreWorld, tmp_path: Path) -> None:
    stored.push(5)
    stored.through("http://127.0.0.1:9")
    with pytest.raises(ExportError) as raised:
        stored.run()
    assert "\n" not in str(raised.value)
