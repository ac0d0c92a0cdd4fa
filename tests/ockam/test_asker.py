"""Goal: a request has exactly one end: its answers, or why there are none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from ockam.actors.address import Address, local, tcp
from ockam.actors.asker import Answers, Asker, Unanswered
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import NEVER, Worker
from ockam.identity.rules.rights import NOTHING

SERVICE, HERE = local("service"), local("asker")


class Echo(Worker):
    def handle(self, message: Message) -> None:
        self.reply(message, message.payload.upper())


class Silent(Worker):
    def handle(self, message: Message) -> None:
        pass


@asynccontextmanager
async def asker_beside(service: type[Worker], asked: Address | None = None) -> AsyncIterator[tuple[Node, Asker]]:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        asker = Asker(node, asked)
        node.register([SERVICE], service)
        node.register([HERE], lambda: asker, restarts=NEVER)
        yield node, asker
        nursery.cancel_scope.cancel()


async def test_an_asker_gets_the_answer_to_each_of_its_requests(autojump_clock: trio.testing.MockClock) -> None:
    async with asker_beside(Echo) as (_, asker):
        assert [await asker.answer((SERVICE,), each, 1.0) for each in (b"a", b"b")] == [b"A", b"B"]


async def test_a_silent_worker_and_a_missing_one_are_two_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with asker_beside(Silent) as (_, asker):
        began_s = trio.current_time()
        assert await asker.answer((SERVICE,), b"a", 3.0) is Unanswered.SILENT
        assert trio.current_time() - began_s == 3.0
        assert await asker.answer((local("nobody"),), b"a", 3.0) is Unanswered.NO_ROUTE


async def test_an_asker_notices_that_the_way_of_its_last_answer_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    async with asker_beside(Echo) as (node, asker):
        assert await asker.answer((SERVICE,), b"a", 60.0) == b"A"
        node.register([local("still")], Silent)
        node.unregister(SERVICE)
        began_s = trio.current_time()
        assert await asker.answer((local("still"),), b"b", 60.0) is Unanswered.CLOSED
        assert trio.current_time() - began_s < 1.0


async def test_several_answers_are_one_end_which_comes_once(autojump_clock: trio.testing.MockClock) -> None:
    ends: list[Answers] = []
    async with asker_beside(Echo) as (node, asker):
        asker.expect(2, ends.append, 5.0)
        for payload in (b"a", b"b", b"c"):
            node.send(Message((SERVICE,), (HERE,), payload))
        await trio.sleep(10)
        assert [isinstance(each, list) and each[:2] for each in ends] == [[b"A", b"B"]]


async def test_an_answer_is_kept_though_its_sender_goes_before_the_others_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each answer of several comes from another member, and a member that has answered may end."""
    ends: list[Answers] = []
    async with asker_beside(Echo) as (node, asker):
        asker.expect(2, ends.append, 5.0)
        node.send(Message((SERVICE,), (HERE,), b"a"))
        await trio.sleep(0.1)
        node.unregister(SERVICE)
        await trio.sleep(1)
        node.send(Message((HERE,), (), b"late"))
        await trio.sleep(10)
        assert ends == [[b"A", b"late"]]


async def test_only_the_asked_node_and_this_one_may_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with asker_beside(Echo, tcp("127.0.0.1:4000")) as (_, asker):

        def demand(origin: Origin) -> object:
            return asker.demand(Message((HERE,), (), b"", origin))

        assert demand(Origin("local", "")) is NOTHING
        assert demand(Origin("tcp", "127.0.0.1:4000")) is NOTHING
        assert demand(Origin("tcp", "127.0.0.1:4001")) is None
