"""Goal: routing, bounded mailboxes and supervision of the node. Method: small workers, trio's virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import trio
import trio.testing

from ockam.actors import mailbox as mailbox_module
from ockam.actors.address import TCP, Address, local
from ockam.actors.cell import RESTART_DELAY_S_MAX
from ockam.actors.message import Message
from ockam.actors.node import ROUND_RUNS_MIN, RUNS_PER_BATCH_MAX, Node
from ockam.actors.worker import Worker
from ockam.errors import AddressInUse

A, B, ME = local("a"), local("b"), local("me")


class Recorder(Worker):
    """Keeps what it gets; fails on the payload `fail`."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.routes: list[tuple[Address, ...]] = []
        self.stops = 0

    def handle(self, message: Message) -> None:
        if message.payload == b"fail":
            raise RuntimeError("told to fail")
        self.payloads.append(message.payload)
        self.routes.append(message.return_route)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return b"failed: " + message.payload

    def stopped(self) -> None:
        self.stops += 1


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        yield Node(nursery)
        nursery.cancel_scope.cancel()


def message(to: Address, payload: bytes = b"x", back: Address = ME) -> Message:
    return Message((to,), (back,), payload)


async def test_a_message_reaches_the_worker_at_its_first_hop(node: Node) -> None:
    worker = Recorder()
    node.register([A], lambda: worker)
    assert node.send(Message((A, local("extra")), (ME,), b"hello"))
    assert (worker.payloads, worker.routes) == ([b"hello"], [(ME,)])


async def test_aliases_lead_to_one_worker_and_an_address_is_taken_once(node: Node) -> None:
    worker = Recorder()
    node.register([A, B], lambda: worker)
    node.send(message(A, b"1"))
    node.send(message(B, b"2"))
    assert worker.payloads == [b"1", b"2"]
    with pytest.raises(AddressInUse, match="a"):
        node.register([A], Recorder)
    node.unregister(B)
    assert not node.is_registered(A)
    assert worker.stops == 1


async def test_unknown_addresses_are_dropped_and_counted_and_an_empty_route_is_a_heartbeat(node: Node) -> None:
    assert not node.send(message(local("nobody")))
    assert not node.send(Message((Address(TCP, b"127.0.0.1:1"),), (), b""))
    assert not node.send(Message((), (), b""))
    assert node.statistics().dropped == {"unknown_address": 1, "forward_refused": 1}


async def test_the_end_of_a_batch_comes_behind_its_workers(node: Node) -> None:
    worker = Recorder()
    node.register([A], lambda: worker)
    seen: list[list[bytes]] = []

    def note() -> None:
        seen.append(list(worker.payloads))

    node.at_batch_end(note)
    assert seen == [[]]
    with node.batch():
        node.at_batch_end(note)
        with node.batch():
            node.send(message(A, b"1"))
        assert seen == [[]]
        node.send(message(A, b"2"))
    assert seen == [[], [b"1", b"2"]]
    with node.batch():
        node.at_batch_end(note)
    assert len(seen) == 3


async def test_a_batch_hands_over_one_run(node: Node) -> None:
    runs: list[int] = []

    class Counter(Worker):
        def receive(self, run: Sequence[Message]) -> None:
            runs.append(len(run))

    node.register([A], Counter)
    with node.batch():
        for _ in range(5):
            node.send(message(A))
    assert runs == [5]


async def test_a_paused_worker_keeps_its_messages(node: Node) -> None:
    worker = Recorder()
    node.register([A], lambda: worker)
    worker.context.pause()
    node.send(message(A, b"1"))
    assert worker.payloads == []
    worker.context.resume()
    assert worker.payloads == [b"1"]


async def test_a_crash_tells_the_sender_restarts_the_worker_and_keeps_the_rest(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """The failing message is answered, those behind it reach the new worker, a neighbour notices nothing."""
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(Recorder())
        return made[-1]

    sender, neighbour = Recorder(), Recorder()
    node.register([A], make)
    node.register([ME], lambda: sender)
    node.register([B], lambda: neighbour)
    with node.batch():
        for payload in (b"1", b"fail", b"2"):
            node.send(message(A, payload))
            node.send(message(B, b"for the neighbour"))
    assert sender.payloads == [b"failed: fail"]
    assert neighbour.payloads == [b"for the neighbour"] * 3
    await trio.sleep(1)
    assert [worker.payloads for worker in made] == [[b"1"], [b"2"]]
    assert made[0].stops == 1
    assert node.statistics().crashes == 1


async def test_restarts_back_off_to_a_bound_and_begin_anew_after_a_quiet_time(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.register([A], Recorder)
    node.register([ME], Recorder)

    async def seconds_until_back() -> float:
        node.send(message(A, b"fail"))
        crashed_s = trio.current_time()
        first = node.find_worker(A)
        while node.find_worker(A) is first:
            await trio.sleep(0.01)
        return trio.current_time() - crashed_s

    delays = [await seconds_until_back() for _ in range(10)]
    assert delays[0] < delays[1] < delays[3] <= delays[-1] <= RESTART_DELAY_S_MAX + 0.1
    await trio.sleep(1000)
    assert await seconds_until_back() < delays[1]


async def test_late_calls_of_an_earlier_life_change_nothing(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    """An answer from storage to a crashed worker must not unpause the worker that came after it."""
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(Recorder())
        return made[-1]

    node.register([A], make)
    old = made[0].context
    node.send(message(A, b"fail"))
    await trio.sleep(1)
    made[1].context.pause()
    old.resume()
    node.send(message(A, b"kept"))
    assert made[1].payloads == []
    made[1].context.resume()
    assert made[1].payloads == [b"kept"]


async def test_an_exception_in_a_guarded_callback_is_a_crash(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.register([A], Recorder)
    first = node.find_worker(A)
    assert first is not None

    def fail() -> None:
        raise RuntimeError("late")

    first.context.guard(fail)()
    assert node.statistics().crashes == 1
    await trio.sleep(1)
    assert node.find_worker(A) is not first


async def test_a_mailbox_is_full_by_count_and_by_bytes_and_wakes_waiting_tasks(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_module, "MESSAGES_MAX", 3)
    monkeypatch.setattr(mailbox_module, "BYTES_MAX", 100)
    worker = Recorder()
    node.register([A], lambda: worker)
    worker.context.pause()
    box = node.deliver(message(A, bytes(100)))
    assert box is not None
    assert box.full
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.wait_room)
        await trio.testing.wait_all_tasks_blocked()
        worker.context.resume()
    assert not box.full
    worker.context.pause()
    for _ in range(3):
        node.deliver(message(A))
    assert box.full
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.wait_room)
        await trio.testing.wait_all_tasks_blocked()
        node.unregister(A)


class Ping(Worker):
    def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


async def test_two_workers_that_call_each_other_for_ever_do_not_stop_the_node(node: Node) -> None:
    """Claim: they give way after twenty rounds, and go on later. Method: count the messages of the first batch."""
    node.register([A], Ping)
    node.register([B], Ping)
    node.send(Message((A,), (B,), b"ball"))
    routed = node.statistics().routed
    assert routed <= 1 + RUNS_PER_BATCH_MAX // ROUND_RUNS_MIN
    for _ in range(4):
        await trio.lowlevel.checkpoint()
    assert node.statistics().routed > routed
    node.unregister(A)


async def test_batches_beside_two_such_workers_leave_no_tasks_behind(node: Node) -> None:
    """Claim: a turn of the event loop runs them once, however many batches came before. Method: count the messages that
    four turns route, after a thousand batches to another worker."""
    node.register([A], Ping)
    node.register([B], Ping)
    node.register([local("quiet")], Worker)
    node.send(Message((A,), (B,), b"ball"))
    for _ in range(1_000):
        node.send(Message((local("quiet"),), (), b"good"))
    before = node.statistics().routed
    for _ in range(4):
        await trio.lowlevel.checkpoint()
    assert 0 < node.statistics().routed - before <= 5 * RUNS_PER_BATCH_MAX // ROUND_RUNS_MIN
    node.unregister(A)


async def test_thousands_of_workers_with_one_message_each_are_called_in_one_batch(node: Node) -> None:
    """Claim: a batch is not cut for its breadth. Method: each worker answers once, before `send_run` returns."""
    answers: list[bytes] = []

    class Collecting(Worker):
        def handle(self, message: Message) -> None:
            answers.append(message.payload)

    node.register([B], Collecting)
    addresses = [node.register([local(f"ping-{number}")], Ping) for number in range(5_000)]
    node.send_run([Message((address,), (B,), b"ball") for address in addresses])
    assert len(answers) == 5_000


class Bedroom:
    """woken: the workers that were started."""

    def __init__(self) -> None:
        self.woken: list[Recorder] = []

    def wake(self, address: Address) -> Callable[[], Recorder]:
        self.woken.append(Recorder())
        return lambda: self.woken[-1]

    def unstarted(self, address: Address) -> Recorder:
        return Recorder()


async def test_a_worker_that_sleeps_starts_at_its_first_message(node: Node) -> None:
    """The messages of one batch reach one worker, in order; nobody else gets the address meanwhile."""
    bedroom = Bedroom()
    woken = bedroom.woken
    node.register_asleep(A, bedroom)
    with pytest.raises(AddressInUse):
        node.register([A], Recorder)
    assert (node.is_asleep(A), node.is_registered(A), node.statistics().workers, woken) == (True, True, 1, [])
    node.send_run([message(A, b"1"), message(A, b"2")])
    assert [worker.payloads for worker in woken] == [[b"1", b"2"]]
    # It sleeps again: the next message reaches a new worker.
    node.put_to_sleep(A, bedroom)
    assert woken[0].stops == 1
    node.send(message(A, b"3"))
    assert [worker.payloads for worker in woken] == [[b"1", b"2"], [b"3"]]
    node.put_to_sleep(A, bedroom)
    assert node.retire(A) == []
    assert not node.is_registered(A)
    assert not node.send(message(A, b"4"))


async def test_a_worker_that_sleeps_is_not_started_for_a_message_that_the_gate_refuses(node: Node) -> None:
    """The gate is asked once about each message, before and after the start; nothing else is asked about the sender."""
    asked: list[bytes] = []

    class Bouncer:
        def admit(self, worker: Worker, run: Sequence[Message]) -> Sequence[Message]:
            asked.extend(each.payload for each in run)
            return [each for each in run if each.payload != b"denied"]

    node.gate = Bouncer()  # type: ignore[assignment]
    bedroom = Bedroom()
    node.register_asleep(A, bedroom)
    assert node.send(message(A, b"denied"))
    node.send_run([message(A, b"denied"), message(A, b"denied")])
    node.refuse(message(A, b"over a limit"), "too much")
    assert (bedroom.woken, node.is_asleep(A)) == ([], True)
    node.send_run([message(A, each) for each in (b"denied", b"1", b"denied", b"2")])
    assert [worker.payloads for worker in bedroom.woken] == [[b"1", b"2"]]
    assert asked == [b"denied"] * 4 + [b"1", b"denied", b"2"]
