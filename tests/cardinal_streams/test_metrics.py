"""Metrics under the names of the real consumers; lags; and the shells under asyncio."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cardinal_streams.consume.consuming import consume, consume_unordered
from cardinal_streams.metrics import consumer_metrics, producer_metrics, unordered_metrics
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
            assert producer_metrics(publisher.statistics()) == {"/streams/skipped": 10 / 23}
        async with consume(EVERYTHING, transport, checkpoint=GENESIS) as updates:
            ledger = Ledger()
            while ledger.hashes != hashes(OLD[:2], NEW, AFTER):
                update = await anext(updates)
                ledger.apply(update)
                update.done()
            figures = consumer_metrics(updates.statistics(), updates.lags())
        assert figures["/streams/omp/height"] == 14
        assert figures["/streams/reorg/exec"] == 1
        assert figures["/streams/con/failures"] == 0
        lags = {name: figure for name, figure in figures.items() if name.endswith("/lag")}
        assert len(lags) >= 9
        assert set(lags.values()) == {0}
        async with consume_unordered(EVERYTHING, transport, stop_at_end=True) as arrivals:
            async for arrival in arrivals:
                arrival.done()
            plain = unordered_metrics(arrivals.statistics())
        assert plain["/streams/con/messages"] > 0
        assert plain["/streams/con/pending"] == 0


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
