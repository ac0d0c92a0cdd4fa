"""Puts one block of Cardinal Streams together from its messages, with the consumer's own machine
(`cardinal_streams.Reassembler`). Pure.

A block is assembled from the normal topics of its chain, and separately from each reorg channel on which it was sent,
as the consumer does. The result depends on the set of messages, not on their order: copies of a message have the same
key, and the copy that was stored first counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cardinal_streams.errors import MessageError
from cardinal_streams.limits import ReassemblyLimits
from cardinal_streams.machines.reassembly_events import Completed
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import decode
from cardinal_streams.message.types import Batch
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import TRACK_ALL

UNLIMITED = ReassemblyLimits(incomplete_max=1, incomplete_bytes_max=1 << 62, idle_messages_max=1 << 62, finished_max=1)
"""One block is assembled at a time. It has room for all its messages."""
Place = tuple[int, int, int]
"""When a message was stored, in microseconds since 1970, and its partition and index, which break ties."""


@dataclass(frozen=True, slots=True)
class BlockMessage:
    """A stored message of one block. feed: "" for the chain's normal topics, else the suffix of the reorg channel."""

    feed: str
    place: Place
    key: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Assembled:
    """A block as its messages describe it. values, deletes: what the consumer delivers, sorted by key; None while the
    block is incomplete. missing: a text that names the missing messages; None for a complete block.
    """

    number: int
    parent: bytes
    weight: int
    values: list[tuple[str, bytes]] | None
    deletes: list[str] | None
    missing: str | None


def assemble(messages: Iterable[BlockMessage]) -> Assembled | None:
    """Returns the block of these messages, which all have the same block hash. None without a readable Batch message.

    If the block is complete on several feeds, the normal topics count, then the reorg channel with the smallest name.
    """
    feeds: dict[str, list[BlockMessage]] = defaultdict(list)
    for message in messages:
        feeds[message.feed].append(message)
    opened: Assembled | None = None
    for feed in sorted(feeds):
        # The Batch has the smallest key, so it comes first and each message after it is counted at once.
        found = _assemble_feed(sorted(feeds[feed], key=lambda message: (message.key, message.place)))
        if isinstance(found, CompleteBatch):
            values, deletes = sorted(found.values.items()), sorted(found.deletes)
            return Assembled(found.number, found.parent, found.weight, values, deletes, None)
        opened = opened or found
    return opened


def _assemble_feed(messages: list[BlockMessage]) -> CompleteBatch | Assembled | None:
    """Assembles a block from the messages of one feed. Returns the complete block, an incomplete one, or None without a
    readable Batch message."""
    machine = Reassembler(TRACK_ALL, UNLIMITED)
    batch: Batch | None = None
    for offset, each in enumerate(messages):
        try:
            message = decode(each.key, each.data)
        except MessageError:
            continue
        if isinstance(message, Batch):
            batch = batch or message
        for event in machine.receive(message, each.feed, offset):
            if isinstance(event, Completed):
                return event.batch
    if batch is None:
        return None
    missing = str(machine.why_incomplete(batch.hash))
    return Assembled(batch.number, batch.parent, batch.weight, None, None, missing)


def read_batch_hash(key: bytes, data: bytes) -> bytes | None:
    """Returns the hash of the block if the message is a readable Batch, else None."""
    try:
        message = decode(key, data)
    except MessageError:
        return None
    return message.hash if isinstance(message, Batch) else None
