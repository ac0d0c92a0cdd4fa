"""Whole blocks: `Payload` is the input of a producer, and `CompleteBatch` is the output of a consumer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A block as the application gives it to a producer (specification, "Message Payloads").

    `hash`, `parent`: 32 bytes each. `number`: from 0 to 2^63 - 1. `weight`: from 0 to 2^256 - 1.
    `updates`, `deletes`: the new value of each changed key, and the deleted keys.
    `sub_batches`: by path, the ids of 32 bytes of the parts of the block that are sent separately."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    updates: Mapping[str, bytes] = {}
    deletes: Collection[str] = ()
    sub_batches: Mapping[str, bytes] = {}


class CompleteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A complete block: all entries that the consumer wants have arrived. A key can be in `values` and `deletes`.

    `offsets`: by source (`topic:partition`), the lowest offset of a message of this block.
    `resumption`: by source, where to continue reading after this block: `offsets`, and for every other source the
    highest offset that had been read when the block's Batch message arrived.
    `size_bytes`: an estimate of the block's memory."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    values: dict[str, bytes]
    deletes: frozenset[str]
    offsets: dict[str, int] = {}
    resumption: dict[str, int] = {}
    size_bytes: int = 0
