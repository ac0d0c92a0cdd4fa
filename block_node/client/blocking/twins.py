"""The objects of the blocking client of block nodes. The docstrings of the async client explain the methods."""

from __future__ import annotations

from collections.abc import Sequence

from block_node.client import client as async_client
from block_node.client import publish_sessions, subscribing
from block_node.client.publish_sessions import ANSWER_S_MAX
from block_node.client.subscribing import ReceivedBlock, SubscriptionEvent
from stream_client.blocking import StreamClient
from stream_client.blocking.driving import Twin, TwinIterator, blocking, iterating, like, opening, same


class BlockPublisher(Twin[publish_sessions.BlockPublisher]):
    sessions: int
    compared: int
    acknowledged: int | None
    kept: int
    send = blocking(publish_sessions.BlockPublisher.send)
    flush = blocking(publish_sessions.BlockPublisher.flush)
    close = same(publish_sessions.BlockPublisher.close)
    abort = same(publish_sessions.BlockPublisher.abort)


class Subscription(TwinIterator[subscribing.Subscription, SubscriptionEvent]):
    connections: int
    begin = blocking(subscribing.Subscription.begin)
    close = same(subscribing.Subscription.close)


class WholeBlocks(TwinIterator[async_client.WholeBlocks, ReceivedBlock]):
    pass


class BlockClient(Twin[async_client.BlockClient]):
    publisher = same(opening(async_client.BlockClient.publisher, BlockPublisher._of))
    subscribe_events = same(opening(async_client.BlockClient.subscribe_events, Subscription._of))
    subscribe = same(opening(async_client.BlockClient.subscribe, WholeBlocks._of))
    status = blocking(async_client.BlockClient.status)
    get = blocking(async_client.BlockClient.get)
    get_parts = same(iterating(async_client.BlockClient.get_parts))

    @like(async_client.BlockClient.__init__)
    def __init__(self, clients: Sequence[StreamClient], *, answer_s_max: float = ANSWER_S_MAX) -> None:
        self._twin = async_client.BlockClient([each._twin for each in clients], answer_s_max=answer_s_max)


connect = opening(async_client.connect, BlockClient._of)
