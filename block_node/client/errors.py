"""What a client of a block node can run into, beside what every client can (`stream_client.errors`)."""

from __future__ import annotations

from block_node.blocks.hash_scheme import RootCandidate, names_of
from block_node.protocol import PublishStatus
from block_node.protocol_reading import GetStatus, SubscribeStatus
from stream_client.errors import ClientError


class BlockRefused(ClientError):
    """The node does not take this block: it is not what it should be. status: the node's word for it."""

    def __init__(self, number: int | None, status: PublishStatus, reason: str) -> None:
        self.number = number
        self.status = status
        which = "the stream" if number is None else f"block {number}"
        super().__init__(f"{which} was refused ({status.name}): {reason}")


class AnotherBlock(ClientError):
    """Two different blocks have the same number: the node's and the one that was given, or two that were given.

    stored: the root of the node's, or of the one that was given first. given: the root of the bytes that were given,
    which are not durable, by each hash scheme that may be meant. node: None where both were given.
    """

    def __init__(self, number: int, stored: bytes, given: tuple[RootCandidate, ...], node: str | None) -> None:
        self.number = number
        self.stored = stored
        self.given = given
        self.node = node
        if node is None:
            text = f"two different blocks {number} were given, with root {stored.hex()} and with root {names_of(given)}"
        else:
            text = f"block {number} is not stored: {node} has another block {number}, with root {stored.hex()}; "
            text += f"the one that was given has root {names_of(given)}"
        super().__init__(f"{text}; find out which source is wrong")


class BlockNotCompared(ClientError):
    """The node had a block with this number and does not keep it any more, so that it is unknown whether it was ours.

    given: the root of the bytes that were given, by each hash scheme that may be meant.
    """

    def __init__(self, number: int, given: tuple[RootCandidate, ...], node: str) -> None:
        self.number = number
        self.given = given
        super().__init__(
            f"it is unknown whether block {number} with root {names_of(given)} was ever stored: {node} had a block "
            "of that number and does not keep it any more; ask a node that does"
        )


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
