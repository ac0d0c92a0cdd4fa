"""RemoteNode: asks another node, and waits for its answers (`ockam.actors.asker`). Failures become MirrorErrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ockam.actors.address import Address, local, tcp
from ockam.actors.asker import Asker, Unanswered
from ockam.actors.worker import NEVER
from ockam.errors import InvalidAddress
from ockam.protocol import ERROR, FAILURE, REFUSAL, Protocol, ProtocolError
from ockam.transport.forwarding import UNREACHABLE, is_destination_unreachable
from stream_service.workers.directory import StreamDirectory

Q = TypeVar("Q")
A = TypeVar("A")

PATIENCE_S = 10.0
"""The longest wait for an answer, beyond the time for which the other node may delay it."""


class MirrorError(Exception):
    """Error: a mirror cannot do what it was asked for, or cannot follow its source. The base class of this package's
    errors."""


class SourceLost(MirrorError):
    """Error: the node with the source cannot be reached, or does not answer in time."""


class SourceRefused(MirrorError):
    """Error: the node with the source refuses a request of the mirror, for example for lack of a right."""


class Parted(MirrorError):
    """Error: the mirror has messages that its source does not have, so it cannot follow."""


class SourceGoesOn(MirrorError):
    """Error: a mirror is not promoted by force, because its source answers, would go on taking pushes beside it, and
    cannot become its mirror."""


class RemoteNode:
    """Another node, as the tasks of mirrors ask it. destination: its `host:port`."""

    def __init__(self, asker: Asker, destination: str) -> None:
        self._asker = asker
        self._destination = destination
        self._first = tcp(destination)

    @property
    def connection(self) -> Address | None:
        """The connection of this node through which the other node has answered last. A node that was started anew
        answers through another connection."""
        return self._asker.connection

    async def ask_raw(self, to: Address, protocol: Protocol[Q, A], request: Q, wait_s: float = 0.0) -> bytes:
        """Sends a request to a worker of the other node, and returns the payload of the answer.
        wait_s: how long the other node may delay the answer. Raises SourceLost, SourceRefused."""
        answer = await self._asker.answer((self._first, to), protocol.encode_request(request), wait_s + PATIENCE_S)
        if isinstance(answer, Unanswered):
            raise SourceLost(answer.value.format(self._destination))
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
def asking(directory: StreamDirectory, destination: str) -> Iterator[RemoteNode]:
    """Yields the node at `destination`, a `host:port`. Raises SourceLost if that is no address of a node."""
    try:
        asker = Asker(directory.node, tcp(destination))
    except InvalidAddress as error:
        raise SourceLost(f"no node can be reached there: {error}") from error
    address = directory.node.register([local("MI_" + directory.new_id())], lambda: asker, restarts=NEVER)
    try:
        yield RemoteNode(asker, destination)
    finally:
        directory.node.unregister(address)


def _refusal(payload: bytes, destination: str) -> SourceLost | SourceRefused:
    try:
        reason = ERROR.decode_response(payload).reason
    except ProtocolError as error:
        return SourceRefused(f"{destination} answers with an error that cannot be read: {error}")
    said = reason.removeprefix(REFUSAL).removeprefix(FAILURE)
    if is_destination_unreachable(reason):
        return SourceLost(f"{destination} cannot be reached: {said.removeprefix(f'{UNREACHABLE}{destination}: ')}")
    return SourceRefused(f"{destination}: {said}")
