"""Workers of an operator, as the tests put them on a node by the name of this module."""

from __future__ import annotations

import os

import trio

from ockam import AsyncWorker, Message, Worker, local
from ockam.protocol import error_payload
from stream_client import ClientError
from stream_node import HostNode


class Echo(Worker):
    """Answers each message with its payload, behind `greeting`."""

    node: HostNode

    def __init__(self, greeting: str = "", times: int = 1) -> None:
        self._greeting = greeting.encode() * times

    def handle(self, message: Message) -> None:
        self.reply(message, self._greeting + message.payload)


class Writers(Echo):
    """An echo for those who may write the stream `orders`."""

    right = "write:orders"


class Process(Worker):
    """Answers with the id of its process."""

    def handle(self, message: Message) -> None:
        self.reply(message, b"%d" % os.getpid())


class Pusher(AsyncWorker):
    """Pushes each message to a stream, and answers with its index. as_sender: it acts for the sender."""

    node: HostNode

    def __init__(self, as_sender: bool = False, stream: str = "orders") -> None:
        self._as_sender = as_sender
        self._stream = stream

    async def handle(self, message: Message) -> None:
        try:
            async with self.node.client(message if self._as_sender else None) as client:
                index = await (await client.create(self._stream)).push(message.payload)
        except ClientError as error:
            self.reply(message, error_payload(str(error)))
        else:
            self.reply(message, b"%d at %d" % (index, self.node.now_us()))


class Parent(AsyncWorker):
    """Has a child `child`, and asks it what it is asked; fails on the message `fail`."""

    def started(self) -> None:
        self.start_child([local("child")], Echo)

    async def handle(self, message: Message) -> None:
        if message.payload == b"fail":
            raise RuntimeError("as it was told")
        self.reply(message, (await self.ask((local("child"),), message.payload)).payload)


class Passing(Worker):
    """Passes each message on to the next hop of its route, with the origin that it has."""

    def handle(self, message: Message) -> None:
        route = message.onward_route[1:], (message.onward_route[0], *message.return_route)
        self.context.send(Message(*route, message.payload, message.origin))


class Own(Worker):
    """Sends what it gets to the next hop of its route in its own name."""

    def handle(self, message: Message) -> None:
        route = message.onward_route[1:], message.return_route
        self.context.send(Message(*route, message.payload))


class Hanging(AsyncWorker):
    async def handle(self, message: Message) -> None:
        await trio.sleep_forever()


class Deaf(AsyncWorker):
    async def run(self) -> None:
        await trio.sleep_forever()


class Crashing(AsyncWorker):
    async def handle(self, message: Message) -> None:
        raise RuntimeError("it always fails")


class Stopping(AsyncWorker):
    """Stops in the middle of each message, with others behind it."""

    async def handle(self, message: Message) -> None:
        self.stop("in the middle")
        await trio.sleep_forever()


class Circling(AsyncWorker):
    """Has two children that answer each other without end."""

    def started(self) -> None:
        one, other = (self.start_child([local(name)], Echo) for name in ("circling-1", "circling-2"))
        self.context.send(Message((one,), (other,), b"ball"))


class Flooding(AsyncWorker):
    """Pushes to the stream `flood` without end, and does not wait for the confirms of one before it pushes others."""

    node: HostNode

    async def run(self) -> None:
        async with self.node.client() as client, (await client.create("flood")).publisher() as publisher:
            while True:
                await publisher.push(bytes(1_000))


class Stubborn(AsyncWorker):
    """Does not end when it is cancelled."""

    async def run(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()


class Finishing(AsyncWorker):
    """Does something more when it is cancelled."""

    async def run(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.01)


class WrongRight(Echo):
    right = "fly"


class Failing(Worker):
    def __init__(self) -> None:
        raise RuntimeError("no such table")


class NoWorker:
    pass
