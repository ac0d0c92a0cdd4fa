"""What an application hands to a producer, and what comes out of a consumer: whole blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A block as its producer knows it (specification, "Message Payloads").

    `hash` and `parent` have 32 bytes, `number` is an unsigned 64-bit integer, `weight` an unsigned 256-bit one.
    `updates` and `deletes` are the block's changes; `sub_batches` maps the path of each sub batch that will
    follow to its id of 32 bytes.
    """

    hash: bytes
    number: int
    parent: bytes
    weight: int
    updates: Mapping[str, bytes] = {}
    deletes: Collection[str] = ()
    sub_batches: Mapping[str, bytes] = {}


class CompleteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A block of which everything that the consumer tracks has arrived.

    `values` and `deletes` are independent: a key may be in both. `offsets` are the lowest offsets at which each
    source delivered something of this block; `resumption` adds, for the sources that gave it nothing, how far they
    had been read when the Batch message arrived. `size_bytes` is about what it takes in memory.
    """

    hash: bytes
    number: int
    parent: bytes
    weight: int
    values: dict[str, bytes]
    deletes: frozenset[str]
    offsets: dict[str, int] = {}
    resumption: dict[str, int] = {}
    size_bytes: int = 0
