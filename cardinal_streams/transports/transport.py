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
    """A message as it lies in a partition.

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
    """The producer's end."""

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        """Sends the records of each topic in the order given, topic after topic. Returns when they are kept."""


class Receiver(Protocol):
    """The consumer's end of one subscription."""

    @property
    def ends(self) -> Mapping[str, int]:
        """By source, the offset of the next record to come, as far as is known without asking."""

    async def receive_some(self) -> Sequence[Delivery]:
        """Waits for deliveries and returns those that are there. An empty sequence means that no more will come."""


class Transport(Sender, Protocol):
    """Both ends."""

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        """The offset of the next record of each partition of these topics, by source; topics are made if missing."""

    def subscribe(
        self, topics: Collection[str], position: Mapping[str, int], *, stop_at_end: bool = False
    ) -> AbstractAsyncContextManager[Receiver]:
        """Reads all partitions of these topics, each from its offset in `position` (by source), else from the
        earliest that is kept: for ever, or up to what is there now (`stop_at_end`)."""


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
