"""Goal: the demo proves what it says, on real input. Method: `stream-node demo` as a whole, on Python's own text."""

from __future__ import annotations

import email
import importlib.util
import re
from pathlib import Path

import msgspec
import pytest

from tests.cli.promised import promised
from tests.support.command import Command

TEXT = Path(email.__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(1_860)
@pytest.mark.parametrize("flags", [("--no-export",), pytest.param((), marks=pytest.mark.soak)])
def test_the_demo_from_end_to_end(command: Command, flags: tuple[str, ...]) -> None:
    """Two nodes chained, one of two consumers killed, a node killed in the middle of pushing, the comparison; blocks;
    a node with TLS and rules; where Spark is installed and wanted, an export and a query."""
    done = command("demo", "--input-dir", TEXT, "--json", *flags, timeout_s=1_800)
    assert done.code == 0, done.err
    msgspec.json.decode(done.out, type=promised.Demonstrated)
    report = done.row
    proof = report["proof"]
    assert proof["broken"] == []
    lines = lines_in(TEXT)
    assert proof["confirmed"] == len(lines)
    assert proof["stored"] == proof["confirmed"] + proof["stored_again"]
    assert proof["consumed"] == proof["stored"]
    under_way = re.search(r"([\d,]+)\s+on\s+their\s+way", done.err)
    assert under_way is not None, done.err
    assert 0 <= proof["stored_again"] <= int(under_way[1].replace(",", "")) > 0
    steps = report["steps"]
    over_tls, of_blocks = steps.pop(), steps.pop()
    assert over_tls["messages"] == report["guarded"]["read"] > 0
    assert report["guarded"]["broken"] == []
    assert of_blocks["messages"] > 0
    exported = report["export"]
    if isinstance(exported, str):
        assert flags or importlib.util.find_spec("pyspark") is None or "Java" in exported, exported
    else:
        assert steps.pop()["messages"] == exported["rows"] == proof["stored"] >= exported["rows_before_kill"] > 0
        rows = [dict(zip(exported["columns"], row, strict=True)) for row in exported["answer"]]
        assert sum(row["messages"] for row in rows) == exported["rows"]
        assert max(row["longest"] for row in rows) == max(map(len, lines))
    assert len(steps) == 3
    assert all(step["messages"] == proof["confirmed"] and step["seconds"] > 0 for step in steps)


def lines_in(directory: Path) -> list[bytes]:
    """Of all text files below it, as the demo reads them."""
    contents = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return [line for content in contents if b"\0" not in content[:1024] for line in content.splitlines()]


def test_a_folder_without_text_is_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = command("demo", "--input-dir", tmp_path / "empty")
    assert done.code == 1
    assert "no text" in done.error
