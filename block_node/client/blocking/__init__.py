"""The client of block nodes for programs without an event loop: scripts, notebooks.

    with connect("127.0.0.1:4000") as client:
        with client.publisher() as publisher:
            for path in paths:
                publisher.send(OutgoingBlock.from_file(path))
        with client.subscribe(0, 9) as blocks:
            for block in blocks: ...

Names and meanings are those of the async client (`block_node.client`), without `await`; the modules are generated from
it. It does its I/O inside calls and has no threads: blocks go out, and acknowledgements are taken, while a call such
as `send` or `flush` is running. It is for one thread at a time.
"""

from block_node.client.blocking.client import BlockClient
from block_node.client.blocking.connecting import connect
from block_node.client.blocking.publisher import BlockPublisher

__all__ = ["BlockClient", "BlockPublisher", "connect"]
