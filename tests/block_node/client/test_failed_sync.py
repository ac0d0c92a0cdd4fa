"""Goal: a block whose sync failed is told as not confirmed, with the reason, and neither as durable nor as not stored.
Published again after a restart it is a duplicate: the node has it once, under the same root.

Method: the running command on a disk whose syncs fail when the test says so. What is stored is read from the file after
the node has ended, by SQLite alone.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from block_node.blocks.generator import GeneratedBlock
from block_node.client import BlockPublisher, PublishGaveUp, PublishSettings, connect
from stream_client import Reconnect
from stream_node.node.process import NodeProcess
from tests.block_node.client.chains import chain, fetch, outgoing
from tests.support.broken_disk import LOG, BrokenDisk, broken_disk

__all__ = ["broken_disk"]

PATIENT = PublishSettings(reconnect=Reconnect(delay_s=0.01, delay_s_max=0.05))
SOON = PublishSettings(reconnect=Reconnect(delay_s=0.01, delay_s_max=0.05), give_up_s=0.5)
BLOCKS = chain(3)


async def publish(address: str, settings: PublishSettings, *blocks: GeneratedBlock) -> BlockPublisher:
    """Until all are durable."""
    async with connect(address) as blocks_client, blocks_client.publisher(settings) as publisher:
        for block in blocks:
            await publisher.send(outgoing(block))
    return publisher


def stored_blocks(directory: Path) -> list[tuple[int, bytes]]:
    """Number and root of every block, and one message for each."""
    connection = sqlite3.connect(directory / "streams.sqlite")
    rows = connection.execute("SELECT number, root FROM block_index ORDER BY number").fetchall()
    (messages,) = connection.execute("SELECT count(*) FROM messages").fetchone()
    connection.close()
    assert messages == len(rows)
    return [(number, root) for number, root in rows]


async def test_a_block_whose_sync_failed_is_unknown_and_a_duplicate_after_a_restart(
    broken_disk: BrokenDisk, tmp_path: Path
) -> None:
    with NodeProcess(tmp_path / "data", environment=broken_disk.environment) as node:
        await publish(node.address, PATIENT, BLOCKS[0])
        broken_disk.fail("sync", LOG)
        with pytest.raises(PublishGaveUp) as gave_up:
            await publish(node.address, SOON, BLOCKS[1])
        assert gave_up.value.in_doubt
        text = str(gave_up.value)
        assert "PERSISTENCE_FAILED" in text
        assert "disk" in text
        assert "not stored" not in text
        node.kill()
        broken_disk.mend()
        node.start()
        again = await publish(node.address, PATIENT, *BLOCKS[1:])
        assert (again.acknowledged, again.compared) == (2, 1), "block 1 was there, and was compared"
        assert (await fetch(node.address, 1))[1] == BLOCKS[1].root
        assert node.stop() == 0
    assert stored_blocks(node.data_dir) == [(block.number, block.root) for block in BLOCKS]
