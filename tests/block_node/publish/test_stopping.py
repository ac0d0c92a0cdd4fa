"""Goal: a node that is told to stop says so to every publisher and subscriber, after all that it has to acknowledge.

Method: a whole server that is stopped while a publisher is in the middle of a block; what comes over the sockets.
"""

from __future__ import annotations

from pathlib import Path

import trio

from block_node.protocol import (
    PUBLISH,
    Acknowledgement,
    BlockItems,
    EndOfBlock,
    OpenSession,
    PublishRequest,
    PublishResponse,
    PublishStatus,
    StreamEnded,
)
from block_node.protocol_reading import (
    SUBSCRIBE,
    Subscribe,
    Subscribed,
    SubscribedBlockEnd,
    SubscribeResponse,
    SubscribeStatus,
    SubscriptionEnded,
)
from stream_client import StreamClient
from stream_client import connect as connect_streams
from stream_client.session import Conversation
from stream_node.node.config import Config
from stream_node.node.server import Server
from tests.block_node.publish.samples import chain_of
from tests.support.served import PATIENCE_S


async def test_a_node_that_stops_ends_every_stream_with_a_status(tmp_path: Path) -> None:
    """One publisher has sent block 0 and half of block 1, another one nothing, and a subscriber waits for block 1."""
    server = Server(Config(data_dir=str(tmp_path), listen="127.0.0.1:0", log_level="error"))
    first, second = chain_of(2)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(server.serve)
            async with connect_streams(address) as connection:
                busy, idle = await opened(connection, b"busy"), await opened(connection, b"idle")
                reader = connection.converse("block_subscribe")
                await reader.send(SUBSCRIBE.encode_request(Subscribe(1, 0, None, False, 1 << 20)))
                await say(busy, BlockItems(0, list(first.items)), EndOfBlock(1, 0), BlockItems(2, [*second.items[:2]]))
                while not isinstance(await read(reader), SubscribedBlockEnd):
                    pass
                server.stop()
                ended = StreamEnded(PublishStatus.SUCCESS, 0, None, REASON)
                assert [await hear(busy), await hear(busy)] == [Acknowledgement(0), ended]
                assert [await hear(idle), await hear(idle)] == [Acknowledgement(0), ended]
                last = await read(reader)
                assert isinstance(last, SubscriptionEnded)
                assert (last.status, last.reason) == (SubscribeStatus.ERROR, REASON)


async def test_what_was_complete_is_acknowledged_before_the_end(tmp_path: Path) -> None:
    """The stop comes at once behind the end of a block, while it is being stored: no publisher is left in doubt."""
    server = Server(Config(data_dir=str(tmp_path), listen="127.0.0.1:0", log_level="error"))
    (block,) = chain_of(1)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(server.serve)
            async with connect_streams(address) as connection:
                publisher = await opened(connection, b"")
                await say(publisher, BlockItems(0, list(block.items)), EndOfBlock(1, 0))
                while server.statistics().services.blocks is None or not _begun(server):
                    await trio.lowlevel.checkpoint()
                server.stop()
                assert await hear(publisher) == Acknowledgement(0)
                assert await hear(publisher) == StreamEnded(PublishStatus.SUCCESS, 0, None, REASON)


REASON = "the node stops; go on at another one, or here when it is back"


def _begun(server: Server) -> bool:
    """Whether the server has heard of the block."""
    blocks = server.statistics().services.blocks
    assert blocks is not None
    publish = blocks.node.publish
    return publish is not None and publish.in_flight.begun > 0


async def opened(connection: StreamClient, token: bytes) -> Conversation:
    """A conversation with a session of its own."""
    conversation = connection.converse("block_publish")
    await say(conversation, OpenSession(token))
    await hear(conversation)
    return conversation


async def say(conversation: Conversation, *requests: PublishRequest) -> None:
    for request in requests:
        await conversation.send(PUBLISH.encode_request(request))


async def hear(conversation: Conversation) -> PublishResponse:
    payload = await conversation.receive()
    assert payload is not None
    return PUBLISH.decode_response(payload)


async def read(conversation: Conversation) -> SubscribeResponse:
    payload = await conversation.receive()
    assert payload is not None
    response = SUBSCRIBE.decode_response(payload)
    return await read(conversation) if isinstance(response, Subscribed) else response
