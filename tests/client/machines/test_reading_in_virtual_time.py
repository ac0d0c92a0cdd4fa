"""Goal: what readers do about time, deletions and nodes without our own protocols. Method: no sockets, virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

from index_service.protocol import INDEX_PARTITIONED, GetPartitionIndex
from ockam.actors.message import Message
from ockam.protocol import error_payload
from stream_client import NEW, PartitionedConsumer, SavedIndexes
from stream_client.client import StreamClient
from stream_client.consume.page import IDLE_DELAY_S
from stream_client.errors import ClientClosed, PositionBeyondEnd, RequestRefused, RequestTimeout
from stream_client.streams import PartitionedStream, Stream
from stream_service.extensions import LIST, RICH_PULL, ListResponse, StreamInfo
from stream_service.names import stream_address
from tests.client.machines.memory_node import MemoryNode
from tests.client.machines.virtual import Answers, Clock, NothingCame, VirtualShell


def reading(*, rich: bool = True, partitions: int = 1) -> tuple[Clock, MemoryNode, VirtualShell, PartitionedStream]:
    clock = Clock()
    node = MemoryNode(clock, rich=rich)
    shell = VirtualShell(clock, node, patience_s=3.0)
    return clock, node, shell, shell.run(shell.client().create_partitioned("s", partitions))


def one(*, rich: bool = True) -> tuple[Clock, MemoryNode, VirtualShell, Stream]:
    clock, node, shell, stream = reading(rich=rich)
    return clock, node, shell, stream.partitions[0]


def test_a_node_without_our_pull_is_asked_by_the_specifications() -> None:
    clock, node, shell, stream = one(rich=False)
    node.fill(0, 5)
    follower = stream.follow(page_messages=2)
    messages = [shell.run(follower.__anext__()) for _ in range(5)]
    assert [(each.index, each.data, each.time_us, each.key) for each in messages] == [
        (number, b"%d" % number, 0, None) for number in range(5)
    ]
    with pytest.raises(NothingCame):
        shell.run(follower.__anext__())
    assert node.pulls <= 6 + 3.0 / IDLE_DELAY_S, "it asks again after a delay, and not at once"
    node.fill(0, 1)
    started_s = clock.now_s
    assert shell.run(follower.__anext__()).index == 5
    assert clock.now_s - started_s <= IDLE_DELAY_S
    with pytest.raises(RequestRefused):
        shell.run(stream.follow(NEW).__anext__())


def test_a_node_that_has_our_pull_is_believed_when_it_refuses_one() -> None:
    _, node, shell, stream = one()
    node.fill(0, 2)
    follower = stream.follow(page_messages=1)
    assert shell.run(follower.__anext__()).index == 0
    node.rich = False
    assert shell.run(follower.__anext__()).index == 1, "it was on its way already"
    for _ in range(2):
        with pytest.raises(RequestRefused):
            shell.run(follower.__anext__())
    node.rich = True
    node.fill(0, 1)
    assert shell.run(follower.__anext__()).index == 2


def test_an_end_that_is_not_told_is_a_time_out() -> None:
    clock, node, shell, stream = one()
    shell.patience_s = 1_000.0
    node.silent = True
    follower = stream.follow(stop_at_end=True)
    consumer = stream.consumer(SavedIndexes(shell.client(), "c"))
    for ask in (follower.__anext__, consumer.messages(stop_at_end=True).__anext__):
        started_s = clock.now_s
        with pytest.raises(RequestTimeout):
            shell.run(ask())
        assert 30.0 <= clock.now_s - started_s <= 40.0


def test_positions_go_out_in_order_and_never_ahead_of_what_is_processed() -> None:
    clock, node, shell, stream = one()
    node.fill(0, 100)
    consumer = stream.consumer(
        SavedIndexes(shell.client(), "c"), page_messages=7, save_messages=10, save_interval_s=2.0
    )
    messages = consumer.messages(stop_at_end=True)
    processed = 0
    while True:
        try:
            message = shell.run(messages.__anext__())
        except StopAsyncIteration:
            break
        assert message.index == processed
        assert all(index <= processed for _, index in node.saves)
        processed += 1
        if processed % 9 == 0:
            clock.advance(2.5)
    indexes = [index for _, index in node.saves]
    assert indexes == sorted(indexes)
    assert indexes[-1] == 100
    assert consumer.processed == 100
    assert max(later - earlier for earlier, later in pairwise(indexes)) <= 10


def test_a_slow_trickle_is_saved_by_time_while_more_is_waited_for() -> None:
    _, node, shell, stream = one()
    node.fill(0, 1)
    consumer = stream.consumer(SavedIndexes(shell.client(), "c"), save_interval_s=1.5)
    messages = consumer.messages()
    assert shell.run(messages.__anext__()).index == 0
    with pytest.raises(NothingCame):
        shell.run(messages.__anext__())
    assert node.saves == [(0, 1)]


def test_a_stream_that_was_made_again_is_noticed_and_the_position_can_be_set() -> None:
    _, node, shell, stream = one()
    positions = SavedIndexes(shell.client(), "c")
    node.indexes[0] = 50
    node.fill(0, 3)
    consumer = stream.consumer(positions)
    with pytest.raises(PositionBeyondEnd):
        shell.run(consumer.messages(stop_at_end=True).__anext__())
    node.indexes[0] = 0
    again = stream.consumer(positions).messages(stop_at_end=True)
    assert shell.run(again.__anext__()).index == 0


def test_no_partition_is_starved() -> None:
    _, node, shell, stream = reading(partitions=4)
    for partition, count in enumerate((1_000, 3, 1_000, 5)):
        node.fill(partition, count)
    consumer = stream.consumer(SavedIndexes(shell.client(), "c"), page_messages=10)
    messages = consumer.messages(stop_at_end=True)
    seen = [shell.run(messages.__anext__())[0] for _ in range(28)]
    assert set(seen) == {0, 1, 2, 3}, "a page of each in turn"
    assert seen == [0] * 10 + [1] * 3 + [2] * 10 + [3] * 5


def test_holes_inside_and_in_front_of_pages_are_told() -> None:
    _, node, shell, stream = one()
    node.fill(0, 10)
    node.first[node.address(0)] = 4
    told: list[tuple[int, int, int]] = []
    node.indexes[0] = 1
    consumer = stream.consumer(
        SavedIndexes(shell.client(), "c"), on_hole=lambda *hole: told.append(hole), page_messages=2
    )
    messages = consumer.messages(stop_at_end=True)
    assert shell.run(messages.__anext__()).index == 4
    assert told == [(0, 1, 4)]
    assert consumer.holes == 3


def test_a_reader_of_a_closed_client_says_so() -> None:
    _, node, shell, stream = one(rich=False)
    node.fill(0, 1)
    follower, consumer = stream.follow(), stream.consumer(SavedIndexes(shell.client(), "c"))
    assert shell.run(follower.__anext__()).index == 0
    shell.core.close()
    for _ in range(2):
        with pytest.raises(ClientClosed):
            shell.run(follower.__anext__())
    with pytest.raises(ClientClosed):
        shell.run(consumer.messages().__anext__())


def test_pages_have_at_least_one_message() -> None:
    _, _, _, stream = one()
    with pytest.raises(ValueError, match="at least 1"):
        stream.follow(page_messages=0)
    with pytest.raises(ValueError, match="at least 1 push"):
        stream.publisher(window=0)
    with pytest.raises(ValueError, match="not empty"):
        stream.publisher(publisher_id=b"")


class GrowingNode(MemoryNode):
    """A node whose stream gets a second partition. The answer that says so comes together with a message."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.grows = self.refuses = False
        self.asked: Message | None = None
        self.tell: Callable[[Message, bytes], None] = lambda asked, payload: None

    def __call__(self, message: Message) -> Answers:
        if self.grows and LIST.is_in(message.payload):
            self.asked = message
            return
        if self.asked is not None and RICH_PULL.is_in(message.payload):
            self.fill(0, 1)
            self.streams[stream_address("s", 1)].append(b"0")
            infos = [StreamInfo("s", partition, 0, 0, 0, 0, None, None, None) for partition in range(2)]
            self.tell(self.asked, LIST.encode_response(ListResponse(0, infos, False)))
            self.asked, self.grows = None, False
        if self.refuses and INDEX_PARTITIONED.is_in(message.payload):
            request = INDEX_PARTITIONED.decode_request(message.payload)
            if isinstance(request, GetPartitionIndex) and request.partition == 1:
                self.refuses = False
                yield self.address(0), error_payload("not now")
                return
        yield from super().__call__(message)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_partition_that_is_added_takes_no_message_of_another_one_away(refuses: bool) -> None:
    """Claim: a consumer reads every message, also if it learns of a new partition at the moment when a page of another
    one comes, and if the new one's position cannot be loaded at first. Method: a node that answers both at once."""
    clock = Clock()
    node = GrowingNode(clock)
    shell = VirtualShell(clock, node, patience_s=20.0)
    node.tell = shell._far.answer
    stream = shell.run(shell.client().create_partitioned("s", 1))
    consumer = PartitionedConsumer(stream.partitions, SavedIndexes(shell.client(), "c"))
    consumer.watch_partitions(1)
    messages = consumer.messages()
    node.fill(0, 1)
    assert shell.run(messages.__anext__())[0] == 0
    node.grows, node.refuses = True, refuses
    if refuses:
        with pytest.raises(RequestRefused, match="not now"):
            shell.run(messages.__anext__())
    assert {shell.run(messages.__anext__())[0] for _ in range(2)} == {0, 1}


class EndingPositions(SavedIndexes):
    """Positions whose save is under way when another task ends the consumer."""

    def __init__(self, client: StreamClient) -> None:
        super().__init__(client, "c")
        self.end: Callable[[], None] = lambda: None

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        await super().save(stream_name, indexes)
        self.end()


def test_a_save_ends_well_if_its_partitions_are_dropped_meanwhile() -> None:
    """Claim: `save` raises nothing if another task ends the consumer, or a lease is lost, during its wait. Method: the
    partitions are dropped when the node has answered."""
    _, node, shell, stream = one()
    node.fill(0, 1)
    positions = EndingPositions(shell.client())
    consumer = stream.consumer(positions)
    assert shell.run(consumer.messages().__anext__()).index == 0
    positions.end = consumer._loop.stop
    shell.run(consumer.save(with_last=True))
    assert node.indexes[0] == 1


def test_a_first_number_that_no_node_stores_is_refused() -> None:
    """Claim: a publisher begins with a number that can be sent. Method: the first one beyond all numbers."""
    _, _, _, stream = one()
    with pytest.raises(ValueError, match="from 0 to"):
        stream.publisher(publisher_id=b"device", first_number=2**63)
