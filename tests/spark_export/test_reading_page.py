"""Goal: docs/decoding.md is true. Method: its commands and examples are run in order, with one node and one stream."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from stream_client import blocking
from stream_node.node.process import NodeProcess

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs/decoding.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^stream-node (export run .*)$", re.MULTILINE)
SPARKS = re.compile(r"^(?:>>>|\.\.\.).*\bspark\.read", re.MULTILINE)
"""The blocks that need a Spark session."""


class Lake(NamedTuple):
    """The tables that the commands of the page make, and the node with the stream."""

    folder: Path
    address: str


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    for package, extra in (("deltalake", "delta"), ("pyiceberg", "iceberg")):
        pytest.importorskip(package, reason=f"the extra `{extra}` is not installed")
    folder = tmp_path_factory.mktemp("lake")
    with NodeProcess(folder / "data") as node:
        with blocking.connect(node.address) as client:
            stream = client.create("orders")
            for at in range(6):
                stream.push(b'{"id":%d,"amount":%d}' % (at, at * 10))
        for line in COMMAND.findall(PAGE):
            words = [
                word.replace("/tmp/lake", str(folder)).replace("./lake", f"{folder}/first")
                for word in shlex.split(line)
            ]
            command = [sys.executable, "-m", "stream_node", *words, "--node", node.address]
            done = subprocess.run(command, capture_output=True, text=True, timeout=500)
            assert done.returncode == 0, done.stderr
        yield Lake(folder, node.address)
        assert node.stop() == 0


def run(blocks: Iterable[str], lake: Lake, known: dict[str, Any]) -> None:
    examples = "".join(blocks).replace("/tmp/lake", str(lake.folder)).replace("127.0.0.1:4000", lake.address)
    test = doctest.DocTestParser().get_doctest(examples, known, "docs/decoding.md", "docs/decoding.md", 0)
    problems: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test, out=problems.append)
    assert test.examples
    assert not problems, "".join(problems)


@pytest.mark.parametrize("packages", [("duckdb",), ("duckdb", "polars")], ids="+".join)
def test_engines_without_java_read_streams_and_tables(
    lake: Lake, packages: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the examples without Polars are run where it is not installed, too."""
    # Without it, Polars warns that its package `polars_iceberg` would plan faster.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    for package in packages:
        pytest.importorskip(package, reason="the extra `store-tests` or the package `polars` is not installed")
    plain = [block for block in BLOCK.findall(PAGE) if not SPARKS.search(block)]
    run([block for block in plain if "polars" in packages or "polars" not in block], lake, {})


def test_spark_reads_the_stream_and_the_folder(lake: Lake, spark: Any) -> None:
    run([block for block in BLOCK.findall(PAGE) if SPARKS.search(block)], lake, {"spark": spark})
