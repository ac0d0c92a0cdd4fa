"""The documentation is run: every command and program of the pages, in their order, with the output that they show.

The pages that start no node share one. Their commands come from one process that forks (`tests/support/prefork.py`);
those of the README start an interpreter each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.process import NodeProcess
from tests.support.pages import ROOT, Reader
from tests.support.prefork import Prefork

PAGES = [
    "docs/block-node.md",
    "docs/operating.md",
    "docs/tutorial.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/how-to").glob("*.md")),
]
"""The pages whose blocks are run here. README.md has a test of its own."""

NEEDS = {"docs/how-to/export-spark.md": "pyspark"}
"""Pages that need an extra, with a package of it."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `stream-node` and `python`."""
    with Prefork(tmp_path_factory.mktemp("programs")) as prefork:
        for name in ("stream-node", "python"):
            prefork.program(name)
        yield prefork.folder


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the node of all pages that start none."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", environment={"PYTHONPATH": str(ROOT)}) as node:
        yield node.address
        assert node.stop() == 0


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_to_do_works_and_prints_what_it_shows(
    tmp_path: Path, programs: Path, page: str, request: pytest.FixtureRequest
) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page], reason="the extra `spark` is not installed")
    text = (ROOT / page).read_text(encoding="utf-8")
    address = "" if "stream-node serve" in text else request.getfixturevalue("address")
    with Reader(tmp_path, programs, address) as reader:
        reader.read(text)
        assert set(reader.stop()) <= {0}
