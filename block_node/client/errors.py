"""The errors of block clients, in addition to the errors of all clients (`stream_client.errors`)."""

from __future__ import annotations

from block_node.blocks.hash_scheme import RootCandidate, names_of
from block_node.protocol import PublishStatus
from block_node.protocol_reading import GetStatus, SubscribeStatus
from stream_client.errors import ClientError


class BlockRefused(ClientError):
    """The node refuses a block because the block is invalid.

    number: None if the node did not name a block.
    status: the reason of the node.
    """

    def __init__(self, number: int | None, status: PublishStatus, reason: str) -> None:
        self.number = number
        self.status = status
        which = "the stream" if number is None else f"block {number}"
        super().__init__(f"{which} was refused ({status.name}): {reason}")


class AnotherBlock(ClientError):
    """Two different blocks have the same number: the program's and the node's, or two blocks of the program.

    - stored: the root hash of the node's block, or of the program's first block.
    - given: the possible root hashes of the program's block, one for each hash scheme. This block is not durable.
    - node: the address of the node. None if both blocks are the program's.
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
    """The node had a block with this number but has deleted it. So it is unknown whether it was the program's block.

    given: the possible root hashes of the program's block, one for each hash scheme.
    """

    def __init__(self, number: int, given: tuple[RootCandidate, ...], node: str) -> None:
        self.number = number
        self.given = given
        super().__init__(
            f"it is unknown whether block {number} with root {names_of(given)} was ever stored: {node} had a block "
            "of that number and does not keep it any more; ask a node that does"
        )


class PublishGaveUp(ClientError):
    """The publisher gave up, because no block was acknowledged for a long time. Acknowledged blocks are durable."""

    fault = "network"
    retriable = True


class SubscriptionRefused(ClientError):
    """No node provides the requested blocks. status: the reason of the last node."""

    def __init__(self, status: SubscribeStatus, reason: str) -> None:
        self.status = status
        super().__init__(f"the subscription was refused ({status.name}): {reason}")


class BlockNotAvailable(ClientError):
    """The node cannot provide the requested block. status: the reason of the node."""

    def __init__(self, number: int | None, status: GetStatus) -> None:
        self.status = status
        which = "no block is stored" if number is None else f"block {number} is not available"
        super().__init__(f"{which} ({status.name}); ask for the status to see what is")


class DamagedAnswer(ClientError):
    """A received block is damaged: messages are missing, or the bytes are not a block."""

    fault = "node"
    retriable = True
