"""Goal: an export on a store that an earlier version wrote goes on with this one, as those in folders do.

Method: buckets that the last version with a ledger wrote into moto's server (commit cf781f0d, three runs), with the
database of their node, which `tests/spark_export/exporter/test_migrate.py` uses, too.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

from pyarrow import fs

from spark_export.exporter.node_side import Selection
from stream_node.node.process import NodeProcess
from tests.cli.promised import promised
from tests.spark_export.exporter.export_world import COLUMNS, Row, read_delta, rows_of
from tests.spark_export.exporter.test_migrate import STREAMS, VECTORS, unpack
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import CREDENTIALS, S3Server


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
        with tarfile.open(VECTORS / f"earlier_store_{was}.tar.gz") as archive:
            for each in archive:
                file = archive.extractfile(each)
                assert file is not None
                with bucket.open_output_stream(each.name) as stream:
                    stream.write(file.read())

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
