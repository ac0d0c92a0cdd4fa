"""What `tests/conftest.py` does to a run as a whole, seen on a folder of planted tests: nothing of ours is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG_SCOPES, SPARK_SCOPES, forks_processes
from tests.style.tree import ROOT, plant

NOTE = """
import os, pathlib, pytest
def note(file):
    with open(pathlib.Path(os.environ["NOTES"], pathlib.Path(file).name), "a") as notes:
        print(os.environ.get("PYTEST_XDIST_WORKER", "alone"), file=notes)
assert "SKIPPED_FILES" not in os.environ, "a pytest that a test starts would add to this run's"
"""
THREE = NOTE + "@pytest.mark.parametrize('n', range(3))\ndef test(n): note(__file__)\n"
FILES = {
    "tests/test_plain.py": THREE,
    "tests/spark_export/test_spark_a.py": THREE,
    "tests/spark_export/test_spark_b.py": THREE,
    "tests/test_absent.py": "import pytest\npytest.importorskip('absent', reason='no x')\ndef test(): pass",
    "tests/test_partly.py": "import pytest\ndef test(): pass\n@pytest.mark.skip('no x')\n"
    "@pytest.mark.parametrize('n', [1, 2])\ndef test_2(n): 0",
    "tests/test_other.py": "import pytest\ndef test(): pytest.skip('no y')",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['--import-mode=importlib']\nmarkers = ['slow', 'soak']",
}


def test_a_run_in_parallel(tmp_path: Path) -> None:
    """Goal: the tests of a file, and those of the Spark session, share a process; what was skipped is counted, and its
    files are listed. Method: one run of two processes; each test notes in which one it ran."""
    notes, skipped = tmp_path / "notes", tmp_path / "skipped"
    notes.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "BEGIN_UNTIL_S"))}
    done = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-n", "2", "--dist", "loadfile", "tests")],
        cwd=plant(tmp_path, FILES),
        env={**kept, "PYTHONPATH": str(ROOT), "NOTES": str(notes), "SKIPPED_FILES": str(skipped)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {path.name: path.read_text().split() for path in notes.iterdir()}
    assert sorted((file, len(processes)) for file, processes in ran.items()) == [
        *(("test_plain.py", 3), ("test_spark_a.py", 3), ("test_spark_b.py", 3)),
    ]
    assert len({*ran["test_plain.py"]}) == 1
    assert len({*ran["test_spark_a.py"], *ran["test_spark_b.py"]}) == 1
    assert {"2 tests, 1 whole file: no x", "1 test: no y"} <= {*done.stdout.splitlines()}
    assert skipped.read_text().split() == ["tests/test_absent.py", "tests/test_other.py", "tests/test_partly.py"]


def test_the_files_that_begin_first_are_there() -> None:
    assert [scope for scope in LONG_SCOPES if scope not in SPARK_SCOPES and not (ROOT / scope).is_file()] == []


def test_the_processes_of_a_parallel_run_of_all_tests_are_forked(request: pytest.FixtureRequest) -> None:
    """Method: a forked process has the command line of the process that has imported all tests."""
    if not hasattr(request.config, "workerinput") or not forks_processes(request.config):
        pytest.skip("this is no parallel run of all tests")
    assert b"tests.support.forked_workers" in Path("/proc/self/cmdline").read_bytes().split(b"\0")


def test_tests_that_begin_too_late_are_skipped_and_counted(tmp_path: Path) -> None:
    """Method: the time is over before the run."""
    done = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "tests/test_partly.py")],
        cwd=plant(tmp_path, FILES),
        env=os.environ | {"PYTHONPATH": str(ROOT), "BEGIN_UNTIL_S": "1000"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "1 test: the time in which tests begin (BEGIN_UNTIL_S) is over" in done.stdout.splitlines()
