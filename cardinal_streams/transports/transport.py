"""The interface of all transports, which carry messages on topics.

Each topic has partitions, and the key of a message chooses its partition, an ordered log of messages with growing
offsets. A transport can deliver a message more than once, and promises no order between partitions. The channel of a
reorg is a separate topic with one partition (`reorg_topic`).

A resumption token says at which offset reading continues in each partition. It has the form `topic:partition=offset;…`,
ordered by `topic:partition`, the name of the source. A topic can contain colons, but neither ';' nor '='."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

import bare
from cardinal_streams.errors import ResumptionError
from cardinal_streams.message.messages import Record


def source_of(topic: str, partition: int) -> str:
    """Returns the name of a partition as a source of messages: `topic:partition`. Raises `ResumptionError` for an empty
    topic, a topic with ';' or '=', and a negative partition."""
    if not topic or partition < 0 or ";" in topic or "=" in topic:
        raise ResumptionError(f"partition {partition} of topic {topic!r} cannot be named in a token")
    return f"{topic}:{partition}"


def split_source(source: str) -> tuple[str, int]:
    """Splits the source name `topic:partition`. Raises `ResumptionError` if the text has another form."""
    topic, colon, partition = source.rpartition(":")
    if not colon or not topic or not _is_number(partition):
        raise ResumptionError(f"{source!r} is not topic:partition")
    return topic, int(partition)


def format_token(position: Mapping[str, int]) -> str:
    return ";".join(f"{source}={position[source]}" for source in sorted(position))


def parse_token(token: str) -> dict[str, int]:
    """Returns the offset of each source in a token, which can be empty. Raises `ResumptionError`."""
    position: dict[str, int] = {}
    for part in token.split(";") if token else ():
        source, equals, offset = part.partition("=")
        if not equals or not _is_number(offset):
            raise ResumptionError(f"{part!r} is not topic:partition=offset")
        split_source(source)
        if source in position:
            raise ResumptionError(f"{source!r} is named twice")
        position[source] = int(offset)
    return position


def _is_number(text: str) -> bool:
    # `int` refuses numbers with thousands of digits; no 64-bit number has more than 20.
    return text.isascii() and text.isdigit() and len(text) <= 20


class Delivery(msgspec.Struct, frozen=True):
    """A message with its location: topic, partition and offset.

    type Delivery struct {
      topic: str
      partition: uint
      offset: uint
      key: data
      value: data
    }"""

    topic: str
    partition: bare.UInt
    offset: bare.UInt
    key: bytes
    value: bytes

    @property
    def source(self) -> str:
        """The name of the partition in resumption tokens and checkpoints: `topic:partition`."""
        return source_of(self.topic, self.partition)


class Sender(Protocol):
    """The sending part of a transport."""

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        """Sends the records of each topic in their order, one topic after the other. They are stored when `send`
        returns."""


class Receiver(Protocol):
    """The interface of one subscription to topics of a transport."""

    @property
    def ends(self) -> Mapping[str, int]:
        """The offset after the last record of each source (`topic:partition`), as far as the receiver knows it.
        Deleted records do not count."""

    @property
    def created(self) -> Mapping[str, int]:
        """When each source (`topic:partition`) was created, as far as the receiver knows it (`Transport.created`)."""

    async def receive_some(self) -> Sequence[Delivery]:
        """Waits for messages, and returns them. An empty sequence means that the subscription has ended."""


class Transport(Sender, Protocol):
    """The interface of a transport, which both sends and receives messages."""

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        """Returns, by source (`topic:partition`), the offset after the last record of each partition of existing
        topics."""

    async def created(self, topics: Collection[str]) -> dict[str, int]:
        """Returns, by source (`topic:partition`), when each partition of these topics was created, in microseconds
        since 1970. A topic that was deleted and made again has other times. Empty if the transport knows no times."""

    def subscribe(
        self, topics: Collection[str], position: Mapping[str, int], *, stop_at_end: bool = False
    ) -> AbstractAsyncContextManager[Receiver]:
        """Reads all partitions of these topics: endlessly, or up to their present ends (`stop_at_end`).

        `position` maps a source (`topic:partition`) to the offset at which reading begins. A partition that is not in
        `position` is read from its earliest record."""


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of a message: the CRC-32 of its key, modulo the number of partitions."""
    return zlib.crc32(key) % partitions


_REORG_TOPIC = re.compile(r"-re-[0-9a-f]{64}\Z")


def reorg_topic(default_topic: str, ancestor: bytes) -> str:
    """Returns the name of a reorg's channel (topic), by the common ancestor's hash, as in the reference producer's
    design."""
    return f"{default_topic}-re-{ancestor.hex()}"


def is_reorg_topic(topic: str) -> bool:
    """Whether a topic is the channel of a reorg, which has one partition."""
    return _REORG_TOPIC.search(topic) is not None
