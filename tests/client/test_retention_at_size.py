"""Goal: deleting half of what a node stores gives the space back, and pushes go on meanwhile.

Method: a running node with 200,000 messages of 1 KiB; half of them truncated while another stream is pushed to. The
latencies of these pushes are printed (`-s`), not judged, since machines that run this are shared.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio

from stream_client import connect
from stream_node.node.process import NodeProcess
from stream_storage.sqlite.database import FILE_NAME

MESSAGES = 200_000
MESSAGE_BYTES = 1024
PATIENCE_S = 300.0


@pytest.mark.soak
async def test_half_is_deleted_and_the_file_shrinks(tmp_path: Path) -> None:
    latencies_s: list[float] = []
    file = tmp_path / "data" / FILE_NAME
    with NodeProcess(tmp_path / "data") as node:
        async with connect(node.address) as client, connect(node.address) as operator:
            stream, other = await client.create("deleted"), await client.create("pushed")
            async with stream.publisher() as publisher:
                for _ in range(MESSAGES):
                    await publisher.push(os.urandom(MESSAGE_BYTES))

            async def push_on() -> None:
                while True:
                    started_s = time.perf_counter()
                    await other.push(bytes(MESSAGE_BYTES))
                    latencies_s.append(time.perf_counter() - started_s)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(push_on)
                found = await operator.get_stream("deleted")
                assert (await found.partitions[0].truncate(MESSAGES // 2)).deleted == MESSAGES // 2
                with trio.fail_after(PATIENCE_S):
                    while file.stat().st_size > 1.3 * (MESSAGES // 2 + len(latencies_s)) * MESSAGE_BYTES:
                        await trio.sleep(0.2)
                nursery.cancel_scope.cancel()
            (message,) = await stream.pull(0, 1)
            assert message.index == MESSAGES // 2
        assert node.stop() == 0
    latencies_s.sort()
    p50_s, p99_s = (latencies_s[int(len(latencies_s) * share)] for share in (0.5, 0.99))
    print(f"{len(latencies_s)} pushes meanwhile: p50 {p50_s * 1e3:.1f} ms, p99 {p99_s * 1e3:.1f} ms")
