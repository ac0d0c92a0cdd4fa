"""The interface of a source of blocks: another node that reports which blocks it has, and sends blocks.

A source calls its callbacks in the trio thread, and only after the call that started the request has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from block_node.persist.ranges import BlockRanges
from block_node.protocol_reading import SubscribeStatus

ANSWER_S_MAX = 10.0
"""The longest wait for the first answer. Messages to an unreachable source node are lost without an error."""
LOOK_S = 1.0
LACKING = frozenset(
    {SubscribeStatus.NOT_AVAILABLE, SubscribeStatus.INVALID_START_BLOCK, SubscribeStatus.INVALID_END_BLOCK}
)
"""The reasons that mean that the source node does not have the blocks that it claimed."""

StatusDone = Callable[[BlockRanges | None, str], None]
"""The callback of `ask_status`: the blocks of the source node, or None and the reason of the failure."""


RootDone = Callable[[bytes | None, str], None]
"""The callback of `ask_root`: the root hash, or None and the reason of the failure."""


class FetchListener(Protocol):
    """Receives the blocks of one request. No method is called after `ended`."""

    def grew(self, size_bytes: int) -> None: ...

    def block(self, number: int, items: list[bytes]) -> None: ...

    def ended(self, reason: str, *, lied: bool) -> None:
        """The request has failed. lied: the source node lacks blocks that it claimed, or sent invalid messages."""
        ...


class RunningFetch(Protocol):
    def cancel(self) -> None:
        """Cancels the request: its listener is not called any more. Safe to repeat."""
        ...


class BlockSource(Protocol):
    """`RouteSource` over an Ockam route, or `GrpcSource` over the gRPC services of the reference block node."""

    def ask_status(self, on_done: StatusDone) -> None: ...

    def ask_root(self, number: int, size_bytes: int, on_done: RootDone) -> None:
        """size_bytes: the size of the block if it is stored here: the source then sends no bytes of it; else 0."""
        ...

    def fetch(self, first: int, last: int, listener: FetchListener) -> RunningFetch: ...

    def close(self) -> None:
        """Ends the connections that this source has opened for itself. It gets no further request."""
        ...
