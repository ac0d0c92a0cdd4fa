"""The errors of block clients, in addition to the errors of all clients (`stream_client.errors`)."""

from __future__ import annotations

from typing import Final

from block_node.blocks.merkle import RootCandidate, names_of
from block_node.protocol import PublishStatus
from block_node.protocol_reading import GetStatus, StatusResponse, SubscribeStatus
from stream_client.errors import ClientError

FINAL: Final = frozenset(
    {SubscribeStatus.INVALID_REQUEST, SubscribeStatus.INVALID_START_BLOCK, SubscribeStatus.INVALID_END_BLOCK}
)
"""The statuses of refusals that every node would repeat."""


class BlockRefused(ClientError):
    """The node refuses a block because the block is invalid. number: None if the node did not name a block."""

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

    in_doubt = True

    def __init__(self, number: int, given: tuple[RootCandidate, ...], node: str) -> None:
        self.number = number
        self.given = given
        super().__init__(
            f"it is unknown whether block {number} with root {names_of(given)} was ever stored: {node} had a block "
            "of that number and does not keep it any more; ask a node that does"
        )


class PublishGaveUp(ClientError):
    """The publisher gave up, because no block was acknowledged for a long time. Acknowledged blocks are durable.

    Blocks that were sent and not acknowledged may be stored.
    """

    fault = "network"
    retriable = True
    in_doubt = True


class SubscriptionRefused(ClientError):
    """No node provides the requested blocks. status: the reason of the last node."""

    def __init__(self, status: SubscribeStatus, reason: str) -> None:
        self.status = status
        self.retriable = status not in FINAL
        super().__init__(f"the subscription was refused ({status.name}): {reason}")


class BlockNotAvailable(ClientError):
    """The node cannot provide the requested block. status: the reason of the node.

    has: the status of the node, which shows the cause for the error text; None if the node does not tell its status.
    """

    def __init__(self, number: int | None, status: GetStatus, node: str, has: StatusResponse | None) -> None:
        self.status = status
        if status in (GetStatus.NOT_FOUND, GetStatus.ERROR):
            self.fault = "node"
        why, self.retriable = _why(number, status, has)
        which = "no block is stored" if number is None else f"block {number} is not available"
        super().__init__(f"{which} at {node} ({status.name}): {why}")


def _why(number: int | None, status: GetStatus, has: StatusResponse | None) -> tuple[str, bool]:
    """Returns the cause as a text, and whether this node can have the block later."""
    if status is GetStatus.NOT_FOUND:
        return "its stored bytes are damaged or gone; backfill or `block publish` of this block mends it", True
    if status is not GetStatus.NOT_AVAILABLE:
        return "the node cannot read it; the node's log says why", status is GetStatus.ERROR
    if has is None or has.detail is None:
        return "the node does not tell what it has; ask another node", False
    available, stored = has.detail.available, has.detail.stored
    if not stored:
        return "the node has no blocks; publish some, or fetch them by backfill", True
    if number is None or any(each.first_block <= number <= each.last_block for each in stored):
        return "the node has deleted it by its retention; ask a node that keeps more blocks", False
    below = max((each.last_block for each in stored if each.last_block < number), default=None)
    above = min((each.first_block for each in available if each.first_block > number), default=None)
    if above is None:
        return f"it has not come yet, the latest is block {below}; `block subscribe --from {number}` waits for it", True
    if below is None:
        return f"the blocks of the node begin with block {above}; ask another node, or fetch it by backfill", False
    gap = f"between blocks {below} and {above}"
    return f"it is missing {gap}; backfill or `block publish` of this block brings it", True


class DamagedAnswer(ClientError):
    """A received block is damaged: messages are missing, or the bytes are not a block."""

    fault = "node"
    retriable = True


class BlockTooLarge(ClientError):
    """A node sends a block that is larger than the subscriber takes. bytes_max: the limit."""

    fault = "node"

    def __init__(self, address: str, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        super().__init__(
            f"{address} sends a block of more than {bytes_max} bytes; if it can be so large, raise block_bytes_max"
        )
