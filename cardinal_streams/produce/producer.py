"""Makes the messages of blocks, as one list for each topic. The caller sends each list over a transport, in order.

    add_block       for each key with a prefix, a BatchMsg or BatchDeleteMsg on the prefix's topic. One Batch on the
                    default topic has all other keys, and the number of messages with each prefix. The default topic is
                    the last topic of the result, and the Batch is its last message.
    send_sub_batch  a SubBatchHeader, then all deletes as item 0 if there are any, then one item per update,
                    ordered by key, on the topic of the sub batch's path.

Several producers can send the same chain: the caller passes the key of every message that arrives on the default topic
to `observe`. No messages are made for a block whose Batch has arrived on the default topic, or that this producer has
made already."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from cardinal_streams.errors import PayloadError, PayloadOutOfRange, PrefixConflict, ReorgOrder, UnknownSubBatch
from cardinal_streams.limits import DEFAULT_MESSAGE_LIMITS, MessageLimits, RecentMap
from cardinal_streams.message.messages import (
    KEY_BYTES,
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Record,
    Reorg,
    ReorgAbandoned,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    check_hash,
    check_key,
    check_number,
    check_sub_batch_id,
    check_weight,
    encode,
)
from cardinal_streams.payload import Payload
from cardinal_streams.prefixes import TopicMap
from cardinal_streams.transports.transport import reorg_topic

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
        new: dict[tuple[bytes, bytes], str | None] = {}
        for path, id_ in payload.sub_batches.items():
            found = self._topics.find(path)
            new[payload.hash, id_] = None if seen else self.default_topic if found is None else found[1]
        if len(self._open) + len(new) > OPEN_SUB_BATCHES_MAX:
            raise PayloadError(f"more than {OPEN_SUB_BATCHES_MAX} sub batches are announced and not sent")
        if seen:
            self._skipped += 1
            self._open = new | self._open
            return {}
        outgoing = {topic: self._checked(of_topic) for topic, of_topic in messages.items()}
        self._seen.put(payload.hash, None)
        self._open.update(new)
        self._made += sum(map(len, outgoing.values()))
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
        self._made += len(records)
        return {topic: records}

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
        names = [*values, *deletes, *counts, *batch.sub_batches]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise PrefixConflict(f"updates, deletes and sub batches claim the same entry {twice!r}")
        if len(set(batch.sub_batches.values())) < len(batch.sub_batches):
            raise PrefixConflict("two sub batches of a block have the same id")
        # The Batch is the last message of the last topic: once the Batch is stored, the block is.
        last = by_topic.pop(self.default_topic, [])
        by_topic[self.default_topic] = [*last, batch]
        return by_topic

    def _checked(self, messages: list[Message]) -> list[Record]:
        records = [encode(message) for message in messages]
        for key, value in records:
            if len(key) > self._limits.key_bytes_max or len(value) > self._limits.value_bytes_max:
                raise PayloadOutOfRange(f"a message of {len(key)} + {len(value)} bytes is larger than the limits allow")
        return records


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


class ChannelState(enum.Enum):
    NEW = "new"
    OPEN = "open"
    COMPLETE = "complete"
    ABANDONED = "abandoned"


class ReorgChannel:
    """Makes the messages of one reorg (specification, "Reorg Handling") for its channel, an ordered topic: a Reorg with
    the common ancestor, which the default topic gets too; the blocks after the ancestor, with all their messages; and a
    ReorgComplete. A producer that gives the reorg up sends a ReorgAbandoned, a message of this package: consumers of
    this package return to the heaviest chain, and others wait for the ReorgComplete of another attempt.

    Call `begin`, then `add_block` and `send_sub_batch`, then `complete`.

    `ancestor` and `number` are the common ancestor's hash and number. `removed_weight` is the weight of the heaviest
    removed block; at least one block of the channel must be heavier. The caller must send every returned list of
    records on `topic`, in the order of the calls. A step that is not allowed raises `ReorgOrder` and changes nothing.
    Invariant: `_tip` is the hash of the last block that was added, or of the ancestor before the first block."""

    def __init__(self, producer: Producer, ancestor: bytes, number: int, removed_weight: int) -> None:
        self.ancestor = check_hash(ancestor, "the ancestor")
        self.number = check_number(number)
        self.removed_weight = check_weight(removed_weight)
        self.topic = reorg_topic(producer.default_topic, ancestor)
        self.state = ChannelState.NEW
        self._producer = producer
        self._tip = ancestor
        self._tip_number = number
        self._weight = -1
        self._open: set[tuple[bytes, bytes]] = set()

    def begin(self) -> dict[str, list[Record]]:
        """Returns the Reorg message for two topics: first for the channel, then for the default topic."""
        self._expect(ChannelState.NEW, "begun")
        self.state = ChannelState.OPEN
        record = encode(Reorg(self.ancestor, self.number))
        return {self.topic: [record], self._producer.default_topic: [record]}

    def add_block(self, payload: Payload) -> list[Record]:
        """Returns the messages of the next block, whose parent must be the block before it, or the ancestor."""
        self._expect(ChannelState.OPEN, "given a block")
        if payload.parent != self._tip:
            raise ReorgOrder(f"block {payload.hash.hex()} does not follow {self._tip.hex()}")
        if payload.number <= self._tip_number:
            raise ReorgOrder(f"the number {payload.number} does not follow {self._tip_number}")
        records = self._producer.block_records(payload)
        self._open.update((payload.hash, id_) for id_ in payload.sub_batches.values())
        self._tip, self._tip_number = payload.hash, payload.number
        self._weight = max(self._weight, payload.weight)
        return records

    def send_sub_batch(
        self, hash_: bytes, id_: bytes, deletes: Collection[str] = (), updates: Mapping[str, bytes] | None = None
    ) -> list[Record]:
        """Returns the messages of a sub batch (a separate part) of a block on this channel. Raises `UnknownSubBatch` if
        no block on this channel announced it, or if it was sent before."""
        self._expect(ChannelState.OPEN, "given a sub batch")
        if (hash_, id_) not in self._open:
            raise UnknownSubBatch(f"block {hash_.hex()} has no open sub batch {id_.hex()} on this channel")
        records = self._producer.sub_batch_records(hash_, id_, deletes, updates or {})
        self._open.remove((hash_, id_))
        return records

    def forget(self, hash_: bytes) -> None:
        """Allows a block to be sent on the normal feed, after the transport failed to send it on this channel."""
        self._producer.forget(hash_)

    def complete(self) -> list[Record]:
        """Returns the ReorgComplete message. Raises `ReorgOrder` if a sub batch was not sent, or if no new block is
        heavier than the heaviest removed block."""
        self._expect(ChannelState.OPEN, "completed")
        if self._open:
            raise ReorgOrder(f"{len(self._open)} sub batches are not sent")
        if self._weight <= self.removed_weight:
            raise ReorgOrder(f"the new chain weighs {self._weight}, the removed one {self.removed_weight}")
        self.state = ChannelState.COMPLETE
        return [encode(ReorgComplete(self.ancestor, self.number))]

    def abandon(self) -> list[Record]:
        """Gives the reorg up. Returns the ReorgAbandoned message; no message before `begin`. To try the reorg again,
        make a new `ReorgChannel` with the same ancestor."""
        if self.state is ChannelState.NEW:
            self.state = ChannelState.ABANDONED
            return []
        self._expect(ChannelState.OPEN, "abandoned")
        self.state = ChannelState.ABANDONED
        return [encode(ReorgAbandoned(self.ancestor, self.number))]

    def _expect(self, state: ChannelState, step: str) -> None:
        if self.state is not state:
            raise ReorgOrder(f"a reorg channel that is {self.state.value} cannot be {step}")
