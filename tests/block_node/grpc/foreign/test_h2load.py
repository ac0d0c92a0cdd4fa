"""Goal: ten thousand calls on one connection, fifty at a time, are all answered, and leave nothing behind.

Method: h2load, of Debian's package nghttp2-client: its HTTP/2 is nghttp2. It posts one message as a file, and counts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from tests.block_node.grpc.calls.block_door import STATUS, block_door
from tests.block_node.grpc.http2.raw_client import framed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("h2load"), reason="no h2load: apt-get install nghttp2-client"),
]


@pytest.mark.parametrize(("calls", "connections", "at_once"), [(10_000, 1, 50), (1_000, 20, 5)])
async def test_all_calls_are_answered(tmp_path: Path, calls: int, connections: int, at_once: int) -> None:
    body = tmp_path / "request"
    body.write_bytes(framed(b""))
    async with block_door(tmp_path / "node", patience_s=180) as door:
        headers = [f"-H{header}" for header in ("content-type: application/grpc", "te: trailers")]
        counts = [f"-n{calls}", f"-c{connections}", f"-m{at_once}"]
        ran = await trio.run_process(
            ["h2load", *counts, *headers, f"-d{body}", f"http://127.0.0.1:{door.port}{STATUS}"], capture_stdout=True
        )
        assert f"{calls} done, {calls} succeeded, 0 failed, 0 errored, 0 timeout" in ran.stdout.decode()
        assert len(door.connections) == connections
