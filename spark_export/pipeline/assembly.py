"""Assembles one block of Cardinal Streams from its messages, with `cardinal_streams.Reassembler`, which consumers use.

A publisher can send a block on the normal topics of its chain and on reorg channels, which are topics for one reorg. As
in a consumer, the normal topics and each reorg channel (a feed) are assembled separately. The result does not depend on
the order of the messages. If several messages have the same key, the message that was stored first counts.

This module does no I/O. Spark's workers run its functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from cardinal_streams.errors import MessageError
from cardinal_streams.limits import ReassemblyLimits
from cardinal_streams.machines.reassembly_events import Completed
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import decode
from cardinal_streams.message.types import Batch
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import TRACK_ALL

UNLIMITED = ReassemblyLimits(incomplete_max=1, incomplete_bytes_max=1 << 62, idle_messages_max=1 << 62, finished_max=1)
Assembled = tuple[int, bytes, str, list[tuple[str, bytes]] | None, list[str] | None, str | None]
"""Number, parent, weight, values, deletes, missing messages. The last is None, or else values and deletes are None."""


def assemble(messages: Iterable[Any]) -> Assembled | None:
    """Assembles a block from its messages, which all have the same block hash.

    Returns None without a readable Batch message, which begins a block. Of several complete feeds, the normal topics
    have priority, then the reorg channel with the smallest name.

    messages: rows with feed ("" for the normal topics), stored_us, partition, index, key and data.
    """
    feeds: dict[str, list[Any]] = defaultdict(list)
    for row in messages:
        feeds[row["feed"]].append(row)
    opened: Assembled | None = None
    for feed in sorted(feeds):
        found = _assemble_feed(feed, feeds[feed])
        if isinstance(found, CompleteBatch):
            values, deletes = sorted(found.values.items()), sorted(found.deletes)
            return found.number, found.parent, str(found.weight), values, deletes, None
        opened = opened or found
    return opened


def _assemble_feed(feed: str, rows: list[Any]) -> CompleteBatch | Assembled | None:
    machine = Reassembler(TRACK_ALL, UNLIMITED)
    batch: Batch | None = None
    # The Batch message has the smallest key, so it is processed first, and tells which other messages to expect.
    rows.sort(key=lambda row: (bytes(row["key"]), row["stored_us"], row["partition"], row["index"]))
    for offset, row in enumerate(rows):
        try:
            message = decode(bytes(row["key"]), bytes(row["data"]))
        except MessageError:
            continue
        if isinstance(message, Batch):
            batch = batch or message
        for event in machine.receive(message, feed, offset):
            if isinstance(event, Completed):
                return event.batch
    if batch is None:
        return None
    return batch.number, batch.parent, str(batch.weight), None, None, str(machine.why_incomplete(batch.hash))


def is_batch(key: Any, data: Any) -> bool:
    """Returns whether a message is a Batch message, which begins a block."""
    try:
        return isinstance(decode(bytes(key), bytes(data)), Batch)
    except MessageError:
        return False
