"""Makes the messages of blocks, by topic. The caller sends each list over a transport, in the list's order.

    add_block       for each key with a prefix, a BatchMsg or BatchDeleteMsg on the prefix's topic. All other keys and
                    the counts are in one Batch, which is the last message of the default topic. The default topic is
                    the last topic of the result.
    send_sub_batch  a SubBatchHeader, then all deletes as item 0 if there are any, then one item per update,
                    ordered by key, on the topic of the sub batch's path.

Several producers can send the same chain: the caller passes the key of every message that arrives on the default topic
to `observe`. No messages are made for a block whose Batch message arrived there or was made by this producer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from cardinal_streams.errors import PayloadError, PayloadOutOfRange, PrefixConflict, UnknownSubBatch
from cardinal_streams.limits import DEFAULT_MESSAGE_LIMITS, MessageLimits
from cardinal_streams.message.messages import encode
from cardinal_streams.message.reader import KEY_BYTES
from cardinal_streams.message.types import Batch, BatchDeleteMsg, BatchMsg, Message, Record, SubBatchHeader, SubBatchMsg
from cardinal_streams.message.writer import check_hash, check_key, check_sub_batch_id
from cardinal_streams.payload import Payload
from cardinal_streams.prefixes import TopicMap
from cardinal_streams.recent import RecentMap

# The number of block hashes that a producer remembers, as in the reference producer.
SEEN_MAX = 4_096
# The largest number of sub batches that are announced and not sent. The reference application has one for each block.
OPEN_SUB_BATCHES_MAX = 65_536

Outgoing = dict[str, list[Record]]


class ProducerStatistics(msgspec.Struct, frozen=True):
    """The statistics of a `Producer` since it was made; `open_sub_batches` are those that wait at present."""

    blocks_sent: int
    blocks_skipped: int
    messages_made: int
    open_sub_batches: int


class Producer:
    """Makes the messages of blocks. Raises `PrefixError` if patterns in `topics` are invalid or overlap. All other
    errors are `PayloadError`s, and do not change the producer. Invariant: `_open` has exactly the sub batches that were
    announced and not sent, with their topics, or None if the block was skipped."""

    def __init__(
        self,
        default_topic: str,
        topics: Mapping[str, str],
        *,
        limits: MessageLimits = DEFAULT_MESSAGE_LIMITS,
        seen_max: int = SEEN_MAX,
    ) -> None:
        self.default_topic = default_topic
        self._topics = TopicMap(topics)
        self._limits = limits
        self._seen: RecentMap[bytes, None] = RecentMap(seen_max)
        self._open: dict[tuple[bytes, bytes], str | None] = {}
        self._sent = self._skipped = self._made = 0

    def observe(self, key: bytes) -> None:
        """Takes the key of another producer's message on the default topic. A Batch message, the last message of a
        block, makes the block count as sent."""
        if len(key) == KEY_BYTES and key[0] == 0:
            self._seen.put(key[1:], None)

    def has_seen(self, hash_: bytes) -> bool:
        """Whether the Batch message of this block was seen or sent, so that `add_block` skips the block."""
        return hash_ in self._seen

    def forget(self, hash_: bytes) -> None:
        """Allows a block to be sent again, e.g. because the producer that sent it died before the end of the block."""
        self._seen.pop(hash_, None)

    def add_block(self, payload: Payload) -> Outgoing:
        """Returns the messages of a block by topic; none if the block was sent before. Raises `PayloadError`."""
        # Whatever can fail comes before the first change of the producer.
        messages = self._messages_of(payload)
        seen = payload.hash in self._seen
        new = {(payload.hash, id_): None if seen else self._topic_of(path) for path, id_ in payload.sub_batches.items()}
        if len(self._open) + len(new) > OPEN_SUB_BATCHES_MAX:
            raise PayloadError(f"more than {OPEN_SUB_BATCHES_MAX} sub batches are announced and not sent")
        if seen:
            self._skipped += 1
            self._open = new | self._open
            return {}
        outgoing = {topic: self._checked(of_topic) for topic, of_topic in messages.items()}
        self._seen.put(payload.hash, None)
        self._open.update(new)
        self._count(outgoing)
        self._sent += 1
        return outgoing

    def send_sub_batch(
        self, hash_: bytes, id_: bytes, deletes: Collection[str] = (), updates: Mapping[str, bytes] | None = None
    ) -> Outgoing:
        """Returns the messages of a sub batch by topic; an empty dict if its block was skipped. An empty sub batch has
        only a header. Raises `UnknownSubBatch` if the block did not announce it, or if it was sent before."""
        if (hash_, id_) not in self._open:
            raise UnknownSubBatch(f"block {hash_.hex()} has no open sub batch {id_.hex()}")
        records = self._checked(sub_batch_messages(hash_, id_, deletes, updates or {}))
        topic = self._open.pop((hash_, id_))
        if topic is None:
            return {}
        outgoing = {topic: records}
        self._count(outgoing)
        return outgoing

    def reopen_sub_batch(self, hash_: bytes, id_: bytes, outgoing: Outgoing) -> None:
        """Allows a sub batch to be sent again, after the transport failed to send `outgoing`."""
        for topic in outgoing:
            self._open[hash_, id_] = topic

    def block_records(self, payload: Payload) -> list[Record]:
        """Returns all messages of a block in one list, for a reorg's channel, even if the block was sent before."""
        messages = [message for of_topic in self._messages_of(payload).values() for message in of_topic]
        records = self._checked(messages)
        self._seen.put(payload.hash, None)
        self._made += len(records)
        return records

    def sub_batch_records(
        self, hash_: bytes, id_: bytes, deletes: Collection[str], updates: Mapping[str, bytes]
    ) -> list[Record]:
        """Returns all messages of a sub batch in one list, for a reorg's channel."""
        records = self._checked(sub_batch_messages(hash_, id_, deletes, updates))
        self._made += len(records)
        return records

    def statistics(self) -> ProducerStatistics:
        return ProducerStatistics(self._sent, self._skipped, self._made, len(self._open))

    def _messages_of(self, payload: Payload) -> dict[str, list[Message]]:
        check_hash(payload.hash, "the hash")
        by_topic: dict[str, list[Message]] = {}
        values: dict[str, bytes] = {}
        deletes: set[str] = set()
        counts: dict[str, int] = {}
        for key, value in payload.updates.items():
            found = self._topics.find(key)
            if found is None:
                values[key] = value
            else:
                counts[found[0]] = counts.get(found[0], 0) + 1
                by_topic.setdefault(found[1], []).append(BatchMsg(payload.hash, key, value))
        # A key without a prefix that is both updated and deleted is deleted: a Batch has one entry for each name.
        for key in dict.fromkeys(payload.deletes):
            found = self._topics.find(key)
            if found is None:
                values.pop(key, None)
                deletes.add(key)
            else:
                counts[found[0]] = counts.get(found[0], 0) + 1
                by_topic.setdefault(found[1], []).append(BatchDeleteMsg(payload.hash, key))
        batch = Batch(
            hash=payload.hash,
            number=payload.number,
            parent=payload.parent,
            weight=payload.weight,
            values=values,
            deletes=frozenset(deletes),
            counts=counts,
            sub_batches=dict(payload.sub_batches),
        )
        _check_conflicts(batch)
        # The Batch is the last message of the last topic: once the Batch is stored, the block is.
        last = by_topic.pop(self.default_topic, [])
        by_topic[self.default_topic] = [*last, batch]
        return by_topic

    def _topic_of(self, path: str) -> str:
        found = self._topics.find(path)
        return self.default_topic if found is None else found[1]

    def _checked(self, messages: list[Message]) -> list[Record]:
        records = [encode(message) for message in messages]
        for key, value in records:
            if len(key) > self._limits.key_bytes_max or len(value) > self._limits.value_bytes_max:
                raise PayloadOutOfRange(f"a message of {len(key)} + {len(value)} bytes is larger than the limits allow")
        return records

    def _count(self, outgoing: Outgoing) -> None:
        self._made += sum(map(len, outgoing.values()))


def sub_batch_messages(
    hash_: bytes, id_: bytes, deletes: Collection[str], updates: Mapping[str, bytes]
) -> list[Message]:
    """Returns the messages of a sub batch in the order of the reference producer: header, deletes, updates by key."""
    check_sub_batch_id(id_)
    items: list[Message] = []
    if deletes:
        items.append(SubBatchMsg(hash_, id_, 0, tuple(sorted(set(deletes)))))
    for key in sorted(updates):
        items.append(SubBatchMsg(hash_, id_, len(items), (), {check_key(key): updates[key]}))
    return [SubBatchHeader(hash_, id_, len(items)), *items]


def _check_conflicts(batch: Batch) -> None:
    names = [*batch.values, *batch.deletes, *batch.counts, *batch.sub_batches]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PrefixConflict(f"updates, deletes and sub batches claim the same entry {twice!r}")
    ids = list(batch.sub_batches.values())
    if len(set(ids)) < len(ids):
        raise PrefixConflict("two sub batches of a block have the same id")
