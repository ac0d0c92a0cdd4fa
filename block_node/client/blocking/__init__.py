"""The client of block nodes for programs without an event loop: scripts, notebooks.

    with connect("127.0.0.1:4000") as client:
        with client.publisher() as publisher:
            for path in paths:
                publisher.send(OutgoingBlock.from_file(path))
        with client.subscribe(0, 9) as blocks:
            for block in blocks: ...

The names and meanings are those of the async client (`block_node.client`), without `await`. The client has no threads,
and sends and receives only inside its calls. So blocks are sent and acknowledgements are received while a call such as
`send` or `flush` runs. Only one thread may use a client at a time.
"""

from block_node.client.blocking.twins import BlockClient, BlockPublisher, connect

__all__ = ["BlockClient", "BlockPublisher", "connect"]
