"""A consumer process of the demo. It reads some partitions and appends their messages to a file until it is killed.

    python -m stream_node.demo.consumer NODE VIA STREAM PARTITIONS CLIENT_ID FILE

The file has one record for each message: the partition, the index and the size of the data, as unsigned 64-bit
big-endian numbers, and then the data.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import BinaryIO

import trio

from ockam.actors.address import tcp
from stream_client import Consumer, SavedIndexes, Stream, connect

RECORD = struct.Struct(">QQQ")


def read_records(file: Path) -> list[tuple[int, int, bytes]]:
    """Returns the partition, index and data of each complete record. A last record that a kill has cut short is left
    out."""
    content = file.read_bytes() if file.exists() else b""
    records, at = [], 0
    while len(content) - at >= RECORD.size:
        partition, index, size = RECORD.unpack_from(content, at)
        at += RECORD.size
        if len(content) - at < size:
            break
        records.append((partition, index, content[at : at + size]))
        at += size
    return records


def cut_to_whole_records(file: Path) -> None:
    """Removes an incomplete record from the end of the file, so that a restarted consumer can append records."""
    whole = sum(RECORD.size + len(data) for _, _, data in read_records(file))
    if file.exists():
        with file.open("r+b") as content:
            content.truncate(whole)


async def consume(node: str, via: str, name: str, partitions: list[int], client_id: str, file: Path) -> None:
    cut_to_whole_records(file)
    with file.open("ab") as out:
        async with connect(node, via=(tcp(via),)) as client, trio.open_nursery() as nursery:
            stream = await client.create_partitioned(name, max(partitions) + 1)
            positions = SavedIndexes(client, client_id)
            for partition in partitions:
                nursery.start_soon(_consume_one, stream.partitions[partition], positions, out)


async def _consume_one(stream: Stream, positions: SavedIndexes, out: BinaryIO) -> None:
    """Writes and flushes each message before its position is saved, so that a kill loses no message."""
    consumer = Consumer(stream, positions)
    async for message in consumer.messages():
        out.write(RECORD.pack(stream.partition, message.index, len(message.data)) + message.data)
        out.flush()


if __name__ == "__main__":
    node, via, name, partitions, client_id, file = sys.argv[1:]
    trio.run(consume, node, via, name, [int(part) for part in partitions.split(",")], client_id, Path(file))
