"""Goal: the demo proves what it says, on real input. Method: `stream-node demo` as a whole, on Python's own text."""

from __future__ import annotations

import email
import re
from pathlib import Path

import msgspec
import pytest

from tests.cli.schemas import Demonstrated
from tests.support.command import Command

TEXT = Path(email.__file__).parent


@pytest.mark.slow
def test_the_demo_from_end_to_end(command: Command) -> None:
    """Two nodes chained, one of two consumers killed, a node killed in the middle of pushing, the comparison."""
    done = command("demo", "--input-dir", TEXT, "--no-export", "--json")
    assert done.code == 0, done.err
    msgspec.json.decode(done.out, type=Demonstrated)
    report = done.row
    proof = report["proof"]
    assert proof["broken"] == []
    assert proof["confirmed"] == lines_in(TEXT)
    assert proof["stored"] == proof["confirmed"] + proof["stored_again"]
    assert proof["consumed"] == proof["stored"]
    under_way = re.search(r"([\d,]+)\s+on\s+their\s+way", done.err)
    assert under_way is not None, done.err
    assert 0 <= proof["stored_again"] <= int(under_way[1].replace(",", "")) > 0
    *of_lines, of_blocks = report["steps"]
    assert len(of_lines) == 3
    assert all(step["messages"] == proof["confirmed"] and step["seconds"] > 0 for step in of_lines)
    assert of_blocks["messages"] > 0


@pytest.mark.slow
@pytest.mark.spark
def test_the_demo_ends_with_an_export_and_a_query(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "one.txt").write_text("".join(f"line {number % 7}\n" for number in range(500)))
    done = command("demo", "--input-dir", tmp_path / "text", "--json")
    assert done.code == 0, done.err
    msgspec.json.decode(done.out, type=Demonstrated)
    exported = done.row["export"]
    if isinstance(exported, str):
        pytest.skip(exported)
    assert exported["rows"] == done.row["proof"]["stored"]
    rows = [dict(zip(exported["columns"], row, strict=True)) for row in exported["answer"]]
    assert sum(row["messages"] for row in rows) == exported["rows"]
    assert {row["longest"] for row in rows} == {6}


def lines_in(directory: Path) -> int:
    """Of all text files below it, as the demo reads them."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sum(len(content.splitlines()) for path in files if b"\0" not in (content := path.read_bytes())[:1024])


def test_a_folder_without_text_is_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = command("demo", "--input-dir", tmp_path / "empty")
    assert done.code == 1
    assert "no text" in done.error
