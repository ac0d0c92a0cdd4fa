"""Goal: workers that await take, ask, crash and stop as promised, and harm nobody else. Method: small workers, trio's
virtual clock; a flood comes over real TCP."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from ockam import (
    AskRefused,
    AskTimedOut,
    AsyncWorker,
    CallbackExpected,
    InvalidMessage,
    Message,
    Node,
    Restarts,
    TcpTransport,
    Worker,
    local,
)
from ockam.actors import mailbox as mailbox_module
from ockam.protocol import ERROR
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import serve
from tests.support.compiled import IS_COMPILED

A, B, ME = local("a"), local("b"), local("me")


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        yield Node(nursery)
        nursery.cancel_scope.cancel()


class Upper(AsyncWorker):
    """Answers in capital letters after as many seconds as the message has bytes; fails or hangs if it is told to."""

    async def handle(self, message: Message) -> None:
        if message.payload == b"fail":
            raise RuntimeError("told to fail")
        if message.payload == b"hang":
            await trio.sleep_forever()
        await trio.sleep(len(message.payload))
        self.reply(message, message.payload.upper())


class Collector(Worker):
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def handle(self, message: Message) -> None:
        self.payloads.append(message.payload)

    @property
    def refusals(self) -> list[str]:
        return [ERROR.decode_response(each).reason for each in self.payloads if ERROR.is_in(each)]


def to_a(payload: bytes) -> Message:
    return Message((A,), (ME,), payload)


async def test_requests_at_once_get_each_its_own_answer_in_whatever_order(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """The answers come in the opposite order of the requests, through a worker that asks other workers itself."""
    answers: list[bytes] = []

    class Relay(AsyncWorker):
        async def handle(self, message: Message) -> None:
            to = node.register([local(message.payload)], Upper)
            self.reply(message, (await self.ask((to,), message.payload)).payload)

    async def ask(payload: bytes, relay: bytes) -> None:
        node.register([local(relay)], Relay)
        answers.append((await node.ask((local(relay),), payload)).payload)

    async with trio.open_nursery() as nursery:
        for number in range(5, 0, -1):
            nursery.start_soon(ask, b"x" * number, b"relay%d" % number)
    assert answers == [b"X" * number for number in range(1, 6)]


async def test_a_request_has_one_end_by_time_by_an_error_or_because_nobody_takes_it(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.register([A], Upper)
    node.register([B], Worker)
    began_s = trio.current_time()
    with pytest.raises(AskTimedOut, match="a"):
        await node.ask((A,), b"hang", 3.0)
    assert 3.0 <= trio.current_time() - began_s < 3.1
    with pytest.raises(AskRefused, match="nobody here takes messages"):
        await node.ask((B,), b"?")
    with pytest.raises(AskRefused, match="no worker or transport"):
        await node.ask((local("nobody"),), b"?")
    with pytest.raises(AskRefused, match="no worker or transport"):
        await node.ask((), b"?")


async def test_a_late_answer_and_a_second_one_are_taken_by_nobody(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """A cancelled request leaves nothing behind: its late answer counts as a message to an unknown address, and the
    answer's payload is not kept."""

    class Twice(AsyncWorker):
        async def handle(self, message: Message) -> None:
            await trio.sleep(1)
            self.reply(message, b"first")
            self.reply(message, b"second")

    node.register([A], Twice)
    assert (await node.ask((A,), b"?")).payload == b"first"
    assert node.statistics().dropped == {"unknown_address": 1}
    with trio.move_on_after(0.5):
        await node.ask((A,), b"?")
    await trio.sleep(2)
    assert node.statistics().dropped == {"unknown_address": 3}


async def test_a_request_to_a_worker_that_is_stopped_ends_at_once(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    class Silent(Worker):
        def handle(self, message: Message) -> None:
            pass

    node.register([A], Silent)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            with pytest.raises(AskRefused, match="has ended"):
                await node.ask((A,), b"?", 60.0)

        await trio.sleep(1)
        node.unregister(A)
        began_s = trio.current_time()
    assert trio.current_time() - began_s < 1.0


async def test_answers_without_a_wait_let_other_tasks_run(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    class Echo(Worker):
        def handle(self, message: Message) -> None:
            self.reply(message, message.payload)

    node.register([A], Echo)
    with trio.move_on_after(1) as scope:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def other() -> None:
                await trio.lowlevel.checkpoint()
                scope.cancel()

            while True:
                await node.ask((A,), b"?")


async def test_a_crash_tells_the_sender_and_the_next_worker_gets_the_rest_at_the_same_address(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    made: list[Upper] = []

    def make() -> Upper:
        made.append(Upper())
        return made[-1]

    sender = Collector()
    node.register([ME], lambda: sender)
    node.register([A], make)
    with node.batch():
        for payload in (b"x", b"fail", b"y"):
            node.send(to_a(payload))
    await trio.sleep(10)
    assert sender.payloads[0::2] == [b"X", b"Y"]
    assert [each.partition("failed: ")[2] for each in sender.refusals] == ["the worker failed; it is restarted"]
    assert (len(made), node.statistics().crashes, node.statistics().restarts) == (2, 1, 1)


async def test_a_stop_cancels_the_task_and_refuses_all_messages(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    sender = Collector()
    node.register([ME], lambda: sender)
    node.register([A], Upper)
    for payload in (b"hang", b"x", b"y"):
        node.send(to_a(payload))
    await trio.sleep(1)
    node.unregister(A)
    await trio.sleep(1)
    assert len(sender.refusals) == 3
    assert all(each.endswith("the worker has stopped") for each in sender.refusals)
    assert not node.send(to_a(b"x"))


async def test_a_worker_is_stopped_before_its_task_has_begun(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    begun: list[str] = []

    class Begins(AsyncWorker):
        async def run(self) -> None:
            begun.append("begun")

    node.register([A], Begins)
    node.unregister(A)
    await trio.sleep(1)
    assert not begun


async def test_a_run_of_its_own_takes_messages_and_ends_the_worker_by_returning(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    ends: list[str] = []

    class Adder(AsyncWorker):
        async def run(self) -> None:
            numbers = [await self.next_message() for _ in range(2)]
            self.reply(numbers[-1], b"%d" % sum(int(each.payload) for each in numbers))

        def stopped(self) -> None:
            ends.append("stopped")

    sender = Collector()
    node.register([ME], lambda: sender)
    node.register([A], Adder, restarts=Restarts("on_crash"))
    for payload in (b"1", b"2", b"3"):
        node.send(to_a(payload))
    await trio.sleep(1)
    assert sender.payloads[0] == b"3"
    assert len(sender.refusals) == 1
    assert ends == ["stopped"]
    assert not node.is_registered(A)


async def test_only_one_task_of_a_worker_waits_for_messages(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    class Two(AsyncWorker):
        async def run(self) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.next_message)
                nursery.start_soon(self.next_message)

    node.register([A], Two, restarts=Restarts("never"))
    await trio.sleep(1)
    assert (node.statistics().crashes, node.is_registered(A)) == (1, False)


@pytest.mark.parametrize("name", ["handle", "receive", "started", "stopped"])
async def test_a_coroutine_function_for_a_callback_is_refused(
    node: Node, autojump_clock: trio.testing.MockClock, name: str
) -> None:
    async def awaits(self: Worker, *_: object) -> None: ...

    kind = type("Wrong", (Worker,), {name: awaits})
    with pytest.raises(CallbackExpected, match=rf"Wrong\.{name} is an `async def`.*AsyncWorker"):
        node.register([A], kind)
    assert not node.is_registered(A)


async def test_a_callback_for_a_coroutine_function_is_refused(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    kind = type("Wrong", (AsyncWorker,), {"handle": lambda self, message: None})
    with pytest.raises(CallbackExpected, match=r"Wrong\.handle must be an `async def`"):
        node.register([A], kind)


async def test_a_worker_that_hangs_refuses_what_its_mailbox_cannot_hold(
    node: Node, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 messages, one hangs, 64 are taken with it, 100 wait, and the senders of the others are told at once."""
    monkeypatch.setattr(mailbox_module, "MESSAGES_MAX", 100)
    sender = Collector()
    node.register([ME], lambda: sender)
    node.register([A], Upper)
    node.register([B], Upper)
    taken = [node.send(to_a(b"hang"))]
    await trio.sleep(1)
    taken += [node.send(to_a(b"hang")) for _ in range(199)]
    assert (taken.count(True), len(sender.refusals)) == (101, 99)
    assert sender.refusals[0].endswith("the mailbox is full; send it again later")
    assert [state.waiting for state in node.tree() if state.address == A] == [100]
    assert (await node.ask((B,), b"x")).payload == b"X"
    assert node.statistics().dropped == {"mailbox_full": 99}


async def test_two_full_mailboxes_do_not_refuse_each_other_without_end(
    node: Node, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_module, "MESSAGES_MAX", 1)
    node.register([A], Upper)
    node.register([B], Upper)
    for to, back in ((A, B), (B, A)):
        for _ in range(4):
            node.send(Message((to,), (back,), b"hang"))
            await trio.sleep(0.01)
    assert node.statistics().dropped["mailbox_full"] < 20


async def test_errors_of_workers_that_always_fail_are_not_answered_by_errors(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    class Fails(AsyncWorker):
        async def handle(self, message: Message) -> None:
            raise RuntimeError("always")

    node.register([A], Fails)
    node.register([B], Fails)
    node.send(Message((A,), (B,), b"x"))
    await trio.sleep(100)
    assert node.statistics().crashes == 2


async def test_a_peer_that_floods_a_worker_that_never_reads_is_served_by_its_neighbour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both workers are reached over one connection, which is read on and on though one mailbox is full."""
    monkeypatch.setattr(mailbox_module, "MESSAGES_MAX", 10)

    class Deaf(AsyncWorker):
        async def run(self) -> None:
            await trio.sleep_forever()

    async with serve() as server:
        server.node.register([A], Deaf)
        peer = await server.peer(HEAD)
        for _ in range(200):
            await peer.send((A,), b"flood")
        await peer.send((local("echo"),), b"still here")
        with trio.fail_after(60):
            while (answer := (await peer.receive()).payload) != b"still here":
                assert ERROR.is_in(answer)
        [deaf] = [state for state in server.node.tree() if state.address == A]
        assert deaf.waiting <= 10 + 64


async def test_a_request_over_tcp_is_answered_and_a_lost_connection_ends_it() -> None:
    async with serve() as server, trio.open_nursery() as nursery:
        other = Node(nursery)
        there = await TcpTransport(other, nursery).connect(server.address)
        assert (await other.ask((there, local("echo")), b"hello")).payload == b"hello"
        server.node.register([A], Upper)

        async def lose() -> None:
            await trio.sleep(0.1)
            other.unregister(there)

        nursery.start_soon(lose)
        with pytest.raises(AskRefused, match="has ended"):
            await other.ask((there, A), b"hang", 60.0)
        nursery.cancel_scope.cancel()


async def test_a_stopped_worker_is_not_kept(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    """Neither the node nor a timer or a task holds a worker, or what waited for it, after its end."""
    worker = weakref.ref(Upper())

    def make() -> Upper:
        nonlocal worker
        made = Upper()
        worker = weakref.ref(made)
        return made

    node.register([A], make)
    node.send(to_a(b"hang"))
    await trio.sleep(1)
    assert worker() is not None
    node.unregister(A)
    await trio.sleep(1)
    gc.collect()
    assert worker() is None


class Asked(Worker):
    """Never answers by itself: its `asked` are answered by the test."""

    asked: list[Message]

    def started(self) -> None:
        self.asked = []

    def handle(self, message: Message) -> None:
        self.asked.append(message)


async def test_an_answer_that_comes_with_the_cancellation_of_its_request_is_taken_by_nobody(node: Node) -> None:
    """The cancelled task has not run yet when the answer comes: neither it nor the sender of the answer may fail."""
    node.register([A], Asked)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.ask, (A,), b"?")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            asked = node.find_worker(A)
            assert isinstance(asked, Asked)
            node.send(Message(asked.asked[0].return_route, (A,), b"late"))
    assert scope.cancelled_caught


async def test_a_message_that_comes_as_the_time_of_a_wait_ends_is_handled_once(node: Node) -> None:
    taken: list[bytes] = []
    scope = trio.CancelScope()

    class Patient(AsyncWorker):
        async def run(self) -> None:
            with scope:
                await self.next_message()
            while True:
                taken.append((await self.next_message()).payload)

    node.register([A], Patient)
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
    node.send(to_a(b"1"))
    node.send(to_a(b"2"))
    await trio.testing.wait_all_tasks_blocked()
    assert (taken, node.statistics().crashes) == ([b"1", b"2"], 0)


async def test_a_worker_that_stops_itself_as_it_starts_never_runs(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    ran: list[str] = []

    class Unwilling(AsyncWorker):
        def started(self) -> None:
            self.stop("nothing to do")

        async def run(self) -> None:
            ran.append("run")

    node.register([A], Unwilling, restarts=Restarts("never"))
    await trio.sleep(60)
    assert (ran, node.is_registered(A)) == ([], False)


async def test_a_worker_that_another_node_goes_on_with_hands_over_all_that_it_has_not_begun(node: Node) -> None:
    node.register([A], Upper)
    await trio.testing.wait_all_tasks_blocked()
    with node.batch():
        for payload in (b"hang", *[b"%d" % number for number in range(100)]):
            node.send(to_a(payload))
    await trio.testing.wait_all_tasks_blocked()
    left = node.retire(A)
    assert [each.payload for each in left] == [b"%d" % number for number in range(100)]


REFUSED = (InvalidMessage, TypeError) if IS_COMPILED else InvalidMessage
"""A compiled node checks the types of its arguments before it looks at them."""
WRONG_ROUTES: list[Any] = ["a", ("a",), (A, "b"), A, b"a"]


@pytest.mark.parametrize("route", WRONG_ROUTES, ids=repr)
async def test_a_route_without_addresses_is_told_to_its_sender(node: Node, route: Any) -> None:
    """Nothing was sent to the worker that stands in one of the routes."""

    class Sends(AsyncWorker):
        async def handle(self, message: Message) -> None:
            self.send(route, b"x")

    node.register([A], Upper)
    node.register([B], Sends)
    with pytest.raises(REFUSED):
        await node.ask(route, b"x")
    with pytest.raises(AskRefused, match="the worker failed"):
        await node.ask((B,), b"x")
    for message in (Message(route, (ME,), b"x"), Message((A,), route, b"x")):
        with pytest.raises(
            InvalidMessage, match=r"a route is a tuple of addresses, such as \(local\(NAME\),\), and not"
        ):
            node.send(message)
    assert [state.waiting for state in node.tree() if state.address == A] == [0]


async def test_a_text_for_a_payload_is_told_to_its_sender(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    """The sender of a text gets the error; whoever asks a worker that answers with a text is told that it failed."""
    seen: list[Message] = []

    class Answers(AsyncWorker):
        async def handle(self, message: Message) -> None:
            seen.append(message)
            self.reply(message, "text")  # type: ignore[arg-type]

    class Sends(AsyncWorker):
        async def handle(self, message: Message) -> None:
            self.send((A,), "text")  # type: ignore[arg-type]

    class Asks(AsyncWorker):
        async def handle(self, message: Message) -> None:
            await self.ask((A,), "text")  # type: ignore[arg-type]

    node.register([A], Answers)
    with pytest.raises(REFUSED):
        await node.ask((A,), "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match=r"a payload is bytes, and not 'text'; encode it, such as text\.encode"):
        node.send(Message((A,), (ME,), "text"))  # type: ignore[arg-type]
    for kind in (Sends, Asks):
        node.register([B], kind)
        with pytest.raises(AskRefused, match="the worker failed"):
            await node.ask((B,), b"x")
        node.unregister(B)
    assert seen == []
    with pytest.raises(AskRefused, match="the worker failed"):
        await node.ask((A,), b"bytes")
    assert (len(seen), node.statistics().crashes) == (1, 3)


async def test_a_failed_worker_that_answers_with_a_text_harms_nobody(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """A text that came in a list of messages, which is not looked at: the others of the list get their answers. A
    compiled node raises an error at the text, and sends nothing behind it."""

    class Fails(AsyncWorker):
        async def handle(self, message: Message) -> None:
            raise RuntimeError("told to fail")

        def failure_payload(self, message: Message, reason: str) -> bytes | None:
            return message.payload

    sender = Collector()
    node.register([ME], lambda: sender)
    node.register([A], Fails)
    messages = [Message((A,), (ME,), payload) for payload in (b"1", "2", b"3")]  # type: ignore[arg-type]
    if IS_COMPILED:
        with pytest.raises(TypeError):
            node.send_run(messages)
        del messages[:2]
    node.send_run(messages)
    await trio.sleep(10)
    assert sender.payloads == [b"1", b"3"]


async def test_a_request_during_the_pause_of_a_restart_waits_for_the_next_worker(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """Method: crash after crash, a request during each pause of 0.1, 0.2, ... 10 s with 5 s to wait; the times are
    those of the virtual clock. The page of own workers says the same."""
    node.register([A], Upper)
    pauses_s, ends = [], []
    for _ in range(9):
        with pytest.raises(AskRefused, match="it is restarted"):
            await node.ask((A,), b"fail")
        began_s = trio.current_time()
        try:
            ends.append((await node.ask((A,), b"", 5.0)).payload)
        except AskTimedOut:
            ends.append(b"timed out")
            await node.ask((A,), b"", 60.0)
        pauses_s.append(round(trio.current_time() - began_s, 1))
    assert pauses_s == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert ends == [b""] * 6 + [b"timed out"] * 3
