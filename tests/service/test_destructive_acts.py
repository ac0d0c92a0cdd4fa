"""Goal: whatever deletes or moves something for good is one line in the node's log: who, which stream, which indexes.

Method: real clients on a server in this process, and its log lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from structlog.testing import capture_logs

from stream_client import Retention, connect, set_position
from tests.support.served import PATIENCE_S, served, wait_until


def lines_of(logs: list[Any], event: str) -> list[dict[str, Any]]:
    return [{key: line[key] for key in line if key != "log_level"} for line in logs if line["event"] == event]


async def test_each_destructive_act_is_one_line_with_peer_stream_and_indexes(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with served(tmp_path, retention_interval_s=0.05) as server:
            async with connect(server.address) as client:
                stream = (await client.create_partitioned("orders", 2)).partitions[1]
                for _ in range(10):
                    await stream.push(b"x")
                await stream.truncate(3)
                await stream.truncate(3)
                await stream.set_retention(Retention(messages=5))
                with trio.fail_after(PATIENCE_S):
                    while (await stream.info()).first_index != 5:
                        await trio.sleep(0.01)
                await stream.set_retention(None)
                await set_position(client, "mailer", "orders", 1, 7)
                await set_position(client, "mailer", "orders", 1, None)
                await stream.delete()
            await wait_until(lambda: lines_of(logs, "stream_deleted"))
    place = {"stream": "orders", "partition": 1}
    (truncated, again) = lines_of(logs, "stream_truncated")
    by = {"peer": truncated["peer"], "identity": "anonymous"}
    assert by["peer"].startswith("127.0.0.1:")
    assert truncated == {"event": "stream_truncated", **place, **by, "deleted": 3, "from_index": 0, "before_index": 3}
    assert (again["deleted"], again["from_index"], again["before_index"]) == (0, 3, 3)
    limits = {"age_s": None, "messages": 5, "size_bytes": None}
    assert lines_of(logs, "retention_set") == [
        {"event": "retention_set", **place, **by, "retention": retention} for retention in (limits, None)
    ]
    applied = lines_of(logs, "retention_applied")
    assert applied == [{"event": "retention_applied", **place, "deleted": 2, "from_index": 3, "before_index": 5}]
    moved = {**place, "client_id": "mailer", **by}
    assert lines_of(logs, "index_set") == [{"event": "index_set", **moved, "index": 7, "before": None}]
    assert lines_of(logs, "index_forgotten") == [{"event": "index_forgotten", **moved, "index": None, "before": 7}]
    assert lines_of(logs, "stream_deleted") == [
        {"event": "stream_deleted", **place, **by, "deleted": 5, "from_index": 5, "before_index": 10}
    ]
