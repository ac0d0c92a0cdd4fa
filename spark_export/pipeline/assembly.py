"""Assembles one block of Cardinal Streams from its messages, with `cardinal_streams.Reassembler`, which consumers use.

A publisher can send a block on the normal topics of its chain and on reorg channels, which are topics for one reorg. As
in a consumer, the normal topics and each reorg channel are assembled separately. The result does not depend on the
order of the messages. If several messages have the same key, the message that was stored first counts.

This module does no I/O.
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
Place = tuple[int, int, int]
"""The place of a message in the order of storage: time (microseconds since 1970), then partition, then index."""


@dataclass(frozen=True, slots=True)
class BlockMessage:
    """A stored message of one block. `feed` is "" for the chain's normal topics, else the end of a reorg channel's
    name."""

    feed: str
    place: Place
    key: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Assembled:
    """The result of assembling a block. If incomplete, `missing` says why, and `values` and `deletes` are None."""

    number: int
    parent: bytes
    weight: int
    values: list[tuple[str, bytes]] | None
    deletes: list[str] | None
    missing: str | None


def assemble(messages: Iterable[BlockMessage]) -> Assembled | None:
    """Assembles a block from its messages, which all have the same block hash.

    Returns None without a readable Batch message, which begins a block. Of several complete feeds, the normal topics
    have priority, then the reorg channel with the smallest name.
    """
    feeds: dict[str, list[BlockMessage]] = defaultdict(list)
    for message in messages:
        feeds[message.feed].append(message)
    opened: Assembled | None = None
    for feed in sorted(feeds):
        # The Batch message has the smallest key, so it is processed first, and tells which other messages to expect.
        found = _assemble_feed(sorted(feeds[feed], key=lambda message: (message.key, message.place)))
        if isinstance(found, CompleteBatch):
            values, deletes = sorted(found.values.items()), sorted(found.deletes)
            return Assembled(found.number, found.parent, found.weight, values, deletes, None)
        opened = opened or found
    return opened


def _assemble_feed(messages: list[BlockMessage]) -> CompleteBatch | Assembled | None:
    """Assembles a block from the messages of one feed. Returns None without a readable Batch message."""
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
    """Returns the block hash in a Batch message, which begins a block; None for any other message."""
    try:
        message = decode(key, data)
    except MessageError:
        return None
    return message.hash if isinstance(message, Batch) else None
