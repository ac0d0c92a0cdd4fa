"""The client of block nodes for async programs: `connect`, the blocks to publish, and the typed errors.

`block_node.client.blocking` is the same client for programs without an event loop.
"""

from block_node.client.client import BlockClient, connect
from block_node.client.errors import (
    AnotherBlock,
    BlockNotAvailable,
    BlockNotCompared,
    BlockRefused,
    BlockTooLarge,
    DamagedAnswer,
    PublishGaveUp,
    SubscriptionRefused,
)
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publish_sessions import BlockPublisher, PublishSettings
from block_node.client.subscribing import BlockArrived, BlockWithdrawn, ItemsArrived, ReceivedBlock

__all__ = [
    "AnotherBlock",
    "BlockArrived",
    "BlockClient",
    "BlockNotAvailable",
    "BlockNotCompared",
    "BlockPublisher",
    "BlockRefused",
    "BlockTooLarge",
    "BlockWithdrawn",
    "DamagedAnswer",
    "ItemsArrived",
    "OutgoingBlock",
    "PublishGaveUp",
    "PublishSettings",
    "ReceivedBlock",
    "SubscriptionRefused",
    "connect",
]
