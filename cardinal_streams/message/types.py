"""The messages of Cardinal Streams as Python objects. The module `messages` explains their bytes."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec


class Record(NamedTuple):
    """A message as a transport carries it: the bytes of its key and of its value."""

    key: bytes
    value: bytes


class Batch(msgspec.Struct, frozen=True):
    """A message that lists the contents of a block. Its last four fields are the `updates` of the specification; no
    name is in two of them.

    `values`, `deletes`: the values by key, and the deleted keys.
    `counts`: by prefix, the number of BatchMsg and BatchDeleteMsg messages.
    `sub_batches`: by path, the id of a sub batch."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    values: dict[str, bytes] = {}
    deletes: frozenset[str] = frozenset()
    counts: dict[str, int] = {}
    sub_batches: dict[str, bytes] = {}


class SubBatchHeader(msgspec.Struct, frozen=True, gc=False):
    """A message with the size of a sub batch of a block: it has `item_count` items, with indexes from 0."""

    hash: bytes
    id: bytes
    item_count: int


class SubBatchMsg(msgspec.Struct, frozen=True):
    """A message with item `index` of a sub batch: the keys that the item deletes, and the values that it sets."""

    hash: bytes
    id: bytes
    index: int
    deletes: tuple[str, ...] = ()
    updates: dict[str, bytes] = {}


class BatchMsg(msgspec.Struct, frozen=True, gc=False):
    """A message that sets `key` to `value` in the block with this hash."""

    hash: bytes
    key: str
    value: bytes


class BatchDeleteMsg(msgspec.Struct, frozen=True, gc=False):
    """A message that deletes `key` in the block with this hash."""

    hash: bytes
    key: str


class Reorg(msgspec.Struct, frozen=True, gc=False):
    """A message that begins a reorg beyond the threshold. `hash` and `number` are those of the common ancestor."""

    hash: bytes
    number: int


class ReorgComplete(msgspec.Struct, frozen=True, gc=False):
    """The last message of a complete section of a reorg channel (the topic of one reorg), with the hash and number of
    the common ancestor. Consumers do not compare them."""

    hash: bytes
    number: int


class ReorgAbandoned(msgspec.Struct, frozen=True, gc=False):
    """The last message of a section whose producer gives the reorg up, with the hash and number of the common ancestor.
    The specification has no such message; other consumers drop it."""

    hash: bytes
    number: int


class Ping(msgspec.Struct, frozen=True, gc=False):
    """A message that shows that a producer is alive. `stamp`: the time in the producer's own format."""

    producer_id: bytes
    stamp: bytes


BlockMessage: TypeAlias = Batch | SubBatchHeader | SubBatchMsg | BatchMsg | BatchDeleteMsg
Message: TypeAlias = BlockMessage | Reorg | ReorgComplete | ReorgAbandoned | Ping
OF_REORGS = (b"\x05", b"\x06", b"\xfe")
"""The first bytes of the keys of Reorg, ReorgComplete and ReorgAbandoned."""
