"""Whole blocks: the `Payload` that an application gives to a producer, and the `CompleteBatch` that a consumer
returns."""

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
    """A complete block: everything that the consumer tracks has arrived.

    `values` and `deletes` are independent: a key may be in both. `offsets` maps each source that delivered messages of
    this block to the lowest of their offsets. `resumption` has these offsets too; for all other sources it has the
    offset up to which the source had been read when the Batch message arrived. `size_bytes` estimates the block's size
    in memory.
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
