"""Clients of block nodes: `BlockClient`, the blocks to publish, and the typed errors.

For programs without an event loop there is the same client in `block_node.client.blocking`.
"""

from block_node.client.client import BlockClient, ReceivedBlock
from block_node.client.errors import (
    AnotherBlock,
    BlockNotAvailable,
    BlockNotCompared,
    BlockRefused,
    DamagedAnswer,
    PublishGaveUp,
    SubscriptionRefused,
)
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publisher import BlockPublisher, PublishSettings
from block_node.client.subscriber import BlockArrived, BlockWithdrawn, ItemsArrived

__all__ = [
    "AnotherBlock",
    "BlockArrived",
    "BlockClient",
    "BlockNotAvailable",
    "BlockNotCompared",
    "BlockPublisher",
    "BlockRefused",
    "BlockWithdrawn",
    "DamagedAnswer",
    "ItemsArrived",
    "OutgoingBlock",
    "PublishGaveUp",
    "PublishSettings",
    "ReceivedBlock",
    "SubscriptionRefused",
]
