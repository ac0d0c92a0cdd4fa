"""The documentation is run: every command and program of the pages, in their order, with the output that they show.

The pages that start no node share one. Their commands come from one process that forks (`tests/support/prefork.py`);
those of the README start an interpreter each.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.node.process import NodeProcess
from tests.style.tree import files
from tests.support.pages import ROOT, Reader, blocks
from tests.support.prefork import Prefork

NOT_HERE = {
    "docs/block-manager.md": "tests/test_examples.py runs its example and its programs",
    "docs/commands.md": "its commands stand alone; tests/cli/test_documented.py parses them",
    "docs/consumer-groups.md": "its program waits for jobs without end; the guide docs/how-to/work-queue.md is run",
    "docs/decoding.md": "tests/spark_export/test_reading_page.py runs it",
    "docs/own-workers.md": "tests/test_examples.py runs its programs; its commands need modules that are not installed",
    "docs/scale.md": "its commands need other machines, servers, docker and Litestream, whose tests run them",
    "docs/performance.md": "its command takes minutes; fleet/mirror/test_rounds.py runs with fewer rounds",
    "docs/deploy.md": "its commands install things; tests/deploy/test_page.py runs those that can be run",
    "docs/export.md": "its commands need catalogs and stores; the guide docs/how-to/export-spark.md is run",
    "docs/python.md": "its blocks are signatures; tests/style/test_reference_pages.py compares them with the code",
    "docs/security.md": "its commands name other machines; the guide docs/how-to/secure.md is run",
    "docs/spark.md": "tests/spark_export/test_spark_page.py runs it",
}
"""Pages with blocks that are not run here, and why. `tests/cli/test_documented.py` parses the commands of all pages."""

PAGES = [
    "docs/backfill.md",
    "docs/block-node.md",
    "docs/dashboard.md",
    "docs/http.md",
    "docs/operating.md",
    "docs/tutorial.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/how-to").glob("*.md")),
]
"""The pages whose blocks are run here. README.md has a test of its own.

A page elsewhere than among the guides is run only if it is named: its commands may change the machine.
"""

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


@pytest.fixture
def own_address(tmp_path: Path) -> Iterator[str]:
    """The address of a node for one page."""
    with NodeProcess(tmp_path / "own", environment={"PYTHONPATH": str(ROOT)}) as node:
        yield node.address
        assert node.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_to_do_works_and_prints_what_it_shows(
    tmp_path: Path, programs: Path, page: str, request: pytest.FixtureRequest
) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page], reason="the extra `spark` is not installed")
    text = (ROOT / page).read_text(encoding="utf-8")
    if "\ncurl " in text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    # A page that needs an extra has a node of its own: other pages would find what it leaves behind only sometimes.
    node_address = "own_address" if page in NEEDS else "address"
    address = "" if "stream-node serve" in text else request.getfixturevalue(node_address)
    with Reader(tmp_path, programs, address) as reader:
        reader.read(text)
        assert set(reader.stop()) <= {0}


def test_every_page_with_commands_or_programs_is_run_or_has_a_reason() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in files(ROOT / "docs", ".md")
        if any(block.language in {"sh", "python"} for block in blocks(path.read_text(encoding="utf-8")))
    ]
    assert sorted({*PAGES, *NOT_HERE} - {"docs/how-to/index.md"}) == found
