"""A node of your own, which needs no stream node: a team of two workers, and a second node that asks them over TCP.

python examples/echo_node.py
"""

import logging

import structlog
import trio

from ockam import AskRefused, AsyncWorker, Message, Node, Restarts, TcpTransport, Worker, local

ECHO, SHOUT, TEAM = local("echo"), local("shout"), local("team")


class Echo(Worker):
    """Answers at once, by a callback."""

    def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


class Shout(AsyncWorker):
    """Asks the echo, and waits for its answer before it takes the next message."""

    async def handle(self, message: Message) -> None:
        answer = await self.ask((ECHO,), message.payload, timeout_s=5.0)
        self.reply(message, answer.payload.decode("ascii").upper().encode())


class Team(Worker):
    """Starts the two other workers, restarts each after a crash, and crashes if one of them crashes too often."""

    def started(self) -> None:
        self.start_child([ECHO], Echo)
        self.start_child([SHOUT], Shout, Restarts("on_crash", most=3, within_s=5.0))


async def main() -> None:
    # Without this, the crash below is logged with its traceback.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    async with trio.open_nursery() as nursery:
        node, caller = Node(nursery), Node(nursery)
        node.register([TEAM], Team)
        (address,) = await TcpTransport(node, nursery).listen("127.0.0.1", 0)
        there = await TcpTransport(caller, nursery).connect(address)
        for to, text in ((ECHO, "hello"), (SHOUT, "hello"), (SHOUT, "größe"), (SHOUT, "still here")):
            try:
                print(f"{to}: {(await caller.ask((there, to), text.encode())).payload.decode()}")
            except AskRefused as error:
                print(f"{to}: {error.reason}")
        nursery.cancel_scope.cancel()


trio.run(main)
