"""Goal: what a worker that awaits has taken is counted for its sender until it is handled, and decided about once.

Method: senders with a limit of bytes in flight, a gate that notes what it was asked, and trio's virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
import trio.testing

from ockam import AsyncWorker, Message, Node, Restarts, Worker, local
from ockam.actors.message import Origin
from ockam.identity.identity import Identity
from ockam.quotas.limits import IdentityLimits
from ockam.quotas.usage import Usage

A, ME = local("a"), local("me")


class Slow(AsyncWorker):
    """Handles a message in a second; fails on the payload `fail`."""

    async def handle(self, message: Message) -> None:
        await trio.sleep(1)
        if message.payload == b"fail":
            raise RuntimeError("told to fail")


class Notes:
    """A gate that refuses the payload `denied`."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def admit(self, worker: Worker, run: Sequence[Message]) -> Sequence[Message]:
        self.asked += [message.payload for message in run]
        return [message for message in run if message.payload != b"denied"]


@pytest.fixture
async def node(autojump_clock: trio.testing.MockClock) -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.gate = Notes()  # type: ignore[assignment]
        yield node
        nursery.cancel_scope.cancel()


def sender(name: str) -> Origin:
    usage = Usage(name, IdentityLimits(in_flight_bytes_max=1_000_000))
    return Origin("tcp", identity=Identity("token", name), usage=usage)


def send(node: Node, origin: Origin, *payloads: bytes) -> None:
    node.send_run([Message((A,), (ME,), payload, origin) for payload in payloads])


@pytest.mark.slow
async def test_what_a_worker_has_taken_is_held_for_its_sender_until_it_is_handled(node: Node) -> None:
    """Two senders, whose messages are handled alternately: each one's bytes go with its own message."""
    node.register([A], Slow)
    await trio.testing.wait_all_tasks_blocked()
    alice, bob = sender("alice"), sender("bob")
    for number in range(1, 4):
        send(node, alice, b"x" * number)
        send(node, bob, b"y" * 10 * number)
    held = []
    for _ in range(7):
        await trio.testing.wait_all_tasks_blocked()
        held.append((alice.usage.held_bytes, bob.usage.held_bytes))
        await trio.sleep(1)
    assert held == [(6, 60), (5, 60), (5, 50), (3, 50), (3, 30), (0, 30), (0, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["crash", "stop", "retire"])
async def test_an_end_of_the_worker_leaves_nothing_held_that_does_not_wait(node: Node, ends: str) -> None:
    """The first message fails; the others go back and are held, until they are handled or refused."""
    node.register([A], Slow, restarts=Restarts("always"))
    await trio.testing.wait_all_tasks_blocked()
    alice = sender("alice")
    send(node, alice, b"fail", b"denied", b"12", b"345")
    send(node, alice, b"6789")
    await trio.sleep(0.5)
    assert alice.usage.held_bytes == len(b"faildenied123456789")
    if ends == "crash":
        await trio.sleep(0.55)
        # It has failed, and its successor has not begun.
        assert [state.waiting for state in node.tree()] == [3]
        assert alice.usage.held_bytes >= len(b"123456789")
        await trio.sleep(5)
        assert node.statistics().restarts == 1
    elif ends == "stop":
        node.unregister(A)
    else:
        assert [message.payload for message in node.retire(A)] == [b"12", b"345", b"6789"]
    await trio.sleep(1)
    assert alice.usage.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("awaits", [True, False])
async def test_a_message_that_was_put_back_does_not_pass_the_gate_again(node: Node, awaits: bool) -> None:
    handled: list[bytes] = []

    class Quick(Worker):
        def handle(self, message: Message) -> None:
            if message.payload == b"fail":
                raise RuntimeError("told to fail")
            handled.append(message.payload)

    class Noting(Slow):
        async def handle(self, message: Message) -> None:
            await super().handle(message)
            handled.append(message.payload)

    node.register([A], Noting if awaits else Quick)
    await trio.testing.wait_all_tasks_blocked()
    alice = sender("alice")
    send(node, alice, b"fail", b"denied", b"1", b"2")
    await trio.sleep(1.05)
    send(node, alice, b"denied", b"3")
    await trio.sleep(10)
    assert isinstance(node.gate, Notes)
    assert node.gate.asked == [b"fail", b"denied", b"1", b"2", b"denied", b"3"]
    assert handled == [b"1", b"2", b"3"]
    assert alice.usage.held_bytes == 0


async def test_new_rules_decide_about_what_was_put_back(node: Node) -> None:
    """Between the first decision and the restart, the rules change."""
    node.register([A], Slow)
    await trio.testing.wait_all_tasks_blocked()
    send(node, sender("alice"), b"fail", b"1")
    await trio.sleep(0.5)
    node.note_new_rules()
    await trio.sleep(5)
    assert isinstance(node.gate, Notes)
    assert node.gate.asked == [b"fail", b"1", b"1"]
