"""Asker: asks another node, and waits for its answers.
The messages go through the node's own connections, with its own certificate and token
(`ockam.transport.tcp.TcpTransport`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from ockam.actors.address import LOCAL, Address, local, tcp
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.errors import InvalidAddress
from ockam.identity.rules.rights import NOTHING, Demand
from ockam.protocol import ERROR, FAILURE, REFUSAL, Protocol, ProtocolError
from ockam.transport.forwarding import UNREACHABLE, is_destination_unreachable
from stream_node.fleet.mirror.errors import SourceLost, SourceRefused
from stream_service.mirroring import ROLE, BeMirror, BePrimary, RoleRequest, RoleResponse
from stream_service.names import stream_address

Q = TypeVar("Q")
A = TypeVar("A")

PATIENCE_S = 10.0
"""The longest wait for an answer, beyond the time for which the other node may delay it."""
LOOK_S = 0.2


class Asker(Worker):
    """A worker with an address of its own, to which the other node answers.
    Invariant: at most one request is unanswered. After a request without an answer the object must not be used again,
    so that no late answer is taken for another one."""

    def __init__(self, node: Node, destination: str) -> None:
        self._node = node
        self._destination = destination
        self._first = tcp(destination)
        self._way: Address | None = None
        self._answer: bytes | None = None
        self._came = trio.Event()

    def demand(self, message: Message) -> Demand | None:
        return NOTHING if message.origin.kind == "local" or message.origin.peer == self._destination else None

    def handle(self, message: Message) -> None:
        if message.return_route:
            self._way = message.return_route[0]
        self._answer = message.payload
        self._came.set()

    async def ask_raw(self, to: Address, protocol: Protocol[Q, A], request: Q, wait_s: float = 0.0) -> bytes:
        """Sends a request to a worker of the other node, and returns the payload of the answer.
        wait_s: how long the other node may delay the answer. Raises SourceLost, SourceRefused."""
        self._came, self._answer = trio.Event(), None
        payload = protocol.encode_request(request)
        if not self._node.send(Message((self._first, to), (self.context.address,), payload)):
            raise SourceLost(f"there is no way to {self._destination}")
        # A lost connection is noticed long before the time is over.
        deadline_s = trio.current_time() + wait_s + PATIENCE_S
        while self._answer is None:
            with trio.move_on_after(LOOK_S):
                await self._came.wait()
            is_gone = self._way is not None and self._way.type == LOCAL and not self._node.is_registered(self._way)
            if self._answer is None and (is_gone or trio.current_time() > deadline_s):
                raise SourceLost(f"{self._destination} {'closed the connection' if is_gone else 'does not answer'}")
        answer = self._answer
        # The other node's errors keep their words, so that an operator reads what it said.
        if ERROR.is_in(answer):
            raise _refusal(answer, self._destination)
        if not protocol.is_in(answer):
            raise SourceRefused(f"{self._destination} answers {protocol.name} with another protocol")
        return answer

    async def ask(self, to: Address, protocol: Protocol[Q, A], request: Q, wait_s: float = 0.0) -> A:
        answer = await self.ask_raw(to, protocol, request, wait_s)
        try:
            return protocol.decode_response(answer)
        except ProtocolError as error:
            raise SourceRefused(f"{self._destination}: {error}") from error


@contextmanager
def asking(node: Node, destination: str, new_id: Callable[[], str]) -> Iterator[Asker]:
    """Gives an Asker of the node at `destination`, a `host:port`. Raises SourceLost if that is no address of a node."""
    try:
        asker = Asker(node, destination)
    except InvalidAddress as error:
        raise SourceLost(f"no node can be reached there: {error}") from error
    address = node.register([local("MI_" + new_id())], lambda: asker, restarts=False)
    try:
        yield asker
    finally:
        node.unregister(address)


async def change_role(
    asker: Asker, name: str, partition: int, change: BeMirror | BePrimary | None, *, force: bool
) -> RoleResponse:
    """Asks another node to change the role of a stream-partition; None: to report it. Raises MirrorError."""
    return await asker.ask(stream_address(name, partition), ROLE, RoleRequest(0, change, force))


def _refusal(payload: bytes, destination: str) -> SourceLost | SourceRefused:
    try:
        reason = ERROR.decode_response(payload).reason
    except ProtocolError as error:
        return SourceRefused(f"{destination} answers with an error that cannot be read: {error}")
    said = reason.removeprefix(REFUSAL).removeprefix(FAILURE)
    if is_destination_unreachable(reason):
        return SourceLost(f"{destination} cannot be reached: {said.removeprefix(f'{UNREACHABLE}{destination}: ')}")
    return SourceRefused(f"{destination}: {said}")
