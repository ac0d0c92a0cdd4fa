"""GrpcLimits: the bounds of the block services over gRPC. `Http2Limits` has the bounds of their connections."""

from __future__ import annotations

from collections.abc import Collection

import msgspec


class GrpcLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the calls of all peers.

    - message_bytes_max: the largest message of a publisher, as "server.maxMessageSizeBytes" of the reference block
      node. The size of a block has a bound of its own: one block can come in several messages.
    - publish_window_bytes: how much an admitted publisher may send before its messages are taken.
    - duplicate_window: a publisher is asked to skip a duplicate block at most this many numbers below the last block.
      After an older block, its stream ends (facts/block_node.md §2.2).
    - behind_again_s: a party (a host or an identity) is told only once in this time that the node is behind. For
      another block that is too high, it is asked for the next block instead. Real publishers leave when they are told
      twice within 30 s. This time is longer, because the second answer may arrive faster than the first.
    """

    message_bytes_max: int = 131_072_000
    publish_window_bytes: int = 8 * 1024 * 1024
    duplicate_window: int = 5
    behind_again_s: float = 40.0


SERVICES = {
    "publish": "BlockStreamPublishService",
    "subscribe": "BlockStreamSubscribeService",
    "access": "BlockAccessService",
    "status": "BlockNodeService",
}
"""The services about blocks, by the names that stand for them in an address of the door (`read_services`)."""
ASK_BYTES_MAX = 64 * 1024
"""The largest request of a reader. Requests of real readers have a few bytes."""


def read_services(address: str) -> tuple[str, Collection[str]]:
    """Splits `HOST:PORT` or `HOST:PORT/NAME+NAME`. Returns the address without the names, and the services that it
    serves; without a name, all. Raises ValueError for a name that is not in SERVICES."""
    plain, slash, names = address.partition("/")
    if not slash:
        return plain, SERVICES.values()
    unknown = [name for name in names.split("+") if name not in SERVICES]
    if unknown:
        raise ValueError(
            f"{address!r}: {unknown[0]!r} is no service; after the / write {', '.join(SERVICES)}, with + between"
        )
    return plain, [SERVICES[name] for name in names.split("+")]
