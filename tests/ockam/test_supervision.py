"""Goal: children end with their parent, leaf first, and a parent decides about a child that was given up.

Method: small trees of workers, trio's virtual clock. `test_supervision_model.py` has every order of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio
import trio.testing

from ockam import (
    ALWAYS,
    AddressInUse,
    AsyncWorker,
    Ended,
    Message,
    Node,
    Restarts,
    Worker,
    WorkerEnded,
    WorkerState,
    local,
)

TOP, MIDDLE, LEAF, OTHER = (local(name) for name in ("top", "middle", "leaf", "other"))


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        yield Node(nursery)
        nursery.cancel_scope.cancel()


def told(text: str) -> Message:
    return Message((local(text.partition(" ")[0]),), (), text.partition(" ")[2].encode())


class Obeying(AsyncWorker):
    """Does what its messages say, and needs a second to clean up after its end."""

    ends: list[str]
    name: str

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            self.ends.append(self.name)

    async def handle(self, message: Message) -> None:
        if message.payload == b"crash":
            raise RuntimeError("told to crash")
        if message.payload == b"stop":
            self.stop("told to stop")
        await trio.sleep_forever()


def tree(ends: list[str], *, child_ended: Callable[[Worker, Ended], None] | None = None) -> Callable[[], Worker]:
    """Makes a worker with a child, which has a child itself; the leaf may be restarted once in a minute."""

    class Leaf(Obeying):
        name = "leaf"

    class Middle(Obeying):
        name = "middle"

        def started(self) -> None:
            self.start_child([LEAF], Leaf, Restarts(most=1))

    class Top(Obeying):
        name = "top"

        def started(self) -> None:
            self.start_child([MIDDLE], Middle, Restarts("on_crash", 1))

    Obeying.ends = ends
    if child_ended is not None:
        Middle.child_ended = child_ended  # type: ignore[method-assign, assignment]
    return Top


def names(states: tuple[WorkerState, ...]) -> list[object]:
    return [(str(each.address), each.state, each.restarts, names(each.children)) for each in states]


RUNNING: list[object] = [("top", "running", 0, [("middle", "running", 0, [("leaf", "running", 0, [])])])]


async def test_children_end_before_their_parent_and_their_addresses_are_free_at_once(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    ends: list[str] = []
    node.register([TOP], tree(ends))
    await trio.sleep(1)
    assert names(node.tree()) == RUNNING
    node.unregister(TOP)
    assert not any(map(node.is_registered, (TOP, MIDDLE, LEAF)))
    await trio.sleep(10)
    assert ends == ["leaf", "middle", "top"]
    assert node.tree() == ()


async def test_a_crash_ends_the_children_which_the_next_worker_starts_anew(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """The next worker starts only when the tasks of the last children have ended, though its delay is shorter."""
    ends: list[str] = []
    node.register([TOP], tree(ends))
    await trio.sleep(1)
    node.send(told("middle crash"))
    await trio.sleep(1.5)
    assert names(node.tree()) == [("top", "running", 0, [("middle", "restarting", 0, [("leaf", "stopped", 0, [])])])]
    await trio.sleep(10)
    assert names(node.tree()) == [("top", "running", 0, [("middle", "running", 1, [("leaf", "running", 0, [])])])]
    assert ends == ["middle", "leaf"]


async def test_a_child_that_was_given_up_crashes_its_parent_whose_own_policy_decides(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    ends: list[str] = []
    node.register([TOP], tree(ends))
    for _ in range(2):
        node.send(told("leaf crash"))
        await trio.sleep(10)
    [top] = node.tree()
    [middle] = top.children
    assert (top.restarts, middle.restarts) == (0, 1)
    assert middle.reason == """ChildFailed("leaf was given up: RuntimeError('told to crash')")"""
    statistics = node.statistics()
    assert (statistics.crashes, statistics.restarts, statistics.given_up) == (3, 2, 1)


async def test_a_parent_may_take_the_end_of_a_child_itself(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    found: list[Ended] = []
    node.register([TOP], tree([], child_ended=lambda _, end: found.append(end)))
    for _ in range(2):
        node.send(told("leaf crash"))
        await trio.sleep(10)
    [end] = found
    assert (end.address, end.gave_up, str(end.error)) == (LEAF, True, "told to crash")
    assert names(node.tree()) == [("top", "running", 0, [("middle", "running", 0, [])])]


async def test_a_worker_that_stops_says_why(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    """A worker of the policy `on_crash` is not started again, and its parent is told without a crash."""
    node.register([TOP], tree([]))
    node.send(told("middle stop"))
    await trio.sleep(10)
    assert names(node.tree()) == [("top", "running", 0, [])]
    node.send(told("top stop"))
    await trio.sleep(10)
    [top] = node.tree()
    assert (top.restarts, top.reason) == (1, "told to stop")


async def test_a_callback_worker_that_stops_handles_the_messages_it_was_given(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    handled: list[bytes] = []

    class Stops(Worker):
        def handle(self, message: Message) -> None:
            handled.append(message.payload)
            if message.payload == b"stop":
                self.stop()

        def stopped(self) -> None:
            handled.append(b"stopped")

    node.register([TOP], Stops, restarts=Restarts("on_crash"))
    with node.batch():
        for payload in (b"1", b"stop", b"2"):
            node.send(Message((TOP,), (), payload))
    assert handled == [b"1", b"stop", b"2", b"stopped"]
    assert not node.is_registered(TOP)


async def test_a_parent_stops_its_own_children_only(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    class Parent(Worker):
        def started(self) -> None:
            self.start_child([LEAF], Worker, ALWAYS)

        def handle(self, message: Message) -> None:
            self.stop_child(LEAF)
            self.stop_child(OTHER)

    node.register([TOP], Parent)
    node.register([OTHER], Worker)
    node.send(told("top"))
    assert [node.is_registered(each) for each in (TOP, LEAF, OTHER)] == [True, False, True]


async def test_a_worker_that_has_ended_starts_no_child_and_one_that_cannot_start_leaves_nothing(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    class CannotStart(Worker):
        def started(self) -> None:
            self.start_child([LEAF], Worker)
            self.start_child([OTHER], Worker)

    node.register([OTHER], Worker)
    with pytest.raises(AddressInUse, match="other"):
        node.register([TOP], CannotStart)
    assert [node.is_registered(each) for each in (TOP, LEAF, OTHER)] == [False, False, True]
    worker = Worker()
    node.register([TOP], lambda: worker)
    node.unregister(TOP)
    with pytest.raises(WorkerEnded, match="top"):
        worker.start_child([LEAF], Worker)


async def test_a_worker_is_stopped_while_it_waits_for_its_restart(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """Also then its waiting messages are refused, and it does not start again."""
    node.register([TOP], tree([]))
    node.send(told("top crash"))
    await trio.sleep(1.05)
    assert names(node.tree()) == [("top", "restarting", 0, [("middle", "stopped", 0, [("leaf", "stopped", 0, [])])])]
    node.unregister(TOP)
    await trio.sleep(30)
    assert (node.tree(), node.statistics().restarts) == ((), 0)


async def test_a_factory_that_makes_the_other_kind_is_a_crash(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    kinds: list[type[Worker]] = [Worker, Obeying]
    node.register([TOP], lambda: kinds.pop()(), restarts=Restarts("on_crash", most=2))
    node.send(told("top crash"))
    await trio.sleep(10)
    assert (node.tree(), node.statistics().crashes, node.statistics().given_up) == ((), 3, 1)


async def test_a_worker_that_fails_twice_in_one_call_is_started_again_once(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """Claim: a failure after the worker's end counts as no second crash. Method: a callback fails within `handle`, and
    then `handle` itself; each call doubles the time until the next start once."""
    starts_s: list[float] = []

    class Twice(Worker):
        def started(self) -> None:
            starts_s.append(trio.current_time())

        def handle(self, message: Message) -> None:
            self.context.guard(self.fail)()
            self.fail()

        def fail(self) -> None:
            raise RuntimeError("told to fail")

    node.register([TOP], Twice)
    delays_s: list[float] = []
    for _ in range(3):
        failed_s = trio.current_time()
        node.send(told("top"))
        await trio.sleep(5)
        delays_s.append(round(starts_s[-1] - failed_s, 3))
    assert (delays_s, len(starts_s)) == ([0.1, 0.2, 0.4], 4)


async def test_a_worker_that_frees_its_address_and_then_fails_is_not_started_again(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """Claim: such a worker has ended for good, and leaves nothing. Method: its starts are counted for half a minute."""
    starts: list[Worker] = []

    class Frees(Worker):
        def started(self) -> None:
            starts.append(self)

        def handle(self, message: Message) -> None:
            node.unregister(TOP)
            raise RuntimeError("told to fail")

    node.register([TOP], Frees)
    node.send(told("top"))
    await trio.sleep(30)
    assert (len(starts), node.tree()) == (1, ())
