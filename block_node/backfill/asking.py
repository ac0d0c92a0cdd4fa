"""Asks a service of another node one question, and waits for the answer. It reads no blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ockam.actors.address import TCP, Route
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import NOTHING, Demand
from ockam.protocol import ERROR, ProtocolError

T = TypeVar("T")


class Asker(Worker, Generic[T]):
    """A worker that sends one request to the source node. `on_done` is called once: with the answer that `read`
    decodes, or with None and the reason why there is no answer."""

    def __init__(
        self,
        node: Node,
        route: Route,
        payload: bytes,
        read: Callable[[bytes], T],
        on_done: Callable[[T | None, str], None],
        patience_s: float,
    ) -> None:
        self._node = node
        self._route = route
        self._payload = payload
        self._read = read
        self._on_done: Callable[[T | None, str], None] | None = on_done
        self._patience_s = patience_s

    def started(self) -> None:
        service = self._route[-1].value.decode()
        self.context.call_later(0, self._send)
        self.context.call_later(self._patience_s, lambda: self._done(None, f"unreachable: no answer to {service}"))

    def demand(self, message: Message) -> Demand | None:
        return demand_of_answer(message, self._route)

    def handle(self, message: Message) -> None:
        try:
            if ERROR.is_in(message.payload):
                self._done(None, f"refused: {ERROR.decode_response(message.payload).reason}")
                return
            self._done(self._read(message.payload), "")
        except ProtocolError as error:
            self._done(None, str(error))

    def _send(self) -> None:
        if not self.context.send(Message(self._route, (self.context.address,), self._payload)):
            self._done(None, "unreachable: there is no way to it")

    def _done(self, answer: T | None, reason: str) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            self._node.unregister(self.context.address)
            on_done(answer, reason)


def demand_of_answer(message: Message, route: Route) -> Demand | None:
    """Returns NOTHING (the sender needs no right) for a message that can be an answer, and None for any other. An
    answer comes through the connection to the asked node, or from this node, for example if it has no route there."""
    asked = route[0].value.decode("utf-8", "replace") if route[0].type == TCP else None
    return NOTHING if message.origin.kind == "local" or message.origin.peer == asked else None
