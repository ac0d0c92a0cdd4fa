"""Goal: Delta and Iceberg tables on a store have each message once, whoever is killed and whoever else writes.

Method: runs against a real S3 server, killed with SIGKILL at each named site; a second exporter takes over while the
first one is about to publish; the tables are read by deltalake and pyiceberg, and compared with a pull from the node.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from spark_export.exporter.errors import ExportError, TakenOver
from spark_export.exporter.failpoint import SITES
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.tables.table_readers import LIBRARIES
from tests.spark_export.store.log_world import LogWorld
from tests.support.s3_server import S3Server

RUN_SITES = sorted(site for site in SITES if not site.startswith("compact") and site != "between_turn_and_ledger")
COMPACTION_SITES = ["compact_planned", "compact_written", "between_turn_and_ledger"]
BEFORE_PUBLICATION = {"planned", "writing", "tasks_done", "written"}


@pytest.fixture(params=["delta", "iceberg"])
def world(
    s3_server: S3Server,
    shared_node: NodeProcess,
    s3_environment: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> LogWorld:
    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    name = str(request.node.name)
    bucket = re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-")
    return LogWorld(s3_server, s3_server.make_bucket(bucket), shared_node, name, request.param, tmp_path)


def test_runs_and_compactions_add_up(world: LogWorld) -> None:
    for count in (300, 1, 40):
        world.push(count)
        assert world.run().rows == count
        world.assert_whole()
    assert world.run().run_id is None
    assert len(world.data_files()) == 3
    done = world.compact()
    assert (done.files_before, done.files_after, done.rows) == (3, 1, 341)
    world.assert_whole()
    assert len(world.data_files()) == 4, "readers of an earlier version still find its files"
    world.push(10)
    world.run()
    world.assert_whole()
    assert world.command("verify")[0] == 0
    assert world.command("compact", "--keep", "0s")[0] == 0
    world.assert_whole()


@pytest.mark.parametrize(
    "site",
    [
        "between_publish_and_ledger",
        "written",
        *(
            pytest.param(each, marks=pytest.mark.soak)
            for each in RUN_SITES
            if each not in ("between_publish_and_ledger", "written")
        ),
    ],
)
def test_killed_at_a_site_and_run_again(world: LogWorld, site: str) -> None:
    world.push(300)
    world.run()
    before = world.rows()
    # Enough for tasks to be seen writing before they are done.
    world.push(60_000 if site == "writing" else 300, size=1_000)
    code, _, err = world.command("run", site=site)
    assert code == -signal.SIGKILL, err
    assert world.rows() == (before if site in BEFORE_PUBLICATION else world.stored())
    world.push(7)
    world.run()
    world.assert_whole()
    world.run()
    assert len(world.data_files()) == world.verify().files, "nothing is left of runs that were abandoned"


@pytest.mark.parametrize(
    "site", ["between_turn_and_ledger", *(pytest.param(each, marks=pytest.mark.soak) for each in COMPACTION_SITES[:2])]
)
def test_a_compaction_killed_at_a_site(world: LogWorld, site: str) -> None:
    for _ in range(3):
        world.push(50)
        world.run()
    code, _, err = world.command("compact", site=site)
    assert code == -signal.SIGKILL, err
    assert world.rows() == world.stored()
    world.push(5)
    world.run()
    world.compact()
    world.assert_whole()


@pytest.mark.parametrize("lost", [False, True])
def test_a_paused_exporter_publishes_nothing_after_another_took_over(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Method: at the first exporter's commit, a second one runs to its end, as if the first had been paused there.

    lost: whether the run's files are removed meanwhile, so that the second exporter has to export the messages again.
    """
    world.push(100)
    world.run()
    world.push(100)
    from spark_export.exporter.tables import store_flat_table

    original = store_flat_table.StoreFlatTable.publish
    state: dict[str, Any] = {"paused": False}

    def publish(table: Any, run_id: int, entries: Any, ranges: Any = ()) -> None:
        if not state["paused"]:
            state["paused"] = True
            if lost:
                world.reader.delete([name for name in world.data_files() if f"run-{run_id:06d}" in name])
            code, _, err = world.command("run")
            assert code == 0, err
        original(table, run_id, entries, ranges)

    with monkeypatch.context() as patch:
        patch.setattr(store_flat_table.StoreFlatTable, "publish", publish)
        with pytest.raises(ExportError, match="taken over"):
            world.run()
    assert world.rows() == world.stored()
    world.push(3)
    world.run()
    world.assert_whole()


def test_a_commit_that_is_under_way_fails_when_the_run_is_given_up(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the first exporter has opened the table's log, and the second one gives the run up before the commit."""
    from spark_export.exporter.tables.store_flat_table import StoreFlatTable

    world.push(50)
    world.run()
    world.push(50)
    assert world.command("run", site="written")[0] == -signal.SIGKILL

    async def main(exporter: Any) -> None:
        table = exporter._table
        assert isinstance(table, StoreFlatTable)
        (run,) = await exporter._ledger.load_unfinished()
        entries = await exporter._ledger.load_run_files(run.run_id)
        original = type(table)._begin

        def begin(each: Any) -> Any:
            opened = original(each)
            monkeypatch.setattr(each, "_begin", lambda: original(each))
            each.discard(run.run_id, entries)
            return opened

        monkeypatch.setattr(table, "_begin", lambda: begin(table))
        with pytest.raises(TakenOver):
            table.publish(run.run_id, entries)

    world.with_exporter(main)
    assert len(world.rows()) == 50


def test_another_writers_commit_is_kept(world: LogWorld) -> None:
    """Goal: a program that changes the table's properties meanwhile loses nothing, and hinders nothing."""
    world.push(20)
    world.run()
    if world.format == "delta":
        deltalake = pytest.importorskip("deltalake")
        options = {"AWS_ENDPOINT_URL": world.server.endpoint, "AWS_ALLOW_HTTP": "true"}
        table = deltalake.DeltaTable(f"{world.place}/messages", storage_options=options)
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    else:
        catalog = pytest.importorskip("pyiceberg.catalog").load_catalog(
            "stream_node", type="sql", **{"s3.endpoint": world.server.endpoint}, **world.catalog
        )
        with catalog.load_table("export.messages").transaction() as change:
            change.set_properties({"owner": "someone"})
        catalog.close()
    world.push(20)
    world.run()
    world.assert_whole()


@pytest.mark.parametrize("world", ["iceberg"], indirect=True)
def test_files_of_published_runs_outlive_a_rollback(world: LogWorld) -> None:
    """Goal: no command removes a file of a published run that the table no longer lists, or lists it again.

    Method: pyiceberg puts the table back by two runs, and forgets their snapshots; the node has the messages no more.
    """
    for _ in range(3):
        world.push(40)
        world.run()
    catalog = pytest.importorskip("pyiceberg.catalog").load_catalog(
        "stream_node", type="sql", **{"s3.endpoint": world.server.endpoint}, **world.catalog
    )
    table = catalog.load_table("export.messages")
    first, *later = [each.snapshot_id for each in sorted(table.snapshots(), key=lambda each: each.sequence_number)]
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    table.maintenance.expire_snapshots().by_ids(later).commit()
    catalog.close()
    with world.client() as client:
        for part in client.get_stream(world.stream).partitions:
            part.truncate(60)
    world.push(10)
    world.run()
    assert len(world.rows()) == 50
    code, out, err = world.command("repair", "--json", "--node", world.node.address)
    assert (code, out) == (1, "")
    assert "another program has changed the table" in err
    assert len(world.rows()) == 50
    assert not any("is missing" in problem for problem in world.verify().problems)
