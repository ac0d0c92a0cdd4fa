"""Goal: a task that does not see its folder says so in one line that names the machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import FolderNotSeen
from spark_export.exporter.model import ExportTask
from spark_export.exporter.runs.task import TaskSettings, run_task


def test_a_folder_that_an_executor_does_not_see(tmp_path: Path) -> None:
    with pytest.raises(FolderNotSeen) as told:
        run_task(ExportTask(0, ()), TaskSettings({}, folder=str(tmp_path / "elsewhere")))
    said = str(told.value)
    assert socket.gethostname() in said
    assert f"does not see {tmp_path / 'elsewhere'}" in said
    assert "\n" not in said
