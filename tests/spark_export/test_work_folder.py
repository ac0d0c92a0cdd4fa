"""Goal: temporary files of a killed process and its Spark do not stay for ever, and those of others are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_export.session import WORK_FOLDER_PREFIX, work_folder

CHILD = "from spark_export.session import work_folder; print(work_folder(), flush=True); input()"


def child(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", CHILD]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def made_by(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """Method: of two processes one is killed. A third one removes that one's folder alone, and its own at its end."""
    (tmp_path / f"{WORK_FOLDER_PREFIX}file").write_text("not a folder")
    (tmp_path / "somebody").mkdir()
    with child(tmp_path) as alive, child(tmp_path) as killed:
        folders = made_by(alive), made_by(killed)
        (folders[1] / "blockmgr" / "00").mkdir(parents=True)
        killed.kill()
        killed.wait()
        assert all(each.is_dir() for each in folders)
        with child(tmp_path) as third:
            own = made_by(third)
            assert [each.is_dir() for each in (*folders, own)] == [True, False, True]
            third.communicate("\n")
        assert not own.exists()
        alive.communicate("\n")
    assert {each.name for each in tmp_path.iterdir()} == {f"{WORK_FOLDER_PREFIX}file", "somebody"}


@pytest.mark.spark
def test_java_uses_the_folder(spark: Any) -> None:
    """Method: Java itself is asked, and the files of its Spark are there."""
    folder = spark.sparkContext._jvm.java.lang.System.getProperty("java.io.tmpdir")
    assert folder == str(work_folder())
    assert list(work_folder().glob("blockmgr-*"))
