"""What a client of a block node can run into, beside what every client can (`stream_service.client.errors`)."""

from __future__ import annotations

from block_node.protocol import PublishStatus
from block_node.protocol_reading import GetStatus, SubscribeStatus
from stream_service.client.errors import ClientError


class BlockRefused(ClientError):
    """The node does not take this block: it is not what it should be. status: the node's word for it."""

    def __init__(self, number: int | None, status: PublishStatus, reason: str) -> None:
        self.number = number
        self.status = status
        which = "the stream" if number is None else f"block {number}"
        super().__init__(f"{which} was refused ({status.name}): {reason}")


class PublishGaveUp(ClientError):
    """No block was acknowledged for so long that the publisher gave up; what was acknowledged is durable."""

    fault = "network"
    retriable = True


class SubscriptionRefused(ClientError):
    """No node gives these blocks. status: the last node's word for it."""

    def __init__(self, status: SubscribeStatus, reason: str) -> None:
        self.status = status
        super().__init__(f"the subscription was refused ({status.name}): {reason}")


class BlockNotAvailable(ClientError):
    """The node cannot give this block. status: its word for why not."""

    def __init__(self, number: int | None, status: GetStatus) -> None:
        self.status = status
        which = "no block is stored" if number is None else f"block {number} is not available"
        super().__init__(f"{which} ({status.name}); ask for the status to see what is")


class DamagedAnswer(ClientError):
    """What came of a block is not whole: messages are missing, or the bytes are no block."""

    fault = "node"
    retriable = True
