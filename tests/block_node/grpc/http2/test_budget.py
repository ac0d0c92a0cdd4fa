"""Goal: no party takes the memory for unfinished messages, or the windows, away from the others.

Method: random messages of random parties against the sum that the test keeps itself; and a party that takes all it can
get, beside one that comes later.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from block_node.grpc.http2.message_reader import DoorBudget, MessageBudget, MessageReader

BYTES_MAX = 1 << 20
STEP_MAX = 1 << 16


class Message:
    """A message of a party that grows by small steps as long as it may. told: how often it may have got room."""

    def __init__(self, budget: MessageBudget) -> None:
        self.budget = budget
        self.reader = MessageReader("identity", budget)
        self.reader.when_room = self._note
        self.size_bytes = self.told = 0

    def grow(self, more_bytes: int) -> bool:
        if not self.budget.may_go_on(self.reader):
            return False
        self.size_bytes += more_bytes
        self.budget.hold(self.reader, self.size_bytes)
        return True

    def _note(self) -> None:
        self.told += 1


def grow_all(messages: list[Message]) -> None:
    """Until none of them may go on, or one of them has all there is."""
    while any([each.size_bytes < BYTES_MAX and each.grow(1_000) for each in messages]):
        pass


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, STEP_MAX)), max_size=80))
def test_there_is_something_left_for_each_party(steps: list[tuple[int, int, int]]) -> None:
    """In each state, all but the eldest message are within the limit, one may go on, and who waits is told."""
    door = DoorBudget(BYTES_MAX)
    budgets = [door.of(f"party {number}") for number in range(4)]
    messages = {(party, number): Message(budgets[party]) for party in range(4) for number in range(3)}
    order: list[Message] = []
    for party, number, more_bytes in steps:
        message = messages[party, number]
        if more_bytes:
            if message.grow(more_bytes) and message not in order:
                order.append(message)
        elif message in order:
            waiting = [each for each in order if each is not message and not each.budget.may_go_on(each.reader)]
            before = [each.told for each in waiting]
            message.reader.close()
            message.size_bytes = 0
            order.remove(message)
            assert [each.told for each in waiting] == [told + 1 for told in before]
        assert door.held_bytes == sum(each.size_bytes for each in order)
        assert [each.held_bytes for each in budgets] == [
            sum(each.size_bytes for each in order if each.budget is budget) for budget in budgets
        ]
        assert sum(each.size_bytes for each in order[1:]) < BYTES_MAX + STEP_MAX
        assert not order or order[0].budget.may_go_on(order[0].reader)


def test_a_party_that_never_ends_its_messages_stops_no_other_one() -> None:
    """Four messages that drip hold what they can. Another party's message, and a third one's, still come to an end."""
    door = DoorBudget(BYTES_MAX)
    dripping, honest, third = (door.of(name) for name in ("dripping", "honest", "third"))
    drips = [Message(dripping) for _ in range(4)]
    # The eldest of all always goes on, so it is one of the others that shows the limit.
    eldest = drips.pop(0)
    eldest.grow(1_000)
    grow_all(drips)
    assert BYTES_MAX * 0.45 < door.held_bytes < BYTES_MAX * 0.75
    assert not any(each.grow(1) for each in drips)
    for budget, part in ((honest, 0.12), (third, 0.06)):
        message = Message(budget)
        while message.size_bytes < BYTES_MAX * part:
            assert message.grow(1_000)
    for each in drips:
        each.reader.close()
    assert door.of("dripping") is dripping
    assert dripping.held_bytes == 1_000


def test_a_party_that_opens_all_calls_leaves_windows_for_the_others() -> None:
    door = DoorBudget(BYTES_MAX)
    greedy, other = door.of("greedy"), door.of("other")
    given_bytes = [greedy.widen(BYTES_MAX) for _ in range(1_000)]
    assert sum(given_bytes) == greedy.window_bytes <= BYTES_MAX / 2
    assert all(given_bytes[:20])
    assert other.widen(BYTES_MAX) > BYTES_MAX / 20
    for each in given_bytes:
        greedy.widen(-each)
    assert door.window_bytes == other.window_bytes
