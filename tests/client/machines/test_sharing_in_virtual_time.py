"""Goal: members that are paused, cut off or slow never process under another's fence, and nothing is left out.

Method: whole clients in virtual time against a node in memory that has the node's own lease machine; seeded.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from index_service.extensions import LoadedPosition
from stream_client import LeaseMember
from stream_client.errors import ClientClosed, ClientError, ConnectionLost, LeaseLost, RequestRefused
from stream_client.positions import KnownPosition
from stream_client.share.shared_consumer import SharedConsumer
from tests.client.machines.memory_node import TTL_S, MemoryNode
from tests.client.machines.virtual import Clock, NothingCame, VirtualShell

PARTITIONS = 4
MESSAGES = 60


class Consuming:
    """One member in its own client. What it was handed is noted with the fence that it was handed under."""

    def __init__(self, clock: Clock, node: MemoryNode, name: str) -> None:
        self.name = name
        self.shell = VirtualShell(clock, node, patience_s=4.0)
        client = self.shell.client()
        self.member = LeaseMember(client, "c", member_id=name)
        stream = self.shell.run(client.create_partitioned("s", PARTITIONS))
        self.consumer: SharedConsumer = stream.shared_consumer(self.member, page_messages=8, save_messages=5)
        self.messages = self.consumer.messages()
        self.lost = 0

    def take(self) -> tuple[int, int, int] | None:
        """Partition, index and fence of the next message; None where none came, or a lease was lost."""
        try:
            partition, message = self.shell.run(self.messages.__anext__())
        except NothingCame:
            return None
        except LeaseLost as error:
            self.lost += len(error.partitions)
            return None
        return partition, message.index, self.consumer.fences[partition]


class Group:
    """Some members, and what each has processed."""

    def __init__(self, seed: int, members: int) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.node = MemoryNode(self.clock)
        for partition in range(PARTITIONS):
            self.node.fill(partition, MESSAGES)
        self.members = [Consuming(self.clock, self.node, f"m{number}") for number in range(members)]
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.owner: dict[tuple[int, int], str] = {}
        self.fences: dict[int, int] = defaultdict(int)

    def step(self) -> None:
        member = self.rng.choice(self.members)
        for _ in range(self.rng.randint(1, 12)):
            taken = member.take()
            if taken is not None:
                self.note(member.name, *taken)
        if self.rng.random() < 0.2:
            # Everybody stands still: a garbage collection, a suspended machine.
            self.clock.advance(self.rng.choice((0.5, 2.0, TTL_S / 2, TTL_S, 3 * TTL_S)))

    def note(self, name: str, partition: int, index: int, fence: int) -> None:
        assert self.owner.setdefault((partition, fence), name) == name, "two members under one fence"
        assert fence >= self.fences[partition], "somebody processes under a fence that is over"
        self.fences[partition] = fence
        assert index <= max(self.seen[partition], default=-1) + 1, "a message was left out"
        self.seen[partition].append(index)

    def has_all(self) -> bool:
        return all(set(self.seen[partition]) == set(range(MESSAGES)) for partition in range(PARTITIONS))


@pytest.mark.parametrize("seed", range(25))
def test_members_that_pause_never_share_a_fence_and_leave_nothing_out(seed: int) -> None:
    group = Group(seed, members=2 + seed % 2)
    for _ in range(2_000):
        group.step()
        if group.has_all():
            break
    assert group.has_all()
    assert all(group.node.indexes[partition] <= MESSAGES for partition in range(PARTITIONS))


def test_a_pause_beyond_the_lease_is_told_once_and_survived() -> None:
    group = Group(0, members=1)
    (member,) = group.members
    first = member.take()
    assert first is not None
    group.clock.advance(TTL_S)
    assert member.take() is None
    assert member.lost == PARTITIONS
    again = member.take()
    assert again is not None
    assert again[2] > first[2], "the same partition comes back under a higher fence"
    assert member.lost == PARTITIONS


def test_a_member_that_is_at_work_renews_in_time() -> None:
    group = Group(0, members=1)
    (member,) = group.members
    for _ in range(40):
        assert member.take() is not None
        group.clock.advance(TTL_S / 4)
        member.shell.exchange()
    assert member.lost == 0


def test_what_is_asked_back_is_given_within_two_renewals() -> None:
    group = Group(0, members=1)
    (first,) = group.members
    taken = first.take()
    assert taken is not None
    group.note(first.name, *taken)
    second = Consuming(group.clock, group.node, "late")
    second.shell.patience_s = 0.0
    started_s = group.clock.now_s
    while len(second.consumer.fences) < PARTITIONS // 2:
        for member in (first, second):
            taken = member.take()
            if taken is not None:
                group.note(member.name, *taken)
        assert group.clock.now_s - started_s < TTL_S
        group.clock.advance(0.1)
    assert first.lost == second.lost == 0
    assert len(first.consumer.fences) == PARTITIONS // 2


def test_a_fenced_save_is_a_lost_lease() -> None:
    group = Group(0, members=1)
    (member,) = group.members
    taken = member.take()
    assert taken is not None
    # The node has given it to somebody else, by an operator's word, and this member has not heard of it.
    partition = taken[0]
    group.node.leases = type(group.node.leases)([], old_until_s=0.0, ttl_s=TTL_S)
    with pytest.raises(LeaseLost) as caught:
        member.shell.run(member.consumer.save(with_last=True))
    assert partition in caught.value.partitions
    assert group.node.indexes[partition] == 0


def test_a_node_without_leases_ends_the_membership() -> None:
    clock = Clock()
    node = MemoryNode(clock)
    shell = VirtualShell(clock, node, patience_s=4.0)
    stream = shell.run(shell.client().create_partitioned("s", 2))
    other = VirtualShell(clock, lambda message: [])
    member = LeaseMember(other.client(), "c")
    consumer = stream.shared_consumer(member)
    messages = consumer.messages()
    with pytest.raises(NothingCame):
        shell.run(messages.__anext__())
    other.node = lambda message: [(message.onward_route[-1], b"\x05error\x03\x02no")]
    clock.advance(1.0)
    other.exchange()
    with pytest.raises(RequestRefused, match="no"):
        shell.run(messages.__anext__())


def test_leaving_gives_everything_back_at_once() -> None:
    group = Group(0, members=1)
    (member,) = group.members
    assert member.take() is not None
    member.shell.run(member.consumer.__aexit__(None, None, None))
    assert group.node.leases.members == 0
    assert sum(group.node.indexes.values()) == 1
    late = Consuming(group.clock, group.node, "late")
    assert late.take() is not None
    late.shell.run(late.consumer.__aexit__(KeyError, KeyError(), None))
    late.shell.exchange()
    assert group.node.leases.members == 0


@pytest.mark.parametrize("error", [ClientClosed("closed"), ConnectionLost("lost")])
@pytest.mark.parametrize("waits", [False, True])
def test_a_client_ends_with_a_member_that_has_not_left_its_group(error: ClientError, waits: bool) -> None:
    """Claim: the end of a client raises nothing, and its member learns of it. Method: the member asks for its leases
    and has no answer (or its next request is due later); the client ends, and the time of every timer passes."""
    group = Group(0, members=1)
    (member,) = group.members
    assert member.take() is not None
    if waits:
        member.shell.node = lambda message: []
        member.member.renew()
    member.shell.core.close(error)
    group.clock.advance(TTL_S)
    with pytest.raises(type(error)):
        member.take()


@pytest.mark.parametrize("is_awaited", [False, True])
def test_saves_of_a_member_go_on_at_an_older_node(is_awaited: bool) -> None:
    """Claim: a member keeps its leases and saves its positions if the next connection leads to a node that does not
    know marks. Method: the marks are there as another node has told them; the present node refuses saves with them."""
    group = Group(0, members=1)
    (member,) = group.members
    assert member.take() is not None
    for partition in range(PARTITIONS):
        mark = KnownPosition(0, LoadedPosition(0, 0, 0, 1), lambda partition: None)
        member.member._indexes._marks["s", partition] = mark
    if is_awaited:
        member.shell.run(member.consumer.save(with_last=True))
    else:
        assert all(member.take() is not None for _ in range(10))
        member.shell.exchange()
    assert sum(group.node.indexes.values()) > 0
    assert member.take() is not None
