"""Publish a thousand messages without waiting for each confirm, and print where they are stored.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/publisher.py
"""

from __future__ import annotations

import os

import trio

from stream_client import connect

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")


async def main() -> None:
    async with connect(ADDRESS) as client:
        stream = await client.create("examples.readings")
        async with stream.publisher(window=100) as publisher:
            pushes = [await publisher.push(f"reading {number}".encode()) for number in range(1_000)]
        # The block has ended, so every push has its answer: the index of a message on disk, or an error.
        stored = [push.index for push in pushes if push.error is None]
        print(f"{len(stored)} messages stored, the last at index {max(stored, default=None)}")
        for push in pushes:
            if push.error is not None:
                print(f"{push.data!r}: {push.error}")


trio.run(main)
