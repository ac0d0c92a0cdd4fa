"""Goal: whatever deletes or moves something for good is one line in the node's log: who, which stream, which indexes.

Method: real clients on a server in this process, and its log lines; the question of `stream delete` at a real terminal.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio
from structlog.testing import capture_logs

from stream_client import Retention, connect, set_position
from tests.support.served import PATIENCE_S, Served, served, wait_until


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
    peer = truncated.pop("peer")
    assert peer.startswith("127.0.0.1:")
    assert truncated == {"event": "stream_truncated", **place, "deleted": 3, "from_index": 0, "before_index": 3}
    assert (again["deleted"], again["from_index"], again["before_index"]) == (0, 3, 3)
    limits = {"age_s": None, "messages": 5, "size_bytes": None}
    assert lines_of(logs, "retention_set") == [
        {"event": "retention_set", **place, "peer": peer, "retention": retention} for retention in (limits, None)
    ]
    applied = lines_of(logs, "retention_applied")
    assert applied == [{"event": "retention_applied", **place, "deleted": 2, "from_index": 3, "before_index": 5}]
    moved = {**place, "client_id": "mailer", "peer": peer}
    assert lines_of(logs, "index_set") == [{"event": "index_set", **moved, "index": 7, "before": None}]
    assert lines_of(logs, "index_forgotten") == [{"event": "index_forgotten", **moved, "index": None, "before": 7}]
    assert lines_of(logs, "stream_deleted") == [
        {"event": "stream_deleted", **place, "peer": peer, "deleted": 5, "from_index": 5, "before_index": 10}
    ]


async def test_delete_asks_at_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(server.address) as client:
        for name in ("a", "b", "c"):
            await (await client.create(name)).push(b"x")
        asked = await at_a_terminal(server, "no\n", "a")
        assert asked.returncode == 1
        question, said = asked.stderr.decode().split(" Type yes: ")
        assert question == f"Delete 1 partition and 1 message of a at {server.address}? This cannot be undone."
        assert said.strip() == "stream-node: nothing was deleted"
        assert (await client.get_stream("a")).partitions[0]
        assert (await at_a_terminal(server, "yes\n", "a")).stdout == b"1 partition and 1 message of a deleted\n"
        unasked = await at_a_terminal(server, "", "b", "--yes")
        assert (unasked.stdout, unasked.stderr) == (b"1 partition and 1 message of b deleted\n", b"")
        script = await trio.run_process(command(server, "c"), stdin=b"", capture_stdout=True, capture_stderr=True)
        assert (script.stdout, script.stderr) == (b"1 partition and 1 message of c deleted\n", b"")


def command(server: Served, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "stream_node", "stream", "delete", *arguments, "--node", server.address]


async def at_a_terminal(server: Served, typed: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The command with a terminal as its input, on which that has been typed already."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode())
        return await trio.run_process(
            command(server, *arguments), stdin=theirs, capture_stdout=True, capture_stderr=True, check=False
        )
    finally:
        os.close(ours)
        os.close(theirs)
