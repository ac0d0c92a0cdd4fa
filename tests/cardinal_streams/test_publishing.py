"""A publisher over a transport that fails: what was not sent may be sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cardinal_streams.consume.consuming import consume
from cardinal_streams.errors import TransportError, UnknownSubBatch
from cardinal_streams.message.messages import Record
from cardinal_streams.produce.publishing import ChainBlock, publish
from cardinal_streams.transports.file_transport import FileTransport
from tests.cardinal_streams.chains import EVERYTHING, NEW, OLD, Ledger, blocks_of, hashes
from tests.cardinal_streams.helpers import hash_of, payload
from tests.cardinal_streams.world import GENESIS


class FailingTransport(FileTransport):
    """Records like the real one, or, while `fails`, nothing."""

    fails = False

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        if self.fails:
            raise TransportError("the disk is full")
        await super().send(outgoing)


async def read_all(transport: FileTransport) -> Ledger:
    ledger = Ledger()
    async with consume(EVERYTHING, transport, checkpoint=GENESIS, stop_at_end=True) as updates:
        async for update in updates:
            ledger.apply(update)
            update.done()
    return ledger


async def test_blocks_are_sent_again(tmp_path: Path) -> None:
    transport = FailingTransport(tmp_path / "recording")
    async with publish(EVERYTHING, transport) as publisher:
        transport.fails = True
        for _ in range(2):
            with pytest.raises(TransportError):
                await publisher.send(OLD)
        transport.fails = False
        assert await publisher.send(OLD) == len(OLD)
    assert (await read_all(transport)).hashes == hashes(OLD)
    transport.close()


async def test_a_sub_batch_that_follows_is_sent_again(tmp_path: Path) -> None:
    """Goal: a block whose sub batch could not be sent is not lost for ever."""
    transport = FailingTransport(tmp_path / "recording")
    id_ = hash_of("id")
    async with publish(EVERYTHING, transport) as publisher:
        await publisher.send([ChainBlock(payload("a", "g", 1, sub_batches={"b/s": id_}))])
        transport.fails = True
        with pytest.raises(TransportError):
            await publisher.send_sub_batch(hash_of("a"), id_, (), {"b/s/1": b"1"})
        transport.fails = False
        await publisher.send_sub_batch(hash_of("a"), id_, (), {"b/s/1": b"1"})
        with pytest.raises(UnknownSubBatch):
            await publisher.send_sub_batch(hash_of("a"), id_)
    ledger = await read_all(transport)
    transport.close()
    assert ledger.batches[hash_of("a")].values == {"b/s/1": b"1"}


async def test_a_reorg_that_could_not_be_announced_is_given_up(tmp_path: Path) -> None:
    """Goal: if the announcement was kept although it seemed to fail, consumers are told that nothing follows. Method:
    the transport keeps it, and raises."""

    class Ambiguous(FailingTransport):
        async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
            await super().send(outgoing)
            if any(record.key[0] == 5 for records in outgoing.values() for record in records):
                raise TransportError("no answer")

    transport = Ambiguous(tmp_path / "recording")
    async with publish(EVERYTHING, transport) as publisher:
        await publisher.send(OLD)
        with pytest.raises(TransportError, match="no answer"):
            async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                await channel.send(NEW)
    ledger = await read_all(transport)
    transport.close()
    assert ledger.hashes == hashes(OLD)
    assert ledger.reverts == 1


async def test_blocks_that_a_reorg_could_not_send_are_sent_on_the_normal_feed(tmp_path: Path) -> None:
    """Claim: a block that failed on the channel of a reorg does not count as sent. Method: the transport fails while
    the channel sends; then the same blocks go to the normal feed, where they are a heavier fork."""
    transport = FailingTransport(tmp_path / "recording")
    async with publish(EVERYTHING, transport) as publisher:
        await publisher.send(OLD[:3])

        async def fail() -> None:
            async with publisher.reorg(OLD[1].payload.hash, 2, 30) as channel:
                transport.fails = True
                try:
                    await channel.send(NEW)
                finally:
                    transport.fails = False

        with pytest.raises(TransportError):
            await fail()
        assert await publisher.send(NEW) == len(NEW)
    ledger = await read_all(transport)
    transport.close()
    assert ledger.hashes == hashes(OLD[:2], NEW)


async def test_a_reorg_whose_end_could_not_be_sent_is_given_up(tmp_path: Path) -> None:
    """Claim: consumers do not rest for a reorg whose ReorgComplete was not stored. Method: the transport refuses this
    message alone; without the ReorgAbandoned, the consumer would stop within the reorg."""

    class Endless(FailingTransport):
        async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
            if any(record.key[0] == 6 for records in outgoing.values() for record in records):
                raise TransportError("no room")
            await super().send(outgoing)

    transport = Endless(tmp_path / "recording")
    async with publish(EVERYTHING, transport) as publisher:
        await publisher.send(OLD)
        with pytest.raises(TransportError, match="no room"):
            async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                await channel.send(NEW)
        await publisher.send(more := blocks_of("n", "n11", 12, 1, bonus=5))
    ledger = await read_all(transport)
    transport.close()
    assert ledger.hashes == hashes(OLD[:2], NEW, more)
