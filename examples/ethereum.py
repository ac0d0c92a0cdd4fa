"""Follow a chain with the data layout of Ethereum. A producer sends blocks. An indexer keeps the chain and an index of
its own in a chain store. It undoes the blocks that a later fork replaces, also after a restart.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/ethereum.py
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from functools import partial

import trio

from cardinal_streams import Block, Payload, Start, StreamTransport, Update, consume, evm, publish
from stream_client import connect

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")
CHAIN = evm(1337)
GENESIS = Start(bytes(32), 0, 0)


def block(name: bytes, parent: bytes, number: int, weight: int) -> Block:
    updates = {f"c/539/n/{number}": name}
    return Block(Payload(hash=name, number=number, parent=parent, weight=weight, updates=updates))


async def index(node: StreamTransport, folder: str) -> None:
    async with consume(CHAIN, node, chain_store=folder, start=GENESIS, stop_at_end=True) as updates:
        async for update in updates:
            undo, do = ([b"".join(each.values.values()) for each in found] for found in (update.removed, update.added))
            print("undo", undo, "do", do)
            update.done(partial(write, update))
        print("chain", [each.number async for each in updates.branch()])


def write(update: Update, connection: sqlite3.Connection) -> None:
    """Changes the index in the transaction that stores the blocks: exactly once, whatever crashes."""
    connection.execute("CREATE TABLE IF NOT EXISTS names (number INTEGER PRIMARY KEY, name BLOB)")
    connection.executemany("DELETE FROM names WHERE number = ?", [(each.number,) for each in update.removed])
    connection.executemany("INSERT INTO names VALUES (?, ?)", [(each.number, each.hash) for each in update.added])


async def main() -> None:
    first, light, heavy = (name.rjust(32) for name in (b"first", b"light", b"heavy"))
    blocks = [block(first, GENESIS.hash, 1, 1), block(light, first, 2, 2), block(heavy, first, 2, 3)]
    async with connect(ADDRESS) as client, publish(CHAIN, node := StreamTransport(client)) as publisher:
        with tempfile.TemporaryDirectory() as folder:
            for part in (blocks[:2], blocks[2:]):
                print(await publisher.send(part), "blocks were new")
                await index(node, folder)


trio.run(main)
