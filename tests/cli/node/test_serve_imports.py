"""Goal: a node loads no package and no part of its own that it does not use, since each takes memory for good and
lengthens the start. Method: the interpreter lists what a real node imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stream_node.node.process import NodeProcess

OPTIONAL = {"alembic", "greenlet", "psycopg", "pyarrow", "pygments", "pyspark"}
NOWHERE = OPTIONAL | {
    *("anyio.from_thread", "cardinal_streams", "cryptography", "idna.core", "importlib.metadata", "jinja2"),
    *("prometheus_client", "spark_export", "sqlalchemy.dialects.postgresql.base", "sqlalchemy.orm"),
    *("stream_node.cli.streams.push", "stream_node.fleet.cluster_services", "stream_node.forwarding"),
    "zstandard.backend_c",
}
"""What an idle node needs for nothing, also with HTTP. pygments comes with rich; the list also has the import of rich,
which fails."""
WITHOUT_HTTP = NOWHERE | {
    *("_ssl", "anyio", "asyncio.base_events", "email", "starlette", "stream_client"),
    *("stream_node.doors.http.listener", "stream_node.fleet.cluster.router"),
}
WITHOUT_BLOCKS = WITHOUT_HTTP | {"block_node.node", "block_node.persist.schema", "block_node.publish"}


class Listed(NodeProcess):
    def command(self) -> list[str]:
        return [sys.executable, "-X", "importtime", *super().command()[1:]]


@pytest.mark.parametrize(
    ("options", "environment", "unused"),
    [
        ((), {}, WITHOUT_HTTP),
        (("--http", "127.0.0.1:0"), {}, NOWHERE),
        ((), {"STREAM_NODE_BLOCK_NODE": "false"}, WITHOUT_BLOCKS),
    ],
    ids=["plain", "http", "without blocks"],
)
def test_an_idle_node_loads_nothing_that_it_does_not_use(
    tmp_path: Path, options: tuple[str, ...], environment: dict[str, str], unused: set[str]
) -> None:
    with Listed(tmp_path / "data", arguments=options, environment=environment, log_file=tmp_path / "log") as node:
        assert node.address
    imported = {line.rpartition("|")[2].strip() for line in (tmp_path / "log").read_text().splitlines()}
    assert {"structlog", "sqlalchemy"} <= imported
    assert imported & unused == set()


def test_the_modules_that_stay_out_exist() -> None:
    """Claim: none of the names above is mistyped, or of a module that has moved. Method: each is looked for."""
    assert [name for name in sorted(WITHOUT_BLOCKS - OPTIONAL) if find_spec(name) is None] == []


def test_what_a_node_leaves_out_is_there_when_it_is_used() -> None:
    """Claim: a worker of the operator can use what the node itself leaves out. Method: a program uses each module, the
    packages by a module of theirs first."""
    program = (
        "from stream_node.cli.node.serve import _leave_out_modules as leave_out; leave_out()\n"
        "import asyncio.subprocess, importlib.metadata, importlib.util, sys\n"
        "import idna, ssl, zstandard\n"
        "assert asyncio.run(asyncio.sleep(0, 'slept')) == 'slept' and asyncio.create_subprocess_exec\n"
        "assert asyncio is sys.modules['asyncio'] and importlib.util.find_spec('ssl').name == 'ssl'\n"
        "print(importlib.metadata.version('trio'), idna.encode('ä.de'), ssl.SSLContext.__name__)\n"
        "print(zstandard.ZstdDecompressor().decompress(zstandard.compress(b'whole')))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[0].endswith("b'xn--4ca.de' SSLContext")
    assert run.stdout.splitlines()[1] == "b'whole'"
