"""Asker: sends requests to workers, mostly of another node, and takes their answers. It decodes no answers.
`ask_all` and `join_pages`: ask all nodes of a cluster for their parts of a list, and join them.

The messages go through the node's own connections, with its own certificate and token
(`ockam.transport.tcp.TcpTransport`)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import trio

from ockam.actors.address import LOCAL, TCP, Address, Route
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import NOTHING, Demand
from ockam.protocol import Protocol, ProtocolError, failed_payload

if TYPE_CHECKING:
    from ockam.actors.node import Node
    from ockam.transport.forwarding import RemoteStreams

LOOK_S = 0.2
"""The interval in which a waiting request notices that its connection was closed."""


class Unanswered(enum.Enum):
    """Why a request has no answer. The value is the text for an operator, with the asked node in the braces."""

    NO_ROUTE = "there is no way to {}"
    CLOSED = "{} closed the connection"
    SILENT = "{} does not answer"


Answers: TypeAlias = list[bytes] | Unanswered
"""The payloads of all answers to a request, or why they did not come."""


class Asker(Worker):
    """A worker with an address of its own, to which the asked workers answer.

    asked: the first hop to the asked node. Answers come only from there or from this node; None: from anybody.

    Invariant: at most one request is unanswered. After a request without an answer the object must not be used again:
    a late answer could be taken for the answer to another request."""

    def __init__(self, node: Node, asked: Address | None = None) -> None:
        self._node = node
        self._asked = asked
        # The way by which the latest answer came. It begins with the connection to the asked node.
        self._return_route: Route = ()
        self._answers: list[bytes] = []
        self._wanted = 1
        self._on_done: Callable[[Answers], None] | None = None
        self._deadline_s = 0.0
        self._is_watching = False

    @property
    def connection(self) -> Address | None:
        """The connection of this node through which the latest answer came; None before the first answer."""
        return self._return_route[0] if self._return_route else None

    def demand(self, message: Message) -> Demand | None:
        return NOTHING if self._asked is None else demand_of_answer(message, self._asked)

    def ask(self, route: Route, payload: bytes, on_done: Callable[[Answers], None], patience_s: float) -> None:
        """Sends a request. on_done: called once, with its answer or an Unanswered."""
        self.expect(1, on_done, patience_s)
        if not self._node.send(Message(route, (self.context.address,), payload)):
            self._end(Unanswered.NO_ROUTE)

    def expect(self, wanted: int, on_done: Callable[[Answers], None], patience_s: float) -> None:
        """Waits for answers to a request of the caller. on_done: called once, with all answers or an Unanswered."""
        self._answers, self._wanted, self._on_done = [], wanted, on_done
        self._deadline_s = trio.current_time() + patience_s
        # One timer serves all requests: an answered request would leave its own timer behind.
        if not self._is_watching:
            self._watch_later()

    async def answer(self, route: Route, payload: bytes, patience_s: float) -> bytes | Unanswered:
        """Sends a request. Returns its answer or an Unanswered."""
        ended, found = trio.Event(), list[Answers]()

        def done(answers: Answers) -> None:
            found.append(answers)
            ended.set()

        self.ask(route, payload, done, patience_s)
        await ended.wait()
        return found[0] if isinstance(found[0], Unanswered) else found[0][0]

    def handle(self, message: Message) -> None:
        self._return_route = message.return_route or self._return_route
        self._answers.append(message.payload)
        if len(self._answers) == self._wanted:
            self._end(self._answers)

    def _watch_later(self) -> None:
        self._is_watching = True
        self.context.call_later(min(LOOK_S, max(0.0, self._deadline_s - trio.current_time())), self._watch)

    def _watch(self) -> None:
        self._is_watching = False
        if self._on_done is None:
            return
        # A lost connection ends a request before its deadline. A request for several answers waits on, because these
        # come over several connections.
        if self._wanted == 1 and is_closed(self._node, self._return_route):
            self._end(Unanswered.CLOSED)
        elif trio.current_time() >= self._deadline_s:
            self._end(Unanswered.SILENT)
        else:
            self._watch_later()

    def _end(self, answers: Answers) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(answers)


def demand_of_answer(message: Message, asked: Address) -> Demand | None:
    """Returns NOTHING (the sender needs no right) for a message that can be an answer, otherwise None. An answer comes
    through the connection to the asked node, or from a worker of this node, for example if there is no route to it."""
    peer = asked.value.decode("utf-8", "replace") if asked.type == TCP else None
    return NOTHING if message.origin.kind == "local" or message.origin.peer == peer else None


def is_closed(node: Node, return_route: Route) -> bool:
    """Whether the connection of this node through which an answer came is gone."""
    return bool(return_route) and return_route[0].type == LOCAL and not node.is_registered(return_route[0])


A = TypeVar("A")
T = TypeVar("T")


def ask_all(
    worker: Worker,
    remote_streams: RemoteStreams | None,
    part: Address,
    message: Message,
    protocol: Protocol[Any, A],
    on_answers: Callable[[list[A]], None],
) -> bool:
    """Sends a request that a worker has received to all nodes with a database of their own. Returns False, and does
    nothing, if this node answers alone.

    part: the address at which the worker answers for its own node only.
    on_answers: called with the answers of all nodes. If one answer is missing or an error, the sender gets an error."""
    if remote_streams is None or message.onward_route[0] == part:
        return False

    def joined(payloads: list[bytes] | None) -> None:
        if payloads is None:
            worker.reply(message, failed_payload("a worker of this node does not answer; ask again"))
            return
        try:
            answers = [protocol.decode_response(payload) for payload in payloads]
        except ProtocolError as error:
            worker.reply(message, failed_payload(f"a worker of this node has answered with an error: {error}"))
        else:
            on_answers(answers)

    asked = Message((part,), (), message.payload, message.origin)
    return remote_streams.ask_all(asked, worker.context.guard(joined))


def join_pages(pages: Sequence[tuple[Sequence[T], bool]], key: Callable[[T], Any], limit: int) -> tuple[list[T], bool]:
    """Joins pages that begin at the same entry. Returns the first entries of all together, at most `limit`, and whether
    more follow.

    pages: the entries of each page in order, and whether more follow in it. key: returns the sort key of an entry."""
    # If more entries follow a page, entries behind its end are missing here.
    ends = [key(entries[-1]) for entries, more in pages if more and entries]
    joined = sorted((entry for entries, _ in pages for entry in entries), key=key)
    # So only the entries up to the first such end are complete.
    whole = [entry for entry in joined if not ends or key(entry) <= min(ends)]
    return whole[:limit], bool(ends) or len(whole) > limit
