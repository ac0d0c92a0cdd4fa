"""Publish a generated chain of blocks, wait until the blocks are verified and on disk, then read them as a subscriber.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/blocks.py
"""

from __future__ import annotations

import os

from block_node.blocks.generator import ChainGenerator, SigningKeys
from block_node.client import OutgoingBlock
from block_node.client.blocking import connect

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")

chain = ChainGenerator(SigningKeys.generate())
with connect(ADDRESS) as client:
    with client.publisher() as publisher:
        for block in chain.blocks(5):
            # A few blocks are kept until they are acknowledged; `send` waits while there are too many.
            publisher.send(OutgoingBlock.from_items(block.items))
        publisher.flush()
        print("verified and on disk up to block", publisher.acknowledged)
    with client.subscribe(0, 4) as blocks:
        for received in blocks:
            print(f"block {received.number}: {len(received.items)} items, root {received.root.hex()[:16]}")
    print("the node wants block", client.status().next_expected)
