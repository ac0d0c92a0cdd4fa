"""Distribute messages over the partitions of a stream by their keys, and read all partitions at the same time.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/partitioned.py
"""

from __future__ import annotations

import os

import trio

from stream_client import Stream, connect

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")
CUSTOMERS = ("ada", "bert", "cleo", "eva")


async def read(partition: Stream, first_index: int) -> None:
    for message in await partition.pull(first_index):
        print(f"partition {partition.partition} index {message.index}: {message.data.decode()}")


async def main() -> None:
    async with connect(ADDRESS) as client:
        orders = await client.create_partitioned("examples.orders", 3)
        first_indexes: dict[Stream, int] = {}
        for number in range(3):
            for customer in CUSTOMERS:
                # A key belongs to one partition, so the orders of one customer keep their order.
                partition = orders.partition_for(customer.encode())
                index = await partition.push(f"order {number} of {customer}".encode())
                first_indexes.setdefault(partition, index)
        async with trio.open_nursery() as nursery:
            for partition, index in first_indexes.items():
                nursery.start_soon(read, partition, index)


trio.run(main)
