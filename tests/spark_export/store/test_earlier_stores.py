"""Goal: an export on a store that an earlier version wrote goes on with this one, as those in folders do.

Method: buckets that the last version with a ledger wrote into moto's server (commit cf781f0d, three runs), with the
database of their node, which `tests/spark_export/exporter/test_migrate.py` uses, too.
"""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

from pyarrow import fs

from spark_export.exporter.history import ExportHistory
from spark_export.exporter.migrate import migrate
from spark_export.exporter.node_side import Selection
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.delta import DeltaLog
from spark_export.tables.errors import EarlierVersion, TableRefused
from spark_export.tables.log import open_table
from stream_node.node.process import NodeProcess
from tests.cli.promised import promised
from tests.spark_export.exporter.export_world import COLUMNS, Row, read_delta, rows_of
from tests.spark_export.exporter.test_migrate import STREAMS, VECTORS, unpack
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import CREDENTIALS, S3Server


def fill(bucket: fs.FileSystem, was: str) -> None:
    """Puts the export of an earlier version into a bucket."""
    with tarfile.open(VECTORS / f"earlier_store_{was}.tar.gz") as archive:
        for each in archive:
            file = archive.extractfile(each)
            assert file is not None
            with bucket.open_output_stream(each.name) as stream:
                stream.write(file.read())


def test_a_migration_that_ends_early_lets_nothing_be_exported_again(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: after a migration of plain Parquet that failed, a run is refused as before, and migrating again succeeds.

    Method: a ledger without one of the runs in the table, which is refused; then the empty Delta table that a kill
    between its creation and the first commit leaves, beside the whole ledger.
    """
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bucket = fs.SubTreeFileSystem(
        s3_server.make_bucket("earlier-refused"),
        fs.S3FileSystem(scheme="http", endpoint_override=s3_server.address),
    )
    fill(bucket, "parquet")
    place, options = parse_place("s3://earlier-refused/a/lake"), {"endpoint": s3_server.endpoint}
    given: Any = (place, options, None, ExportHistory(tmp_path / "history.sqlite"))
    ledger, stored = tmp_path / "ledger.sqlite", "a/lake/_export/ledger.sqlite"
    with bucket.open_input_stream(stored) as file:
        whole = file.read()
    ledger.write_bytes(whole)
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("DELETE FROM ranges WHERE run_id = 3")
        connection.commit()
    with bucket.open_output_stream(stored) as file:
        file.write(ledger.read_bytes())
    before = {each.path for each in bucket.get_file_info(fs.FileSelector("a/lake", recursive=True))}
    with pytest.raises(TableRefused, match="has not the rows of its ledger"):
        migrate(*given)
    assert {each.path for each in bucket.get_file_info(fs.FileSelector("a/lake", recursive=True))} == before
    with bucket.open_output_stream(stored) as file:
        file.write(whole)
    DeltaLog(place, options, whole=True).create(ROWS)
    with pytest.raises(EarlierVersion, match="stream-node export migrate"):
        open_table(place, options=options).load()
    assert migrate(*given)["rows"] == 39
    assert open_table(place, options=options).load().run == 3


@pytest.mark.parametrize(("was", "table"), [("delta", "/messages"), ("parquet", "")])
def test_an_earlier_export_on_a_store_goes_on(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, table: str
) -> None:
    """Goal: the rows stay, none is exported again, and the ledger is put away. Plain Parquet becomes Delta."""
    for name, value in {**CREDENTIALS, "XDG_STATE_HOME": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    with NodeProcess(unpack("node", tmp_path / "data"), arguments=("--log-level", "error")) as node:
        world = StoreWorld(s3_server, s3_server.make_bucket(f"earlier-{was}"), node, STREAMS[0], "delta", tmp_path)
        world.settings = replace(world.settings, format=None, selection=Selection(STREAMS))
        bucket = fs.SubTreeFileSystem(
            f"earlier-{was}", fs.S3FileSystem(scheme="http", endpoint_override=s3_server.address)
        )
        fill(bucket, was)

        def rows() -> list[Row]:
            options = {"AWS_ENDPOINT_URL": s3_server.endpoint, "AWS_ALLOW_HTTP": "true", **CREDENTIALS}
            return rows_of(read_delta(f"{world.address}{table}", COLUMNS, storage_options=options))

        refused = world.child("run", "--stream", STREAMS[0])
        assert (refused.returncode, "stream-node export migrate" in refused.stderr) == (1, True), refused.stderr
        done = world.child("migrate")
        assert done.returncode == 0, done.stderr
        report = msgspec.json.decode(done.stdout, type=promised.Migrated)
        assert (report.rows, report.partitions, report.runs, report.format) == (39, 3, 3, "delta")
        assert rows() == world.stored(STREAMS)
        files = {each.path for each in bucket.get_file_info(fs.FileSelector("a/lake/_export"))}
        assert {"a/lake/_export/ledger.sqlite", "a/lake/_export/ledger.sqlite.migrated"} & files == {
            "a/lake/_export/ledger.sqlite.migrated"
        }
        assert world.run().run_id is None, "nothing is exported again"
        world.push(5)
        assert (world.run().rows, rows()) == (5, world.stored(STREAMS))
        verdict = world.verify()
        assert (verdict.problems, verdict.removed, verdict.rows, verdict.compared) == ((), 0, 44, 44)
        again = world.child("migrate")
        assert (again.returncode, "there is no export of an earlier version" in again.stderr) == (1, True)
        assert node.stop() == 0
