"""Goal: a node loads no package that it does not use. Method: the interpreter lists what a real node imports."""

from __future__ import annotations

import sys
from pathlib import Path

from stream_node.node.process import NodeProcess

UNUSED = {"pygments", "alembic", "pyarrow", "pyspark", "psycopg", "starlette", "jinja2"}
"""What an idle node without HTTP and PostgreSQL needs for nothing. pygments comes with rich; the list also has
the import of rich, which fails."""


class Listed(NodeProcess):
    def command(self) -> list[str]:
        return [sys.executable, "-X", "importtime", *super().command()[1:]]


def test_an_idle_node_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    with Listed(tmp_path / "data", log_file=tmp_path / "log") as node:
        assert node.address
    imported = [line.rpartition("|")[2].strip() for line in (tmp_path / "log").read_text().splitlines()]
    assert "structlog" in imported
    assert {name.partition(".")[0] for name in imported} & UNUSED == set()
