"""The files that `export files` lists. Tables on stores: `tests/spark_export/store/test_store_runs.py`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import ExportMismatch
from spark_export.tables.table_listing import table_files
from tests.cli.command import CommandLine
from tests.cli.promised import promised

FILE = "run=000001/stream=a/date=2026-01-01/part-00000.parquet"


def test_the_files_of_a_folder_are_listed(command: CommandLine, tmp_path: Path) -> None:
    """Method: the folder is made by hand, so nothing else tells which files it has."""
    file = tmp_path / "messages" / FILE
    file.parent.mkdir(parents=True)
    file.touch()
    assert table_files(str(tmp_path)) == [str(file)]
    said = command("export", "files", tmp_path, "--json")
    assert msgspec.json.decode(said.stdout, type=promised.FileRow) == promised.FileRow(str(file))


@pytest.mark.parametrize("log", ["_delta_log", "metadata"])
def test_files_of_other_formats_are_not_listed(tmp_path: Path, log: str) -> None:
    """Goal: a file that a Delta or Iceberg table has dropped is not taken for one of the table."""
    (tmp_path / "messages" / log).mkdir(parents=True)
    (tmp_path / "messages" / "stale.parquet").touch()
    with pytest.raises(ExportMismatch, match="a reader of that format"):
        table_files(str(tmp_path))
