"""Follow a chain with the data layout of Ethereum. A producer sends blocks, and an indexer applies and reverts
their changes.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/ethereum.py
"""

from __future__ import annotations

import os

import trio

from cardinal_streams import Block, NodeCheckpoints, Payload, Start, StreamTransport, consume, evm, publish
from stream_client import connect

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")
CHAIN = evm(1337)
GENESIS = Start(bytes(32), 0, 0)


def block(name: bytes, parent: bytes, number: int, weight: int) -> Block:
    updates = {f"c/539/n/{number}": name}
    return Block(Payload(hash=name, number=number, parent=parent, weight=weight, updates=updates))


async def main() -> None:
    first, light, heavy = (name.rjust(32) for name in (b"first", b"light", b"heavy"))
    blocks = [block(first, GENESIS.hash, 1, 1), block(light, first, 2, 2), block(heavy, first, 2, 3)]
    async with connect(ADDRESS) as client:
        node = StreamTransport(client)
        async with publish(CHAIN, node) as publisher:
            print(await publisher.send(blocks), "blocks were new")
        async with consume(CHAIN, node, NodeCheckpoints(client, "indexer"), start=GENESIS, stop_at_end=True) as updates:
            async for update in updates:
                print("undo", [each.hash for each in update.removed], "do", [each.hash for each in update.added])
                update.done()


trio.run(main)
