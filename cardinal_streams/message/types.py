"""The messages of the Cardinal Streams message layer as values. How they look on the wire is in `messages`."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec


class Record(NamedTuple):
    """A message as a transport carries it."""

    key: bytes
    value: bytes


class Batch(msgspec.Struct, frozen=True):
    """What a block consists of. Each mapping is a part of the specification's `updates`, by the field that is set:
    `values` (key to value), `deletes`, `counts` (prefix to number of BatchMsg and BatchDeleteMsg), `sub_batches`
    (path to id). No name is in two of them.
    """

    hash: bytes
    number: int
    parent: bytes
    weight: int
    values: dict[str, bytes] = {}
    deletes: frozenset[str] = frozenset()
    counts: dict[str, int] = {}
    sub_batches: dict[str, bytes] = {}


class SubBatchHeader(msgspec.Struct, frozen=True, gc=False):
    """A sub batch has `item_count` items, numbered from 0."""

    hash: bytes
    id: bytes
    item_count: int


class SubBatchMsg(msgspec.Struct, frozen=True):
    """Item `index` of a sub batch."""

    hash: bytes
    id: bytes
    index: int
    deletes: tuple[str, ...] = ()
    updates: dict[str, bytes] = {}


class BatchMsg(msgspec.Struct, frozen=True, gc=False):
    """A block sets `key` to `value`."""

    hash: bytes
    key: str
    value: bytes


class BatchDeleteMsg(msgspec.Struct, frozen=True, gc=False):
    """A block deletes `key`."""

    hash: bytes
    key: str


class Reorg(msgspec.Struct, frozen=True, gc=False):
    """A reorg deeper than the threshold: `hash` and `number` are those of the common ancestor."""

    hash: bytes
    number: int


class ReorgComplete(msgspec.Struct, frozen=True, gc=False):
    """The last message of a reorg channel."""

    hash: bytes
    number: int


class Ping(msgspec.Struct, frozen=True, gc=False):
    """A producer is alive. It belongs to the transport; `stamp` is the producer's own form of time."""

    producer_id: bytes
    stamp: bytes


BlockMessage: TypeAlias = Batch | SubBatchHeader | SubBatchMsg | BatchMsg | BatchDeleteMsg
Message: TypeAlias = BlockMessage | Reorg | ReorgComplete | Ping
