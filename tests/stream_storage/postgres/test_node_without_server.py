"""Goal: a node whose PostgreSQL server is gone says so, in time and everywhere alike, and so it does when it is back.

Method: a real server is killed under a running node, and started again. The node is asked as monitoring programs do:
by the command `status --check`, the metrics, and `/readyz`.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_client.blocking import connect
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.slow

SCRAPE_S = 10.0
"""Prometheus waits for so long by default."""
PATIENCE_S = 60.0


class Asked:
    """The HTTP of a node, as a monitoring program sees it."""

    def __init__(self, node: NodeProcess) -> None:
        self._url = f"http://{node.http[0]}"

    def ready(self) -> int:
        return httpx.get(self._url + "/readyz", trust_env=False, timeout=SCRAPE_S).status_code

    def not_reading(self) -> bool:
        """Whether the metrics have this trouble."""
        text = httpx.get(self._url + "/metrics", trust_env=False, timeout=SCRAPE_S).text
        (count,) = re.findall(r'^stream_node_troubles\{kind="not_reading"\} (.*)$', text, re.MULTILINE)
        return float(count) == 1.0


def wait_for(asked: Asked, *, is_down: bool) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while (asked.ready(), asked.not_reading()) != ((503, True) if is_down else (200, False)):
        assert time.monotonic() < ends_s
        time.sleep(0.1)


def test_a_server_that_is_gone_is_told_in_time(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What the node knows without the server is told meanwhile, also right after the last answer of the server."""
    command = CommandLine(monkeypatch, capfdbinary)
    arguments = ["--http", "127.0.0.1:0", "--log-level", "error"]
    with NodeProcess(tmp_path / "data", arguments=arguments, environment={"STREAM_NODE_DATABASE": server.url}) as node:
        check = ("status", "--node", node.address, "--check", "lag=5", "--check", "troubles")
        with connect(node.address) as client:
            client.create("orders").push(b"1")
        asked = Asked(node)
        wait_for(asked, is_down=False)
        server.kill()
        done = command(*check)
        assert done.code == 2, done
        told = done.text.splitlines()
        assert told[0].startswith("CRITICAL ready: pushes are not stored: "), told
        assert any(line.startswith("CRITICAL not_reading: The database does not answer: ") for line in told), told
        wait_for(asked, is_down=True)
        server.start()
        wait_for(asked, is_down=False)
        assert command("status", "--node", node.address, "--check", "lag=5").code == 0
