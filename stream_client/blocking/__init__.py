"""The client for programs without an event loop: scripts, Spark executors. It needs neither trio nor AnyIO.

    with blocking.connect("127.0.0.1:4000") as client:
        stream = client.create("orders")
        index = stream.push(b"hello")
        for message in stream.pull(0, 10):
            print(message.index, message.data)

Names and meanings are those of the async client (`stream_client`), without `await`: the objects of this client run the
coroutines of the async objects to their end (`driving`). Only one thread may use a client at a time: a
call during another thread's call raises RuntimeError. A child process that fork() makes must open its own client: in
the child, the client of the parent raises ClientForked.

The client has no threads and does its I/O inside calls. Later pushes also send the messages of earlier pushes; the rest
is sent when the publisher is flushed or its block ends. Leases are renewed only while the program is inside a call, for
example of an iterator.
"""

from stream_client.blocking.twins import (
    Connected,
    Consumer,
    Conversation,
    Correspondent,
    Follower,
    LeaseMember,
    Messages,
    PartitionedConsumer,
    PartitionedPublisher,
    PartitionedStream,
    PositionListing,
    Positions,
    Publisher,
    RoutedMessages,
    SavedIndexes,
    SharedConsumer,
    SharedMessages,
    Stream,
    StreamClient,
    StreamListing,
    connect,
    list_positions,
    set_position,
)
from stream_client.stopping import stop_on_signals_blocking as stop_on_signals

__all__ = [
    "Connected",
    "Consumer",
    "Conversation",
    "Correspondent",
    "Follower",
    "LeaseMember",
    "Messages",
    "PartitionedConsumer",
    "PartitionedPublisher",
    "PartitionedStream",
    "PositionListing",
    "Positions",
    "Publisher",
    "RoutedMessages",
    "SavedIndexes",
    "SharedConsumer",
    "SharedMessages",
    "Stream",
    "StreamClient",
    "StreamListing",
    "connect",
    "list_positions",
    "set_position",
    "stop_on_signals",
]
