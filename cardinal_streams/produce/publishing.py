"""The entry point of producers: a program gives blocks to a publisher, which sends their messages over a transport.

    async with publish(application, transport) as publisher:
        await publisher.send([Block(payload, {id: SubBatch(updates={…})})])
        async with publisher.reorg(ancestor.hash, ancestor.number, removed_weight) as channel:
            await channel.send(blocks)

A Batch message is sent after the transport has stored all other messages of its block, and so proves that the block is
complete. A block without it, whose producer died, is sent again, and consumers drop the messages that they already
have. Several producers can send the same chain: each reads the default topic, and skips a block whose Batch is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec

from cardinal_streams.application import Application
from cardinal_streams.errors import MessageError
from cardinal_streams.machines.events import Start
from cardinal_streams.message.messages import Batch, decode
from cardinal_streams.payload import Payload
from cardinal_streams.produce.producer import ChannelState, Outgoing, Producer, ProducerStatistics, ReorgChannel
from cardinal_streams.transports.transport import Delivery, Transport
from stream_client.shell.async_shell import background_tasks

# The number of messages of each partition that a publisher reads at its start. The reference producer reads 100.
CATCH_UP_MESSAGES = 1_000
# The time limit for sending the message that gives a reorg up, after the `async with` block ended by an exception.
ABANDON_TIMEOUT_S = 5.0


class SubBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one sub batch, a part of a block that is sent separately."""

    updates: Mapping[str, bytes] = {}
    deletes: Collection[str] = ()


class ChainBlock(msgspec.Struct, frozen=True):
    """A block, and the contents of its sub batches by their ids. Sub batches that the payload announces and that are
    missing here must be sent by `ChainPublisher.send_sub_batch`."""

    payload: Payload
    sub_batches: Mapping[bytes, SubBatch] = {}


class ChainPublisher:
    """Sends the blocks of a chain. Programs get a publisher from `publish`. Its methods raise the transport's errors,
    and `PayloadError` for blocks that cannot be sent."""

    def __init__(self, producer: Producer, transport: Transport) -> None:
        self.producer = producer
        self.latest: Start | None = None
        """The block with the highest number whose Batch message was seen or sent; None before the first such block. A
        program can continue after this block."""
        self._transport = transport
        self._error: Exception | None = None

    async def send(self, blocks: Sequence[ChainBlock]) -> int:
        """Sends blocks together, and returns the number of new blocks. Blocks that were sent before are skipped. The
        transport has stored all messages when `send` returns. After an error no new block counts as sent, and all can
        be sent again."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        first: Outgoing = {}
        batches: Outgoing = {}
        new: list[Payload] = []
        try:
            # 1. Make all messages, with the Batch messages apart.
            for block in blocks:
                made = self.producer.add_block(block.payload)
                if made:
                    new.append(block.payload)
                    *others, batch = made[self.producer.default_topic]
                    _add(first, {**made, self.producer.default_topic: others})
                    _add(batches, {self.producer.default_topic: [batch]})
                for id_, contents in block.sub_batches.items():
                    hash_ = block.payload.hash
                    _add(first, self.producer.send_sub_batch(hash_, id_, contents.deletes, contents.updates))
            # 2. Store the Batch messages after everything else: they prove that their blocks are complete.
            await self._transport.send(first)
            await self._transport.send(batches)
        except BaseException:
            # It is unknown which messages were stored, so all blocks may be sent again.
            for payload in new:
                self.producer.forget(payload.hash)
            raise
        for payload in new:
            self._note(payload.hash, payload.number, payload.weight)
        return len(new)

    async def send_sub_batch(
        self, hash_: bytes, id_: bytes, deletes: Collection[str] = (), updates: Mapping[str, bytes] | None = None
    ) -> None:
        """Sends a sub batch that was not given together with its block. Sends nothing if the block was skipped. After
        an error the sub batch can be sent again."""
        outgoing = self.producer.send_sub_batch(hash_, id_, deletes, updates)
        try:
            await self._transport.send(outgoing)
        except BaseException:
            self.producer.reopen_sub_batch(hash_, id_, outgoing)
            raise

    @asynccontextmanager
    async def reorg(self, ancestor: bytes, number: int, removed_weight: int) -> AsyncIterator[ReorgSession]:
        """Announces a reorg that removes more blocks than the reorg threshold.

        `ancestor` and `number`: the hash and the number of the common ancestor, the last block that stays.
        `removed_weight`: the weight of the heaviest removed block.

        The program sends the new blocks within the `async with` block, whose end completes the reorg. If it ends by an
        exception, a message gives the reorg up; if that cannot be sent, a note is added to the exception."""
        channel = ReorgChannel(self.producer, ancestor, number, removed_weight)
        try:
            await self._transport.send(channel.begin())
            yield ReorgSession(channel, self._transport)
            await self._transport.send({channel.topic: channel.complete()})
        except BaseException as error:
            # If the ReorgComplete was to be sent, it is unknown whether it is stored. If it is, consumers ignore what
            # follows it.
            if channel.state is not ChannelState.NEW:
                channel.state = ChannelState.OPEN
                await self._give_up(channel, error)
            raise

    def statistics(self) -> ProducerStatistics:
        return self.producer.statistics()

    async def catch_up(self, messages: int) -> dict[str, int]:
        """Reads the last `messages` messages of each partition of the default topic, and notes the blocks in them.
        Returns, by source (`topic:partition`), the offset after the last message that was read."""
        topics = (self.producer.default_topic,)
        position = {source: max(0, end - messages) for source, end in (await self._transport.ends(topics)).items()}
        async with self._transport.subscribe(topics, position, stop_at_end=True) as receiver:
            while page := await receiver.receive_some():
                for delivery in page:
                    self._observe(delivery)
                    position[delivery.source] = delivery.offset + 1
        return position

    async def follow(self, position: Mapping[str, int]) -> None:
        """Reads the default topic endlessly from `position` on, and notes the blocks that other producers send. The
        next `send` raises the error that ends the reading."""
        try:
            async with self._transport.subscribe((self.producer.default_topic,), position) as receiver:
                while page := await receiver.receive_some():
                    for delivery in page:
                        self._observe(delivery)
        except Exception as error:
            self._error = error

    async def _give_up(self, channel: ReorgChannel, error: BaseException) -> None:
        records = channel.abandon()
        with anyio.move_on_after(ABANDON_TIMEOUT_S, shield=True):
            try:
                await self._transport.send({channel.topic: records})
            except Exception as another:
                error.add_note(f"consumers could not be told that the reorg is given up: {another}")

    def _observe(self, delivery: Delivery) -> None:
        self.producer.observe(delivery.key)
        if delivery.key[:1] == b"\x00":
            try:
                message = decode(delivery.key, delivery.value)
            except MessageError:
                # Consumers report the bad message. A producer learns no block from it.
                return
            if isinstance(message, Batch):
                self._note(message.hash, message.number, message.weight)

    def _note(self, hash_: bytes, number: int, weight: int) -> None:
        if self.latest is None or number > self.latest.number:
            self.latest = Start(hash_, number, weight)


class ReorgSession:
    """The channel (topic) of one reorg, while a program sends the reorg's blocks. `ChainPublisher.reorg` makes it."""

    def __init__(self, channel: ReorgChannel, transport: Transport) -> None:
        self.channel = channel
        self._transport = transport

    async def send(self, blocks: Sequence[ChainBlock]) -> None:
        """Sends the next blocks of the reorg, in order, each with all its sub batches. Raises `ReorgOrder`, for example
        if a block is not a child of the block before it."""
        records = []
        try:
            for block in blocks:
                records += self.channel.add_block(block.payload)
                for id_, contents in block.sub_batches.items():
                    records += self.channel.send_sub_batch(block.payload.hash, id_, contents.deletes, contents.updates)
            await self._transport.send({self.channel.topic: records})
        except BaseException:
            # It is unknown which messages were stored, so the normal feed may send these blocks.
            for block in blocks:
                self.channel.forget(block.payload.hash)
            raise


@asynccontextmanager
async def publish(
    application: Application,
    transport: Transport,
    *,
    redundant: bool = True,
    catch_up_messages: int = CATCH_UP_MESSAGES,
) -> AsyncIterator[ChainPublisher]:
    """Makes a publisher of blocks, for an `async with` block.

    `redundant`: whether other producers can send the same blocks. If True, the publisher reads the default topic,
    beginning `catch_up_messages` messages before the end of each partition, and skips all blocks that it finds there.
    If False, it skips only the blocks that it has sent itself."""
    publisher = ChainPublisher(application.producer(), transport)
    if not redundant:
        yield publisher
        return
    position = await publisher.catch_up(catch_up_messages)
    async with background_tasks() as tasks:
        tasks.start_soon(publisher.follow, position)
        yield publisher


def _add(to: Outgoing, made: Outgoing) -> None:
    for topic, records in made.items():
        to.setdefault(topic, []).extend(records)
