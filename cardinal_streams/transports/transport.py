"""The interface of all transports: topics, partitions, and how a message finds its partition. It carries no messages
itself.

A transport has topics with partitions. Each partition is an ordered log of deliveries with growing offsets. A transport
may deliver a message more than once, and promises no order between partitions. The channel of a reorg is a topic of its
own with one partition; `reorg_topic` names it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

import bare
from cardinal_streams.message.types import Record
from cardinal_streams.resumption import source_of


class Delivery(msgspec.Struct, frozen=True):
    """A message in a partition.

    type Delivery struct {
      topic: str
      partition: uint
      offset: uint
      key: data
      value: data
    }
    """

    topic: str
    partition: bare.UInt
    offset: bare.UInt
    key: bytes
    value: bytes

    @property
    def source(self) -> str:
        """The partition's name in tokens and in the machines."""
        return source_of(self.topic, self.partition)


class Sender(Protocol):
    """The interface of a producer's end of a transport."""

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        """Sends the records of each topic in their order, topic after topic. The transport has kept them when this
        returns."""


class Receiver(Protocol):
    """The interface of one subscription, a consumer's end of a transport."""

    @property
    def ends(self) -> Mapping[str, int]:
        """By source, the offset behind the last record, as far as the receiver knows without asking."""

    async def receive_some(self) -> Sequence[Delivery]:
        """Waits for deliveries and returns all that have arrived. An empty sequence means that the subscription has
        ended."""


class Transport(Sender, Protocol):
    """The interface of a transport with both ends."""

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        """By source, the offset behind the last record of each partition of these topics. Creates topics that are
        missing."""

    def subscribe(
        self, topics: Collection[str], position: Mapping[str, int], *, stop_at_end: bool = False
    ) -> AbstractAsyncContextManager[Receiver]:
        """Reads all partitions of these topics: endlessly, or up to their present ends (`stop_at_end`). Each partition
        begins at its offset in `position`, or at its earliest record if `position` does not name it."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a message: the CRC-32 of its key, modulo the number of partitions."""
    return zlib.crc32(key) % partitions


_REORG_TOPIC = re.compile(r"-re-[0-9a-f]{64}\Z")


def reorg_topic(default_topic: str, ancestor: bytes) -> str:
    """The topic of the reorg to the common ancestor with this hash, named as in the real producer's design."""
    return f"{default_topic}-re-{ancestor.hex()}"


def is_reorg_topic(topic: str) -> bool:
    """Whether a topic is the channel of a reorg, which has one partition."""
    return _REORG_TOPIC.search(topic) is not None
