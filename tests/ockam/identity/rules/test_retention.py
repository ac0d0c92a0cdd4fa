"""Goal: rules bind peers, and not the upkeep of the node: retention deletes also where nobody may do anything.

Method: a stream is filled while everything is allowed. Then the node starts with a retention, and with rules that allow
nobody anything. SQLite itself counts what is left in the file.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ockam.identity.rules.rights import ALL_RIGHTS
from stream_client import AccessDenied, connect
from tests.ockam.identity.rules.guarded_node import forbid, guarded, may
from tests.support.served import wait_until

KEPT = 3


def stored(folder: Path) -> int:
    with sqlite3.connect(f"file:{folder}/data/streams.sqlite?mode=ro", uri=True) as database:
        count: int = database.execute("SELECT count(*) FROM messages").fetchone()[0]
    return count


async def test_retention_deletes_under_rules_that_forbid_everything(tmp_path: Path) -> None:
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node, connect(node.running.address) as client:
        stream = await client.create("orders")
        for number in range(10):
            await stream.push(b"%d" % number)
    settings = {"retention_messages": KEPT, "retention_interval_s": 0.02}
    async with guarded(tmp_path, forbid("", "nobody"), **settings) as node, connect(node.running.address) as client:
        with pytest.raises(AccessDenied):
            await client.get_stream("orders")
        await wait_until(lambda: stored(tmp_path) == KEPT)
        assert {line["identity"] for line in node.audit() if "identity" in line} == {"anonymous"}
