"""Goal: what a failing disk does to a node follows from the system's error, as the failure table says: want of room
passes, a write that the disk fails ends writing, a read that it fails ends the operation that met it and nothing else.

Method: the running command on a disk whose calls end with the error chosen, and again on a limit of file sizes.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stream_client import PushNotStored, PushUnknown, RequestRefused, connect
from tests.support.broken_disk import FILE, LOG, BrokenDisk, broken_disk, node_on
from tests.support.data_dir import stored_messages

__all__ = ["broken_disk"]


async def test_a_write_that_the_disk_fails_ends_writing_until_a_restart(
    broken_disk: BrokenDisk, tmp_path: Path
) -> None:
    """SQLite tells it as it tells a quota. Before it was taken for a full disk, and the node went on writing."""
    with node_on(broken_disk, tmp_path) as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            assert await stream.push(b"stored") == 0
            broken_disk.fail("write", LOG, errno.EIO)
            with pytest.raises(PushUnknown, match="the disk failed"):
                await stream.push(b"in doubt")
            broken_disk.mend()
            with pytest.raises(PushNotStored, match="nothing is written any more"):
                await stream.push(b"too late, although the disk seems well")
            assert [message.data for message in await stream.pull(0)] == [b"stored"]
        node.kill()
        node.start()
        async with connect(node.address) as client:
            stream = await client.create("s")
            assert await stream.push(b"again") in (1, 2)
        assert node.stop() == 0
    stored = stored_messages(node.data_dir, "s")
    assert (stored[0], stored[-1]) == (b"stored", b"again")


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG], ids=["quota", "file-size"])
async def test_want_of_room_passes_whatever_the_system_calls_it(
    broken_disk: BrokenDisk, tmp_path: Path, number: int
) -> None:
    with node_on(broken_disk, tmp_path) as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            broken_disk.fail("write", LOG, number)
            broken_disk.fail("room", FILE + "-room", number)
            with pytest.raises(PushNotStored, match="no room to write"):
                await stream.push(b"no room")
            broken_disk.mend()
            assert await stream.push(b"room") == 0
        assert node.stop() == 0
    assert stored_messages(node.data_dir, "s") == [b"room"]


@pytest.mark.slow
async def test_a_read_that_fails_ends_what_met_it_and_nothing_else(broken_disk: BrokenDisk, tmp_path: Path) -> None:
    """Before, one such read in the writing connection ended all writing until a restart."""
    with node_on(broken_disk, tmp_path) as node:
        async with connect(node.address) as client:
            stream = await client.create("s")
            for number in range(300):
                await stream.push(b"%d" % number + bytes(4_000))
        assert node.stop() == 0
        node.start()
        async with connect(node.address) as client:
            (stream,) = (await client.get_stream("s")).partitions
            broken_disk.fail("read", FILE)
            with pytest.raises(RequestRefused, match="cannot be read"):
                await stream.pull(100)
            with pytest.raises(PushNotStored, match="a part of the database cannot be read"):
                await stream.push(b"not stored")
            broken_disk.mend()
            assert (await stream.pull(100))[0].index == 100
            assert await stream.push(b"stored") == 300
        assert node.stop() == 0
    assert stored_messages(node.data_dir, "s")[299:] == [b"299" + bytes(4_000), b"stored"]
