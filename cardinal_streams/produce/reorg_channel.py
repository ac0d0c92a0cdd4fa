"""The producer's side of the Reorg protocol: the messages of one reorg channel, an ordered topic for one reorg.

Specification, "Reorg Handling". First comes a Reorg message with the common ancestor; the default topic gets it too, to
announce the channel. Then come the blocks after the ancestor, each with all its messages, whatever their prefixes. One
of them must be heavier than the heaviest removed block. Last comes a ReorgComplete with the hash and the number of the
common ancestor ("as described above with the Reorg message"). A producer that gives a reorg up sends a ReorgAbandoned,
a message of this package: consumers of this package return to the heaviest chain, and other consumers wait for the
ReorgComplete of another attempt."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

from cardinal_streams.errors import ReorgOrder, UnknownSubBatch
from cardinal_streams.message.messages import encode
from cardinal_streams.message.types import Record, Reorg, ReorgAbandoned, ReorgComplete
from cardinal_streams.message.writer import check_hash, check_number, check_weight
from cardinal_streams.payload import Payload
from cardinal_streams.produce.producer import Producer
from cardinal_streams.transports.transport import reorg_topic


class ChannelState(enum.Enum):
    NEW = "new"
    OPEN = "open"
    COMPLETE = "complete"
    ABANDONED = "abandoned"


class ReorgChannel:
    """Makes the messages of one reorg: call `begin`, then `add_block` and `send_sub_batch`, then `complete`.

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
