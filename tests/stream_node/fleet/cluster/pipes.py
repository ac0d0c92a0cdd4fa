"""Connections in virtual time: what is sent at one end arrives at the other one in order, late, until one end ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from ockam.actors.address import Address
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.transport.forwarding import OpenRequests
from stream_node.fleet.cluster.router import Link

HELD_S = 0.1
"""How often a lane asks whether what it holds back may go on."""


class Receiver(Protocol):
    """What is at an end of a connection. out: the lane by which it sends."""

    out: Lane | None

    def arrived(self, messages: Sequence[Message]) -> None: ...

    def ended(self) -> None: ...


class Lane:
    """One direction of a connection. Messages arrive in the order in which they were put, several at a time.

    is_held: whether nothing arrives at present, because the network does not work.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        rng: random.Random,
        delay_s_max: float,
        receiver: Receiver,
        is_held: Callable[[], bool],
    ) -> None:
        self._nursery = nursery
        self._rng = rng
        self._delay_s_max = delay_s_max
        self._receiver = receiver
        self._is_held = is_held
        self._waiting: list[Message] = []
        self._runs = False
        self._ends = False

    def put(self, messages: Sequence[Message]) -> None:
        if not self._ends:
            self._waiting += messages
            self._start()

    def end(self, *, loses: bool) -> None:
        """Nothing follows. loses: whether some of what is under way is lost, from any place on."""
        if loses:
            del self._waiting[self._rng.randint(0, len(self._waiting)) :]
        if not self._ends:
            self._ends = True
            self._start()

    def _start(self) -> None:
        if not self._runs:
            self._runs = True
            self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self._waiting or self._ends:
            await trio.sleep(round(self._rng.random() * self._delay_s_max, 3))
            while self._is_held():
                await trio.sleep(HELD_S)
            if not self._waiting and self._ends:
                self._receiver.ended()
                return
            count = self._rng.randint(1, max(1, len(self._waiting)))
            chunk, self._waiting = self._waiting[:count], self._waiting[count:]
            self._receiver.arrived(chunk)
        self._runs = False


class MemberEnd(Worker):
    """The end of a connection at a node: what `ockam.transport.connection.Connection` is for TCP.

    link: the node has called another member of its cluster; None: it was called.
    on_step: called after the node has done what followed from an arrival. on_answer: gets each message that leaves.
    """

    def __init__(
        self,
        node: Node,
        address: Address,
        peer: str,
        *,
        link: Link | None = None,
        on_step: Callable[[], None],
        on_answer: Callable[[Message], None],
    ) -> None:
        self.address = address
        self.out: Lane | None = None
        self.reads = True
        self.open = True
        self._node = node
        self._link = link
        self._requests = OpenRequests()
        self._origin = Origin("tcp", peer)
        self._on_step = on_step
        self._on_answer = on_answer

    def receive(self, run: Sequence[Message]) -> None:
        if self._link is not None:
            self._requests.note(run)
        for message in run:
            self._on_answer(message)
        if self.out is not None:
            self.out.put([Message(each.onward_route[1:], each.return_route, each.payload) for each in run])

    def arrived(self, messages: Sequence[Message]) -> None:
        if not self.open or not self.reads:
            return
        if self._link is not None:
            self._requests.answered(messages)
            own = [Message(each.onward_route, each.return_route, each.payload, HERE) for each in messages]
            messages = self._link.receive(own)
        else:
            messages = [
                Message(each.onward_route, (self.address, *each.return_route), each.payload, self._origin)
                for each in messages
            ]
        with self._node.batch():
            self._node.deliver_run(messages)
        self._on_step()

    def ended(self) -> None:
        """The other end has ended, or this one is closed."""
        if self.open:
            self.open = False
            self._node.unregister(self.address)
            if self.out is not None:
                self.out.end(loses=False)
            if self._link is not None:
                self._link.ended(self._requests)
            self._on_step()

    def close(self, *, loses: bool) -> None:
        """Ends the connection. loses: whether the other end gets only a part of what was sent."""
        if self.open and self.out is not None:
            self.out.end(loses=loses)
        self.ended()


class Pipe:
    """A connection. between: the addresses of the process that was called, and of what has called it.

    Both ends get the lane by which they send.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        rng: random.Random,
        called: MemberEnd,
        caller: Receiver,
        between: tuple[str, str],
        is_held: Callable[[], bool],
    ) -> None:
        self.between = between
        delay_s_max = rng.choice((0.0, 0.01, 0.3))
        self.to_caller = Lane(nursery, rng, delay_s_max, caller, is_held)
        self.to_called = Lane(nursery, rng, delay_s_max, called, is_held)
        called.out = self.to_caller
        caller.out = self.to_called

    def cut(self) -> None:
        """Ends the connection at once, at both ends."""
        for lane in (self.to_caller, self.to_called):
            lane.end(loses=True)
