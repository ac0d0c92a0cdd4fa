"""Goal: docs/reading.md is true. Method: its examples are run in order, as doctests, on tables of one stream."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from stream_client import blocking
from stream_node.node.process import NodeProcess

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs/reading.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^stream-node (export run .*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables that the commands of the page make."""
    for package, extra in (("deltalake", "delta"), ("pyiceberg", "iceberg")):
        pytest.importorskip(package, reason=f"the extra `{extra}` is not installed")
    folder = tmp_path_factory.mktemp("lake")
    with NodeProcess(folder / "data") as node:
        with blocking.connect(node.address) as client:
            stream = client.create("orders")
            for at in range(6):
                stream.push(b'{"id":%d,"amount":%d}' % (at, at * 10))
        for line in COMMAND.findall(PAGE):
            asked = re.sub(r"'([^']*)'", lambda found: found[1].replace(" ", "\0"), line).split()
            words = [word.replace("\0", " ").replace("/tmp/lake", str(folder)) for word in asked]
            command = [sys.executable, "-m", "stream_node", *words, "--node", node.address]
            done = subprocess.run(command, capture_output=True, text=True, timeout=500)
            assert done.returncode == 0, done.stderr
        assert node.stop() == 0
    return folder


def run(text: str, lake: Path, known: dict[str, Any]) -> None:
    examples = "".join(BLOCK.findall(text)).replace("/tmp/lake", str(lake))
    test = doctest.DocTestParser().get_doctest(examples, known, "docs/reading.md", "docs/reading.md", 0)
    problems: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test, out=problems.append)
    assert test.examples
    assert not problems, "".join(problems)


def test_engines_without_java_read_each_table(lake: Path) -> None:
    for package in ("duckdb", "polars"):
        pytest.importorskip(package, reason="the extra `store-tests` is not installed")
    run(PAGE[: PAGE.index("## Spark")], lake, {})


def test_spark_reads_the_folder(lake: Path, spark: Any) -> None:
    run(PAGE[PAGE.index("## Spark") :], lake, {"spark": spark})
