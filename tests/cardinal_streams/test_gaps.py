"""What a consumer says of a chain that lacks a block, of another consumer with its name, and of its position."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from cardinal_streams.application import Application
from cardinal_streams.consume.checkpoints import FileCheckpoints, NodeCheckpoints
from cardinal_streams.consume.consuming import consume
from cardinal_streams.errors import CheckpointError, CheckpointTaken
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import ChainUpdate, LeftOut, Stalled
from cardinal_streams.produce.publishing import ChainBlock, publish
from cardinal_streams.transports.file_transport import FileTransport
from stream_client import list_positions
from tests.cardinal_streams.chains import EVERYTHING, Ledger, blocks_of, hashes, read_all, served_transport
from tests.cardinal_streams.helpers import hash_of, names, payload, records_of
from tests.cardinal_streams.test_bounds import rows_of
from tests.cardinal_streams.world import GENESIS, producer_of
from tests.support.served import PATIENCE_S


async def test_a_missing_message_is_named_and_a_late_one_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a chain that stands still says which block it lacks, what of it, since when and how many wait; afterwards a
    consumer that has read everything has no lag, and another one of its name gets an error before it saves."""
    monkeypatch.setattr(sys.modules[consume.__module__], "STALL_REPORTS_S", 0.05)
    blocks, rows = rows_of(12)
    missing = rows[4].pop(next(at for at, (_, record) in enumerate(rows[4]) if record.key[0] == 3))
    events, ledger = list[Any](), Ledger()
    async with served_transport(tmp_path) as (_, transport):
        for topic, record in (row for of_block in rows for row in of_block):
            await transport.send({topic: [record]})
        store, other = (NodeCheckpoints(transport.client, "reader") for _ in range(2))
        async with (
            consume(EVERYTHING, transport, store, checkpoint=GENESIS, on_event=events.append) as updates,
            trio.open_nursery() as nursery,
        ):

            async def follow() -> None:
                while ledger.hashes != hashes(blocks):
                    update = await anext(updates)
                    ledger.apply(update)
                    update.done()

            nursery.start_soon(follow)
            with trio.fail_after(PATIENCE_S):
                while not any(isinstance(event, Stalled) for event in events):
                    await trio.sleep(0.01)
                assert ledger.hashes == hashes(blocks[:4])
                (gap,) = updates.gaps()
                assert (gap.hash, gap.waiting) == (blocks[4].payload.hash, 7)
                assert str(gap.missing) == "1 messages of prefix 'a/'"
                assert updates.stalled_s() > 0
                await transport.send({missing[0]: [missing[1]]})
        assert updates.gaps() == ()
        assert await other.load() is not None
        await read_all(transport, Ledger(), "reader")
        ends = await transport.ends(EVERYTHING.topics)
        found = {f"{each.stream_name}:{each.partition}": each.index async for each in list_positions(transport.client)}
        assert {source: found[source] for source, end in ends.items() if end} == {s: e for s, e in ends.items() if e}
        checkpoint = await store.load()
        assert checkpoint is not None
        await store.save(checkpoint)
        await store.save(GENESIS)
        with pytest.raises(CheckpointTaken, match="another consumer saves its position as 'reader'"):
            await other.save(GENESIS)
        assert await store.load() == GENESIS


async def test_two_consumers_of_one_file_do_not_skip_updates_of_each_other(tmp_path: Path) -> None:
    """As over a node: the one that saves second ends, and the file has what the first one has finished."""
    transport, path = FileTransport(tmp_path / "recording"), tmp_path / "position"
    async with publish(EVERYTHING, transport) as publisher:
        await publisher.send(blocks_of("o", "g", 1, 4))
    async with consume(EVERYTHING, transport, FileCheckpoints(path), start=GENESIS.start) as first:
        (await anext(first)).done()
        await first.save()
        async with consume(EVERYTHING, transport, FileCheckpoints(path), start=GENESIS.start) as second:
            (await anext(second)).done()
            (await anext(second)).done()
            await second.save()
        (await anext(first)).done()
        saved = path.read_bytes()
        with pytest.raises(CheckpointTaken, match=r"another consumer saves its position as '.*position'"):
            await first.save()
        assert path.read_bytes() == saved
        # The end of the block saves once more. Without the file, there is nothing that it could replace.
        path.unlink()
    transport.close()


async def test_the_position_of_another_application_is_refused(tmp_path: Path) -> None:
    """Its head is no block of this chain, which would wait for a child of it for ever."""
    other = Application("digits", "digits", (), reorg_threshold=4)
    async with served_transport(tmp_path) as (_, transport):
        async with publish(EVERYTHING, transport) as publisher:
            await publisher.send(blocks_of("o", "g", 1, 2))
        await read_all(transport, Ledger(), "reader")
        with pytest.raises(CheckpointError, match="of another application, which reads default, ta, tb"):
            async with consume(other, transport, NodeCheckpoints(transport.client, "reader"), stop_at_end=True):
                pass


def test_a_chain_without_a_start_begins_with_its_lowest_block_and_tells_what_comes_below() -> None:
    consumer = ChainConsumer(reorg_threshold=4)
    records = {n: records_of(producer_of().add_block(payload(f"b{n}", f"b{n - 1}", n))) for n in range(1, 6)}
    events: list[Any] = []
    for offset, number in enumerate((4, 2, 3)):
        events += consumer.receive(*records[number][0], "default:0", offset)
    assert events == []
    events = consumer.at_end()
    assert [names(event.added) for event in events if isinstance(event, ChainUpdate)] == [["b2"], ["b3"], ["b4"]]
    assert consumer.receive(*records[1][0], "default:0", 3) == [LeftOut(hash_of("b1"), 1)]
    consumer.check()


@pytest.mark.parametrize("keeps_chain", [False, True])
async def test_a_chain_without_a_start_removes_only_what_it_has_added(keeps_chain: bool, tmp_path: Path) -> None:
    """Goal: after restarts, too, an application undoes only blocks that it was given. Method: the chain begins with o3
    and o4. In three more lives, it leaves and finds again the fork at o1, where o2 belongs to neither at first."""
    old, fork = blocks_of("o", "g", 1, 4), blocks_of("n", "o1", 2, 3, bonus=5)
    async with served_transport(tmp_path / "node", partitions=1) as (_, transport):

        async def life(*sent: ChainBlock) -> list[tuple[list[str], list[str]]]:
            found = []
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(sent)
            chain = tmp_path / "chain" if keeps_chain else None
            store = None if keeps_chain else NodeCheckpoints(transport.client, "reader")
            async with consume(EVERYTHING, transport, store, chain_store=chain, stop_at_end=True) as updates:
                async for update in updates:
                    found.append((names(update.removed), names(update.added)))
                    update.done()
            return found

        assert await life(*old[2:]) == [([], ["o3"]), ([], ["o4"])]
        assert await life(old[1], *fork) == [(["o3", "o4"], ["n2", "n3", "n4"])]
        assert await life(*blocks_of("o", "o4", 5, 1, bonus=50)) == [(["n2", "n3", "n4"], ["o2", "o3", "o4", "o5"])]
        assert await life(*blocks_of("n", "n4", 5, 1, bonus=90)) == [
            (["o2", "o3", "o4", "o5"], ["n2", "n3", "n4", "n5"])
        ]
