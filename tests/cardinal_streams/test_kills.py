"""Real processes that are killed: the node in the middle of a reorg, consumers and producers anywhere."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cardinal_streams.consume.checkpoints import NodeCheckpoints
from cardinal_streams.consume.consuming import consume
from cardinal_streams.produce.producer import ReorgChannel
from cardinal_streams.produce.publishing import publish
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.cardinal_streams.chains import (
    AFTER,
    EVERYTHING,
    NEW,
    OLD,
    Ledger,
    hashes,
    transport_to,
    values_of,
)
from tests.cardinal_streams.world import GENESIS
from tests.support.command import Command

pytestmark = pytest.mark.slow
PATIENCE_S = 240.0
BLOCKS = 250


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as process:
        yield process


@pytest.fixture
def command(tmp_path: Path, node: NodeProcess) -> Command:
    made = Command(tmp_path)
    made.environment["STREAM_NODE_ADDRESS"] = node.address
    return made


async def killed_and_started(node: NodeProcess) -> None:
    node.kill()
    await trio.to_thread.run_sync(node.start)


async def test_the_node_is_killed_in_the_middle_of_a_reorg(node: NodeProcess) -> None:
    """Goal: producer and consumer notice nothing but the time it takes. Method: SIGKILL and a start, once before the
    announcement is read, and after every few blocks of the channel; the consumer applies every update exactly once."""
    ledger = Ledger()

    async def follow() -> None:
        async with (
            transport_to(node.address) as transport,
            consume(EVERYTHING, transport, NodeCheckpoints(transport.client, "reader"), checkpoint=GENESIS) as updates,
        ):
            while ledger.hashes != hashes(OLD[:2], NEW, AFTER):
                update = await anext(updates)
                ledger.apply(update)
                update.done()

    with trio.fail_after(PATIENCE_S):
        async with (
            transport_to(node.address) as transport,
            publish(EVERYTHING, transport) as publisher,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(follow)
            await publisher.send(OLD)
            while ledger.hashes != hashes(OLD):
                await trio.sleep(0.01)
            async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                for at in range(0, len(NEW), 5):
                    await killed_and_started(node)
                    await channel.send(NEW[at : at + 5])
                    while NEW[at].payload.hash not in ledger.hashes:
                        await trio.sleep(0.01)
            await publisher.send(AFTER)
    assert ledger.reverts == 1
    for block in (*NEW, *AFTER):
        assert ledger.batches[block.payload.hash].values == values_of(block)
    assert node.stop() == 0


async def test_all_are_started_anew_in_the_middle_of_a_reorg(node: NodeProcess) -> None:
    """The node is killed, and a new consumer goes on by what the old one saved on it."""
    ledger = Ledger()

    async def read(until: Callable[[], bool]) -> None:
        async with transport_to(node.address) as transport:
            store = NodeCheckpoints(transport.client, "reader")
            known = await store.load()
            async with consume(EVERYTHING, transport, store, checkpoint=known or GENESIS) as updates:
                while not until():
                    update = await anext(updates)
                    ledger.apply(update)
                    update.done()

    with trio.fail_after(PATIENCE_S):
        async with transport_to(node.address) as transport, publish(EVERYTHING, transport) as publisher:
            await publisher.send(OLD)
            await read(lambda: ledger.hashes == hashes(OLD))
            channel = ReorgChannel(publisher.producer, OLD[1].payload.hash, 2, 100)
            await transport.send(channel.begin())
            for at, block in enumerate(NEW):
                records = channel.add_block(block.payload)
                for id_, contents in block.sub_batches.items():
                    records += channel.send_sub_batch(block.payload.hash, id_, contents.deletes, contents.updates)
                await transport.send({channel.topic: records})
                if at in (0, 5):
                    await read(lambda at=at: ledger.hashes == hashes(OLD[:2], NEW[: at + 1]))  # type: ignore[misc]
                    await killed_and_started(node)
            await transport.send({channel.topic: channel.complete()})
            await publisher.send(AFTER)
            await read(lambda: ledger.hashes == hashes(OLD[:2], NEW, AFTER))
    assert ledger.reverts == 1


class RowLedger:
    """The chain by the lines that `cardinal consume` printed. After a kill, lines may come again."""

    def __init__(self) -> None:
        self.hashes: list[str] = []

    def apply(self, row: Any) -> None:
        if row["reverted_to"] is not None:
            del self.hashes[self.hashes.index(row["reverted_to"]["hash"]) + 1 :]
        if row["added"] and self.hashes:
            parent = row["added"][0]["parent"]
            del self.hashes[self.hashes.index(parent) + 1 if parent in self.hashes else 0 :]
        for added in row["added"]:
            assert not self.hashes or added["parent"] == self.hashes[-1], "a block is missing"
            self.hashes.append(added["hash"])


def test_a_consumer_is_killed_again_and_again(command: Command, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: no update is lost, whatever a kill comes in between. Method: SIGKILL after some lines, at other places each
    time; what all lives printed together is the simulated chain, with no block missing in between."""
    made = command("cardinal", "simulate", "--seed", "5", "--blocks", "60", "--deep-reorgs", "2", "--json").row
    ledger = RowLedger()
    lives = 0
    while not ledger.hashes or ledger.hashes[-1] != made["head"]:
        lives += 1
        assert lives < 40
        arguments = ("cardinal", "consume", "--application", "simulated", "--client", "reader", "--follow", "--json")
        with command.start(*arguments) as child:
            assert child.stdout is not None
            for _ in range(11 * lives):
                ledger.apply(json.loads(child.stdout.readline()))
                if ledger.hashes and ledger.hashes[-1] == made["head"]:
                    break
            child.kill()
    assert lives > 2
    assert node.stop() == 0


def test_producers_are_killed_and_blocks_are_whole(command: Command, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: a block is there whole or is sent again. Method: two producers send the same blocks, each is killed
    several times, then one runs to its end; every block comes out once, in order."""
    blocks = [_batch(number) for number in range(1, BLOCKS + 1)]
    path = tmp_path / "blocks.json"
    path.write_bytes(msgspec.json.encode(blocks))
    application = tmp_path / "mine.toml"
    application.write_text('default_topic = "blocks"\n[[prefix]]\npattern = "a/"\ntopic = "values"\n')
    arguments = ("cardinal", "produce", path, "--application", application)
    for _ in range(2):
        children: list[subprocess.Popen[bytes]] = [command.start(*arguments) for _ in range(2)]
        with blocking.connect(node.address) as client:
            seen = _stored(client)
            deadline_s = time.monotonic() + PATIENCE_S
            while _stored(client) == seen and any(child.poll() is None for child in children):
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
        for child in children:
            with child:
                child.kill()
    assert command(*arguments).code == 0
    start = f"0:0x{0:064x}:0"
    done = command("cardinal", "consume", "--application", application, "--start", start, "--values", "--json")
    added = [each for row in done.rows for each in row["added"]]
    assert [each["hash"] for each in added] == [block["hash"] for block in blocks]
    assert [each["contents"] for each in added] == [block["values"] for block in blocks]


def _batch(number: int) -> dict[str, Any]:
    values = {f"a/{number}/{index}": f"0x{index:02x}" for index in range(20)}
    return {
        "number": hex(number),
        "weight": hex(number),
        "hash": f"0x{number:064x}",
        "parent": f"0x{number - 1:064x}",
        "values": values,
    }


def _stored(client: blocking.StreamClient) -> int:
    """How many messages the node has."""
    return sum(info.next_index for info in client.list_streams())
