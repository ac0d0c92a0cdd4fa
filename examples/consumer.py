"""Read a stream from the last saved position of a consumer.

Run publisher.py and then this program again. It prints only the new messages.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/consumer.py
"""

from __future__ import annotations

import os

import trio

from stream_client import Consumer, SavedIndexes, connect

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")


async def main() -> None:
    async with connect(ADDRESS) as client:
        stream = await client.create("examples.readings")
        positions = SavedIndexes(client, "examples.consumer")
        print(f"resuming at index {await positions.get(stream.name)}")
        consumer = Consumer(stream, positions)
        messages = size_bytes = 0
        # Without stop_at_end, the loop waits for new messages without end. A message counts as processed when the loop
        # asks for the next one. If the program dies inside the loop, the message is delivered again.
        async for message in consumer.messages(stop_at_end=True):
            messages += 1
            size_bytes += len(message.data)
        print(f"{messages} messages of {size_bytes} bytes, the next one is {await positions.get(stream.name)}")


trio.run(main)
