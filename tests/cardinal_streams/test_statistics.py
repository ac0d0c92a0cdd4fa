"""Statistics after a reorg; lags; and the shells under asyncio."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cardinal_streams.consume.consuming import consume, consume_unordered
from cardinal_streams.produce.publishing import publish
from cardinal_streams.transports.file_transport import FileTransport
from tests.cardinal_streams.chains import AFTER, EVERYTHING, NEW, OLD, Ledger, hashes, read_all, served_transport
from tests.cardinal_streams.world import GENESIS


async def test_what_they_say_after_a_reorg(tmp_path: Path) -> None:
    async with served_transport(tmp_path) as (_, transport):
        async with publish(EVERYTHING, transport) as publisher:
            await publisher.send(OLD)
            await read_all(transport, Ledger(), "reader")
            async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                await channel.send(NEW)
            await publisher.send([*OLD, *AFTER])
            sent = publisher.statistics()
            assert (sent.blocks_skipped, sent.blocks_sent) == (10, 13)
        async with consume(EVERYTHING, transport, checkpoint=GENESIS) as updates:
            ledger = Ledger()
            while ledger.hashes != hashes(OLD[:2], NEW, AFTER):
                update = await anext(updates)
                ledger.apply(update)
                update.done()
            read, lags = updates.statistics(), updates.lags()
        assert read.chain.head_number == 14
        assert read.chain.updates_with_removals + read.chain.reverts == 1
        assert read.reassembly.refused + read.bad_messages == 0
        assert len(lags) >= 9
        assert set(lags.values()) == {0}
        async with consume_unordered(EVERYTHING, transport, stop_at_end=True) as arrivals:
            async for arrival in arrivals:
                arrival.done()
            plain = arrivals.statistics().reassembly
        assert plain.messages > 0
        assert plain.incomplete == 0


def test_the_shells_run_under_asyncio(tmp_path: Path) -> None:
    async def main() -> Ledger:
        transport = FileTransport(tmp_path / "recording", partitions=3)
        async with publish(EVERYTHING, transport) as publisher:
            await publisher.send(OLD)
            async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                await channel.send(NEW)
            await publisher.send(AFTER)
        ledger = Ledger()
        async with consume(EVERYTHING, transport, checkpoint=GENESIS, stop_at_end=True) as updates:
            async for update in updates:
                ledger.apply(update)
                update.done()
        transport.close()
        return ledger

    assert asyncio.run(main()).hashes == hashes(OLD[:2], NEW, AFTER)
