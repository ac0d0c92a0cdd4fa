"""Goal: nothing is called durable that was not compared: where a node has a number already, its block must be ours.

Method: whole servers, and two chains of the same numbers. Which roots there are, the generator says, not the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import pytest

import bare
from block_node import protocol
from block_node.blocks.errors import VerificationFailed
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock
from block_node.blocks.merkle import SCHEMES, HashScheme
from block_node.client import (
    AnotherBlock,
    BlockClient,
    BlockNotCompared,
    BlockPublisher,
    OutgoingBlock,
    PublishSettings,
    blocking,
    connect,
)
from block_node.protocol import PUBLISH, Acknowledgement, BlockItems, EndOfBlock, EndStream, OpenSession, SessionOpened
from block_node.publish import service
from block_node.read.services import AccessService
from ockam.actors.message import Message
from ockam.protocol import Protocol
from stream_client import Reconnect
from stream_client import connect as connect_streams
from stream_node.node.process import NodeProcess
from tests.block_node.client.chains import chain, keys, outgoing
from tests.support.served import Served, served, wait_until

SETTINGS = PublishSettings(reconnect=Reconnect(delay_s=0.01, delay_s_max=0.05))
OURS, OTHERS = chain(20), chain(20, seed=1)


async def publish(client: BlockClient, *blocks: GeneratedBlock) -> BlockPublisher:
    """Until all are durable; the publisher, for what it says then."""
    async with client.publisher(SETTINGS) as publisher:
        for block in blocks:
            await publisher.send(outgoing(block))
    return publisher


def assert_names_both(error: AnotherBlock, number: int) -> None:
    assert (error.number, error.stored, error.given[0].root) == (number, OURS[number].root, OTHERS[number].root)
    assert OURS[number].root.hex() in str(error)
    assert OTHERS[number].root.hex() in str(error)


@pytest.mark.parametrize("numbers", [(0,), (0, 1, 2), (1, 2), (2, 3, 4)])
async def test_another_chain_of_the_same_numbers_is_an_error(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    async with served(tmp_path, log_level="error") as running, connect(running.address) as client:
        assert (await publish(client, *OURS[:4])).compared == 0
        with pytest.raises(AnotherBlock) as caught:
            await publish(client, *(OTHERS[number] for number in numbers))
        assert_names_both(caught.value, numbers[0])
        assert [(await client.get(number))[1] for number in range(4)] == [block.root for block in OURS[:4]]


async def test_the_same_blocks_again_are_compared_and_durable(tmp_path: Path) -> None:
    async with served(tmp_path, log_level="error") as running, connect(running.address) as client:
        await publish(client, *OURS[:4])
        again = await publish(client, *OURS[1:6])
        assert (again.compared, again.acknowledged, again.kept) == (3, 5, 0)


async def test_stored_blocks_are_asked_for_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node answers no question before it has all 20: a publisher that waits for each answer would give up. The
    node opens the session when the publisher has all blocks. No block is asked for twice."""
    held: list[Message] = []
    sessions: list[service.PublishSession] = []
    receive, opened = AccessService.receive, service.PublishSession.opened

    def hold(service: AccessService, run: Sequence[Message]) -> None:
        held.extend(run)
        if len(held) == len(OURS):
            receive(service, held)

    async with served(tmp_path, log_level="error") as running, connect(running.address) as client:
        await publish(client, *OURS)
        monkeypatch.setattr(AccessService, "receive", hold)
        monkeypatch.setattr(service.PublishSession, "opened", lambda opening: sessions.append(opening))
        async with client.publisher(PublishSettings(give_up_s=10.0)) as publisher:
            for block in OURS:
                await publisher.send(outgoing(block))
            await wait_until(lambda: len(sessions) > 0)
            monkeypatch.setattr(service.PublishSession, "opened", opened)
            opened(sessions[0])
        assert (publisher.compared, publisher.acknowledged, len(held)) == (20, 19, 20)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
async def test_a_chain_in_either_layout_is_compared_and_read(tmp_path: Path, scheme: HashScheme) -> None:
    """Also block 0 alone, of which the node does not know yet how it is hashed; then all roots are those that fit."""
    shape = BlockShape(scheme=scheme, hapi_version=(0, 3, 0))
    blocks = list(ChainGenerator(keys(), shape=shape).blocks(4))
    async with served(tmp_path, log_level="error") as running, connect(running.address) as client:
        for count in (1, 1, 4, 4):
            again = await publish(client, *blocks[:count])
        assert (again.compared, again.acknowledged) == (4, 3)
        assert [(await client.get(block.number))[1] for block in blocks] == [block.root for block in blocks]
        async with client.subscribe(0, 3) as received:
            assert [(each.root, tuple(each.items)) async for each in received] == [(b.root, b.items) for b in blocks]


async def test_a_cut_block_of_a_stored_number_is_an_error(tmp_path: Path) -> None:
    """Whole items are missing at its end, so that its file can be read; and with them its root."""
    async with served(tmp_path, log_level="error") as running, connect(running.address) as client:
        await publish(client, *OURS[:3])
        for item_count in (1, len(OURS[1].items) - 2, len(OURS[1].items) - 1):
            with pytest.raises(VerificationFailed, match=r"block 1 failed .*it has no (footer|proof)"):
                async with client.publisher(SETTINGS) as publisher:
                    await publisher.send(OutgoingBlock.from_items(OURS[1].items[:item_count]))
            assert publisher.acknowledged is None


async def test_a_number_given_twice(tmp_path: Path) -> None:
    """Once after the other is durable, and once while it is kept."""
    async with (
        served(tmp_path, log_level="error") as running,
        connect(running.address) as client,
        client.publisher(SETTINGS) as publisher,
    ):
        for _ in range(2):
            await publisher.send(outgoing(OURS[0]))
            await publisher.flush()
        assert publisher.compared == 1
        await publisher.send(outgoing(OURS[2]))
        await publisher.send(outgoing(OURS[2]))
        with pytest.raises(AnotherBlock, match="two different blocks 2 were given") as caught:
            await publisher.send(outgoing(OTHERS[2]))
        assert_names_both(caught.value, 2)
        await publisher.send(outgoing(OURS[1]))


async def test_an_acknowledgement_that_passes_over_the_block_of_another_publisher(tmp_path: Path) -> None:
    """The node takes the block whose header was first, and acknowledges its number to both publishers."""
    async with served(tmp_path, log_level="error") as running:
        for number, second in ((0, OURS[0]), (1, OTHERS[1])):
            first = OURS[number]
            async with connect_streams(running.address) as connection:
                conversation = connection.converse("block_publish")
                await conversation.send(PUBLISH.encode_request(OpenSession(b"")))
                assert await conversation.receive() is not None
                await conversation.send(PUBLISH.encode_request(BlockItems(0, list(first.items[:3]))))
                await wait_until(lambda: _next_block(running) == number + 1)  # noqa: B023
                failure: AnotherBlock | None = None
                try:
                    async with (
                        connect(running.address) as blocks_client,
                        blocks_client.publisher(SETTINGS) as publisher,
                    ):
                        await publisher.send(outgoing(second))
                        await wait_until(lambda: publisher._machine.next_block() is None)
                        await conversation.send(PUBLISH.encode_request(BlockItems(1, list(first.items[3:]))))
                        await conversation.send(PUBLISH.encode_request(EndOfBlock(2, number)))
                except AnotherBlock as error:
                    failure = error
            if number == 0:
                assert (failure, publisher.compared, publisher.acknowledged) == (None, 1, 0)
            else:
                assert failure is not None
                assert_names_both(failure, 1)


async def test_a_publisher_that_goes_on_at_a_node_with_another_chain(tmp_path: Path) -> None:
    """What it had published at the first node says nothing about the second one."""
    async with served(tmp_path / "b", log_level="error") as second:
        async with connect(second.address) as client:
            await publish(client, *OTHERS[:6])
        async with (
            served(tmp_path / "a", log_level="error") as first,
            connect([first.address, second.address]) as client,
        ):
            known: list[int | None] = []

            async def publish_over_a_stop() -> None:
                async with client.publisher(SETTINGS) as publisher:
                    for block in OURS[:3]:
                        await publisher.send(outgoing(block))
                    await publisher.flush()
                    known.append(publisher.acknowledged)
                    first.server.stop()
                    await publisher.send(outgoing(OURS[3]))

            with pytest.raises(AnotherBlock) as caught:
                await publish_over_a_stop()
        assert known == [2]
        assert (caught.value.number, caught.value.stored, caught.value.given[0].root) == (
            3,
            OTHERS[3].root,
            OURS[3].root,
        )
        assert caught.value.node == second.address


async def test_a_block_that_the_node_does_not_keep_is_unknown(tmp_path: Path) -> None:
    async with (
        served(tmp_path, log_level="error", block_retention_blocks=2) as running,
        connect(running.address) as client,
    ):
        await publish(client, *OURS[:6])
        await wait_until(lambda: _first_block(running) == 4)
        with pytest.raises(BlockNotCompared, match=f"unknown whether block 1 with root {OURS[1].root.hex()}") as caught:
            await publish(client, OURS[1])
        assert caught.value.in_doubt


OLD = Protocol[protocol.PublishRequest, protocol.PublishResponse](
    "block_publish",
    cast(
        "type[protocol.PublishRequest]",
        Annotated[
            OpenSession | BlockItems | EndOfBlock | EndStream,
            bare.Union({0: OpenSession, 1: BlockItems, 2: EndOfBlock, 3: EndStream}),
        ],
    ),
    cast(
        "type[protocol.PublishResponse]",
        Annotated[
            SessionOpened
            | Acknowledgement
            | protocol.DuplicateBlock
            | protocol.Behind
            | protocol.SkipBlock
            | protocol.ResendBlock
            | protocol.StreamEnded,
            bare.Union(
                {
                    0: SessionOpened,
                    1: Acknowledgement,
                    2: protocol.DuplicateBlock,
                    3: protocol.Behind,
                    4: protocol.SkipBlock,
                    5: protocol.ResendBlock,
                    6: protocol.StreamEnded,
                }
            ),
        ],
    ),
)
"""The messages that a node of before 0.2 knows."""


async def test_a_node_that_names_no_roots_is_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PUBLISH", OLD)
    async with served(tmp_path, log_level="error", error_delay_s=0.01) as running, connect(running.address) as client:
        new = await publish(client, *OURS[:4])
        assert (new.compared, new.acknowledged) == (4, 3)
        with pytest.raises(AnotherBlock) as caught:
            await publish(client, *OTHERS[:4])
        assert_names_both(caught.value, 0)


def test_the_blocking_client_compares_too(tmp_path: Path) -> None:
    with (
        NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node,
        blocking.connect(node.address) as client,
    ):
        for _ in range(2):
            with client.publisher() as publisher:
                publisher.send(outgoing(OURS[0]))
        assert publisher.compared == 1
        with pytest.raises(AnotherBlock) as caught, client.publisher() as publisher:
            publisher.send(outgoing(OTHERS[0]))
        assert_names_both(caught.value, 0)


def _next_block(running: Served) -> int | None:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    assert blocks.node.publish is not None
    return blocks.node.publish.next_block


def _first_block(running: Served) -> int | None:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    return blocks.node.store.first_block
