"""Goal: a sync that fails is the first thing that the overview says. Method: a real node on a disk that fails syncs."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from stream_client import PushFailed
from stream_client.blocking import connect
from stream_node.node.process import NodeProcess
from tests.stream_node.doors.dashboard.dashboard_page import HtmlPage
from tests.support.broken_disk import LOG, SOON, BrokenDisk, broken_disk

__all__ = ["broken_disk"]


def test_a_failed_sync_is_named(broken_disk: BrokenDisk, tmp_path: Path) -> None:
    """The page still comes, says that nothing is stored any more, and what to do."""
    environment = {**broken_disk.environment, **SOON}
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"], environment=environment) as node:
        with connect(node.address) as client:
            stream = client.create("orders")
            broken_disk.fail("sync", LOG)
            with pytest.raises(PushFailed):
                stream.push(b"lost")
        answer = httpx.get(f"http://{node.http[0]}/dashboard", trust_env=False, timeout=30)
        text = HtmlPage(answer.text).text
        assert "What is wrong now Syncing to the disk failed, and nothing is stored any more:" in text
        assert "restart the node. Confirmed messages are safe." in text
