"""Goal: Delta and Iceberg tables have each message once too, and their own readers agree.

Method: runs, and crashes around the publication, in a child process; each table is read by its own library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.failpoint import ENVIRONMENT_VARIABLE
from tests.spark_export.exporter.export_world import World

Rows = list[tuple[str, int, int, bytes]]
COLUMNS = ["stream", "partition", "index", "data"]


def read_delta(folder: Path) -> Any:
    return pytest.importorskip("deltalake").DeltaTable(str(folder / "messages")).to_pyarrow_table(columns=COLUMNS)


def read_iceberg(folder: Path) -> Any:
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = catalogs.SqlCatalog(
        "stream-node", uri=f"sqlite:///{folder / 'catalog.sqlite'}", warehouse=f"file://{folder}"
    )
    try:
        return catalog.load_table("export.messages").scan(selected_fields=tuple(COLUMNS)).to_arrow()
    finally:
        catalog.close()


READERS = {"delta": read_delta, "iceberg": read_iceberg}


@pytest.fixture(params=READERS)
def table_format(request: pytest.FixtureRequest, world: World) -> str:
    library = {"delta": "deltalake", "iceberg": "pyiceberg"}[request.param]
    pytest.importorskip(library, reason=f"the extra `{request.param}` is not installed")
    world.settings = replace(world.settings, format=request.param)
    return str(request.param)


def rows(world: World) -> Rows:
    table = READERS[world.settings.format](world.folder).select(COLUMNS)
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def assert_whole(world: World) -> None:
    assert rows(world) == world.stored()
    assert world.verify().problems == ()


def test_runs_add_up(world: World, table_format: str) -> None:
    world.push(300)
    assert world.run().rows == 300
    world.push(30, partitions=3)
    assert (world.run().rows, world.run().run_id) == (30, None)
    assert_whole(world)


@pytest.mark.parametrize(
    "site",
    [
        "between_publish_and_ledger",
        *(pytest.param(site, marks=pytest.mark.soak) for site in ("tasks_done", "written", "published")),
    ],
)
def test_a_crash_around_the_publication_is_harmless(world: World, table_format: str, site: str) -> None:
    world.push(50)
    world.run()
    world.push(50)
    before = rows(world)
    command = [sys.executable, "-m", "stream_node", "export", "run", str(world.folder), "--node", world.node.address]
    command += ["--stream", world.stream, "--master", "inline", "--format", table_format]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: site}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rows(world) == (before if site in ("tasks_done", "written") else world.stored())
    world.push(5)
    world.run()
    assert_whole(world)


def test_a_crash_between_moving_the_files_and_the_log(world: World, table_format: str) -> None:
    """Some files have their last place and the log names none: the run is published with them."""
    world.push(50)
    world.run()
    world.push(50)
    command = [sys.executable, "-m", "stream_node", "export", "run", str(world.folder), "--node", world.node.address]
    command += ["--stream", world.stream, "--master", "inline", "--format", table_format]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: "written"}
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    (staged,) = (world.folder / "staging").rglob("*.parquet")
    data = world.folder / "messages" / ("data" if table_format == "iceberg" else "")
    staged.rename(data / staged.name)
    assert len(rows(world)) == 50
    assert world.run().run_id is None
    assert_whole(world)
