"""Goal: a node that runs out of open files goes on, says so, and takes whoever speaks in place of who is silent.

Method: the running command with a small limit, and more silent connections than that.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import trio

from ockam.actors.address import split_host_port
from stream_node.node.process import NodeProcess
from tests.support.served import PATIENCE_S
from tests.support.stream_peer import stream_peer

FILES_MAX = 64


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="another process's limits can be set on Linux only")
async def test_more_connections_than_files(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        _, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (FILES_MAX, hard))
        async with stream_peer(node.address) as peer:
            route = await peer.create("s")
            silent = [await trio.open_tcp_stream(*split_host_port(node.address)) for _ in range(2 * FILES_MAX)]
            for number in range(20):
                assert (await peer.push(route, b"data")).index == number
            with trio.fail_after(PATIENCE_S):
                async with stream_peer(node.address) as late:
                    assert (await late.push(await late.create("s"), b"late")).index == 20
            for stream in silent:
                await stream.aclose()
        assert node.stop() == 0
    lines = [json.loads(line) for line in node.log_file.read_text().splitlines()]
    told = [line for line in lines if line["event"] == "accept_failed"]
    assert told
    assert all("EMFILE" in line["reason"] and line["level"] == "error" for line in told)
