"""Goal: the demo proves what it says, on real input. Method: `stream-node demo` as a whole, on Python's own text."""

from __future__ import annotations

import email
from pathlib import Path

import pytest

from tests.support.command import Command

TEXT = Path(email.__file__).parent


@pytest.mark.slow
def test_the_demo_from_end_to_end(command: Command) -> None:
    """Two nodes chained, one of two consumers killed, a node killed in the middle of pushing, the comparison."""
    done = command("demo", "--input-dir", TEXT, "--json")
    assert done.code == 0, done.err
    report = done.row
    proof = report["proof"]
    assert proof["broken"] == []
    assert proof["confirmed"] == lines_in(TEXT)
    assert proof["stored"] == proof["confirmed"] + proof["stored_again"]
    assert proof["consumed"] == proof["stored"]
    assert len(report["steps"]) == 3
    assert all(step["messages"] == proof["confirmed"] and step["seconds"] > 0 for step in report["steps"])


def lines_in(directory: Path) -> int:
    """Of all text files below it, as the demo reads them."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sum(len(content.splitlines()) for path in files if b"\0" not in (content := path.read_bytes())[:1024])


def test_a_folder_without_text_is_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = command("demo", "--input-dir", tmp_path / "empty")
    assert done.code == 1
    assert "no text" in done.error
