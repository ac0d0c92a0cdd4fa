"""Goal: whatever a publisher sends, it gets the status that the protocol has for it, the stream stays open or ends as
specified, and the node goes on: afterwards a healthy publisher's block is acknowledged.

Method: as in test_publishing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest

from block_node.blocks.address_book import AddressBook, AddressBooks
from block_node.blocks.errors import FailureKind
from block_node.blocks.generator import SigningKeys
from block_node.blocks.items import ItemKind, make_item
from block_node.events import NodeFailure, VerificationNotification
from block_node.node import BlockNode, BlockNodeSettings
from block_node.protocol import (
    PUBLISH,
    Acknowledgement,
    BlockItems,
    EndOfBlock,
    OpenSession,
    Piece,
    PublishStatus,
    SessionOpened,
    StreamEnded,
)
from block_node.publish.block_machine import PublishLimits
from block_node.publish.session import HEADER_TAG
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.protocol import ERROR
from tests.block_node.publish.samples import VERIFIER, Bench, Publisher, address_books, bench, chain_of, spoilt

BLOCK = chain_of(1)[0]
SERVICE = local("block_publish")
BIG = make_item(ItemKind.SIGNED_TRANSACTION, bytes(1_000))

Deed = Callable[[Publisher], None]


def a_request_of_another_protocol(publisher: Publisher) -> None:
    assert publisher.to is not None
    publisher.send_to(publisher.to, OpenSession(b"x"))


def items_before_a_header(publisher: Publisher) -> None:
    publisher.items(BLOCK.items[1:])


def items_after_a_block(publisher: Publisher) -> None:
    publisher.header(0)
    publisher.end_block(0)
    publisher.items(BLOCK.items[1:])


def a_header_in_pieces(publisher: Publisher) -> None:
    publisher.items([BLOCK.items[0]], Piece.FIRST)


def two_pieces_in_a_message(publisher: Publisher) -> None:
    publisher.header(0)
    publisher.items([b"one", b"two"], Piece.FIRST)


def a_piece_without_a_first(publisher: Publisher) -> None:
    publisher.header(0)
    publisher.items([BIG[100:]], Piece.LAST)


def an_item_within_an_item(publisher: Publisher) -> None:
    publisher.header(0)
    publisher.items([BIG[:100]], Piece.FIRST)
    publisher.items([BIG])


def a_block_that_ends_within_an_item(publisher: Publisher) -> None:
    publisher.header(0)
    publisher.items([BIG[:100]], Piece.FIRST)
    publisher.end_block(0)


def a_message_that_was_lost(publisher: Publisher) -> None:
    publisher.header(0)
    publisher.sequence += 1
    publisher.items(BLOCK.items[1:])


def an_empty_header(publisher: Publisher) -> None:
    publisher.items([HEADER_TAG + b"\0"])


def a_block_of_too_many_items(publisher: Publisher) -> None:
    publisher.items([BLOCK.items[0], *[BLOCK.items[1]] * 100])


def a_block_of_too_many_bytes(publisher: Publisher) -> None:
    publisher.items([BLOCK.items[0], make_item(ItemKind.SIGNED_TRANSACTION, bytes(20_000))])


def an_item_in_pieces_that_is_too_large(publisher: Publisher) -> None:
    large = make_item(ItemKind.SIGNED_TRANSACTION, bytes(20_000))
    publisher.header(0)
    publisher.items([large[:15_000]], Piece.FIRST)
    publisher.items([large[15_000:]], Piece.LAST)
    publisher.items([BLOCK.items[-1]])
    publisher.end_block(0)


def two_headers_in_a_block(publisher: Publisher) -> None:
    publisher.items([BLOCK.items[0], *BLOCK.items])
    publisher.end_block(0)


def a_header_of_another_block_in_the_middle(publisher: Publisher) -> None:
    publisher.items([*BLOCK.items[:3], chain_of(2)[1].items[0], *BLOCK.items[3:]])
    publisher.end_block(0)


def a_block_without_its_last_items(publisher: Publisher) -> None:
    publisher.items(BLOCK.items[:-2])
    publisher.end_block(0)


def a_block_with_a_header_alone(publisher: Publisher) -> None:
    publisher.header(0)
    publisher.end_block(0)


def a_proof_that_does_not_match(publisher: Publisher) -> None:
    publisher.items(spoilt(BLOCK))
    publisher.end_block(0)


def a_proof_of_another_block(publisher: Publisher) -> None:
    publisher.items([*BLOCK.items[:-1], chain_of(2)[1].items[-1]])
    publisher.end_block(0)


def a_block_of_another_chain(publisher: Publisher) -> None:
    publisher.items([BLOCK.items[0], *chain_of(2)[1].items[1:]])
    publisher.end_block(0)


def items_that_are_no_items(publisher: Publisher) -> None:
    publisher.items([BLOCK.items[0], b"\xff\xff\xff", b""])
    publisher.end_block(0)


def a_piece_that_is_no_item(publisher: Publisher) -> None:
    publisher.items([BLOCK.items[0]])
    publisher.items([bytes(30)], Piece.FIRST)
    publisher.items([bytes(30)], Piece.LAST)
    publisher.end_block(0)


INVALID, BAD, ERRONEOUS = PublishStatus.INVALID_REQUEST, PublishStatus.BAD_BLOCK_PROOF, PublishStatus.ERROR


@pytest.mark.parametrize(
    ("deed", "status"),
    [
        (a_request_of_another_protocol, INVALID),
        (items_before_a_header, INVALID),
        (items_after_a_block, None),
        (a_header_in_pieces, INVALID),
        (two_pieces_in_a_message, INVALID),
        (a_piece_without_a_first, INVALID),
        (an_item_within_an_item, INVALID),
        (a_block_that_ends_within_an_item, INVALID),
        (a_message_that_was_lost, ERRONEOUS),
        (an_empty_header, ERRONEOUS),
        (a_block_of_too_many_items, INVALID),
        (a_block_of_too_many_bytes, INVALID),
        (an_item_in_pieces_that_is_too_large, INVALID),
        (two_headers_in_a_block, BAD),
        (a_header_of_another_block_in_the_middle, BAD),
        (a_block_without_its_last_items, BAD),
        (a_block_with_a_header_alone, BAD),
        (a_proof_that_does_not_match, BAD),
        (a_proof_of_another_block, BAD),
        (a_block_of_another_chain, BAD),
        (items_that_are_no_items, BAD),
        (a_piece_that_is_no_item, BAD),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_is_wrong_ends_the_stream_with_its_status(
    tmp_path: Path, deed: Deed, status: PublishStatus | None
) -> None:
    limits = msgspec.structs.replace(VERIFIER, items_max=50, block_bytes_max=15_000)
    async with bench(tmp_path, verifier=limits) as world:
        bad, good = await world.publisher(), await world.publisher()
        session = bad.to
        assert session is not None
        deed(bad)
        ended = await bad.expect(StreamEnded)
        assert ended.status is (status or BAD), ended
        assert ended.reason
        assert not world.node.is_registered(session)
        await the_node_goes_on(world, good)


async def the_node_goes_on(world: Bench, good: Publisher) -> None:
    good.block(BLOCK)
    await good.wait_for(Acknowledgement(0))
    await world.settle()
    assert world.publishing.statistics().in_flight.blocks == 0
    assert not world.all_of(NodeFailure)
    assert world.stored() == [0]


async def test_messages_that_come_twice_count_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        for position, item in enumerate(BLOCK.items):
            for _ in range(1 + position % 2):
                publisher.send(BlockItems(position, [item]))
        publisher.send(BlockItems(0, [BLOCK.items[0]]))
        for _ in range(2):
            publisher.send(EndOfBlock(len(BLOCK.items), 0))
        assert await publisher.expect(Acknowledgement) == Acknowledgement(0)
        await world.settle()
        assert not publisher.told


async def test_an_item_in_pieces_is_as_good_as_a_whole_one(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        header, *rest = BLOCK.items
        publisher.items([header])
        for item in rest:
            for at in range(0, len(item), 50):
                last = at + 50 >= len(item)
                first = at == 0
                piece = (
                    Piece.WHOLE if first and last else Piece.FIRST if first else Piece.LAST if last else Piece.MIDDLE
                )
                publisher.items([item[at : at + 50]], piece)
        publisher.end_block(0)
        assert await publisher.expect(Acknowledgement) == Acknowledgement(0)
        assert world.all_of(VerificationNotification)[0].root == BLOCK.root


async def test_a_block_that_nobody_in_the_address_book_signed_is_refused(tmp_path: Path) -> None:
    books = AddressBooks.always(AddressBook({9: SigningKeys.generate(key_bits=2048).address_book.find_key(0)}))  # type: ignore[dict-item]
    async with bench(tmp_path, books=books) as world:
        publisher = await world.publisher()
        publisher.block(BLOCK)
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.BAD_BLOCK_PROOF
        assert world.all_of(VerificationNotification)[0].failure != FailureKind.UNKNOWN_ERROR.value


@pytest.mark.parametrize(
    "payload",
    [
        PUBLISH.encode_request(BlockItems(0, [b"x"])),
        PUBLISH.encode_request(OpenSession(bytes(65))),
        PUBLISH.tag,
        b"\x05other",
    ],
    ids=["no session", "long token", "cut short", "another protocol"],
)
async def test_the_service_opens_sessions_and_nothing_else(tmp_path: Path, payload: bytes) -> None:
    async with bench(tmp_path) as world:
        answers = []

        class Asking(Publisher):
            def handle(self, message: Message) -> None:
                answers.append(ERROR.decode_response(message.payload).reason)

        asking = Asking(world.node)
        world.node.send(Message((local("block_publish"),), (asking.address,), payload))
        await world.settle()
        assert len(answers) == 1
        assert answers[0].startswith("Invalid request: ")
        assert world.publishing.machine.publishers == 0


async def test_an_opening_that_comes_again_is_answered_by_the_same_session(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = Publisher(world.node)
        await publisher.open(b"token")
        first = publisher.to
        await publisher.open(b"token")
        assert publisher.to == first
        assert world.publishing.machine.publishers == 1
        await publisher.open(b"another")
        assert publisher.to != first


@pytest.mark.parametrize("is_served", [True, False], ids=["served", "handed over"])
async def test_openings_before_the_node_is_ready_wait_in_a_mailbox(tmp_path: Path, is_served: bool) -> None:
    """It is bounded, as every mailbox. Method: a second node in the place of the first, spoken to before it has read
    which blocks are stored."""
    async with bench(tmp_path) as world:
        world.block_node.close()
        second = BlockNode(
            world.node,
            world.runner,
            BlockNodeSettings(verifier=VERIFIER),
            now_us=lambda: 0,
            new_id=map(str, count()).__next__,
            address_books=address_books(),
        )
        publishers = [Publisher(world.node) for _ in range(3)]
        second.start()
        for each in publishers:
            each.send_to(SERVICE, OpenSession(each.address.value))
        mailbox = world.node.find_mailbox(SERVICE)
        assert mailbox is not None
        assert second.publishing is None
        assert len(mailbox) == 3
        if is_served:
            for each in publishers:
                await each.expect(SessionOpened)
        else:
            waiting = second.close()
            assert [message.return_route for message in waiting] == [(each.address,) for each in publishers]
            await world.settle()
            assert second.publishing is None
        assert not len(mailbox)


async def test_too_many_publishers_are_told_so(tmp_path: Path) -> None:
    async with bench(tmp_path, PublishLimits(sessions_max=2)) as world:
        publishers = [await world.publisher() for _ in range(2)]
        extra = Publisher(world.node)
        extra.send_to(local("block_publish"), OpenSession(b""))
        assert (await extra.expect(StreamEnded)).status is PublishStatus.ERROR
        publishers[0].end_stream()
        await extra.open(b"now")
