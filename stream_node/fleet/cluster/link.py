"""Link: this node's connection to another member of its cluster, over which it sends messages of clients.
Proofs: the connections that other members have made to this node.

Both ends prove that they know the tokens of both members, which only readers of the database know:

    caller                                          called
    name, nonce            ───────────────────▶
                           ◀───────────────────     nonce, proof
    proof                  ───────────────────▶
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Container, Sequence

import structlog

from ockam.actors.address import Address, Route
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import Message
from ockam.protocol import ProtocolError
from ockam.transport.forwarding import OpenRequests
from stream_node.fleet.cluster.protocol import (
    CLUSTER,
    LINK,
    MARK,
    MEMBER,
    PROVE,
    LinkRequest,
    LinkResponse,
    Mark,
    ProveRequest,
    Role,
)
from stream_node.fleet.cluster.unanswered import UnansweredRequests
from stream_node.fleet.cluster.view import StoredMember

NONCE_BYTES = 32
ROUTES_MAX = 10_000
"""The number of routes that a link remembers, since making a route for each message takes longer."""

logger = structlog.get_logger(__name__)


class Link:
    """One connection to one process of another member, from its opening to its end. is_up: whether messages can be
    sent. was_up: whether they could ever be sent. unanswered: messages to the member that have no answer yet."""

    def __init__(
        self,
        own_name: str,
        own_token: str,
        member: StoredMember,
        nonce: bytes,
        *,
        deliver: Callable[[Message], Mailbox | None],
        on_up: Callable[[Link], None],
        on_ended: Callable[[Link, OpenRequests], None],
        hang_up: Callable[[Sequence[Address]], None],
        passed_on: set[Route],
        opens_session: Container[Address],
        is_there: Callable[[Address], bool],
    ) -> None:
        """on_up, on_ended: called once, when messages can be sent and when the connection has ended. passed_on: the
        routes to which answers are due; each answer removes its route. opens_session: the addresses at which a message
        opens a session. is_there: whether a connection is still there."""
        self.member = member
        self.is_up = self.was_up = False
        self.connection: Address | None = None
        self._own_name = own_name
        self._tokens = own_token, member.token
        self._nonce = nonce
        self._deliver = deliver
        self._on_up = on_up
        self._on_ended = on_ended
        self._hang_up = hang_up
        self._passed_on = passed_on
        self._opens_session = opens_session
        self.unanswered = UnansweredRequests(is_there)
        self._marks: dict[int, Callable[[], None]] = {}
        self._routes: dict[Route, Route] = {}

    def begin(self, connection: Address) -> None:
        """Begins the proof. connection: the address of the open connection."""
        self.connection = connection
        self._send(CLUSTER, LINK.encode_request(LinkRequest(self._own_name, self._nonce)))

    def send(self, message: Message) -> Mailbox | None:
        onward = message.onward_route
        route = self._routes.get(onward)
        if route is None:
            assert self.connection is not None, "the link is up"
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            route = self._routes[onward] = (self.connection, *onward)
        self.unanswered.sent(message, opens_session=onward[2] in self._opens_session)
        return self._deliver(Message(route, message.return_route, message.payload, message.origin))

    def mark(self, number: int, message: Message, on_back: Callable[[], None]) -> None:
        """Sends a mark behind all earlier messages. on_back: called when the mark is back; never if the link ends
        before."""
        self._marks[number] = on_back
        self.send(message)

    def mark_back(self, number: int) -> bool:
        """Notes that a mark is back. Returns False if this link has sent no such mark."""
        on_back = self._marks.pop(number, None)
        if on_back is not None:
            on_back()
        return on_back is not None

    def receive(self, messages: Sequence[Message]) -> Sequence[Message]:
        if not self.is_up:
            # Nothing else may come before the proof. Until then, the other end may be anybody.
            for message in messages[:1]:
                self._prove(message)
            messages = messages[1:] if self.is_up else ()
        # Answers settle the requests of this member's clients, and those that it has passed on for another member.
        self.unanswered.answered(messages)
        if self._passed_on:
            self._passed_on.difference_update(message.onward_route for message in messages)
        # Marks are rare: without one under way, the whole run goes to the clients as it is.
        if not self._marks:
            return messages
        rest = []
        for message in messages:
            if message.onward_route == (CLUSTER,) and MARK.is_in(message.payload):
                self._note_mark(message)
            else:
                rest.append(message)
        return rest

    def ended(self, requests: OpenRequests) -> None:
        self.is_up = False
        self._on_ended(self, requests)

    def _prove(self, message: Message) -> None:
        assert self.connection is not None, "the connection is open"
        try:
            response = LINK.decode_response(message.payload)
            # Only a process that knows both tokens can make the proof for this nonce.
            nonces = self._nonce, response.nonce
            if not hmac.compare_digest(response.proof, prove(b"called", self._tokens, nonces)):
                raise ProtocolError("another process answers there")
        except ProtocolError as error:
            logger.warning("cluster_link_refused", member=self.member.name, reason=str(error))
            # The router connects again: the other member may not have read yet that this one has joined.
            self._hang_up([self.connection])
            return
        self._send(MEMBER, PROVE.encode_request(ProveRequest(prove(b"caller", self._tokens, nonces))))
        self.is_up = self.was_up = True
        self._on_up(self)

    def _send(self, worker: Address, payload: bytes) -> None:
        assert self.connection is not None, "the connection is open"
        self._deliver(Message((self.connection, worker), (CLUSTER,), payload))

    def _note_mark(self, message: Message) -> None:
        try:
            mark: Mark = MARK.decode_response(message.payload)
        except ProtocolError as error:
            logger.warning("cluster_mark_refused", member=self.member.name, reason=str(error))
            return
        self.mark_back(mark.id)


def prove(role: Role, tokens: tuple[str, str], nonces: tuple[bytes, bytes]) -> bytes:
    """Returns the proof with which a member shows that it knows both tokens. tokens, nonces: the caller's, then the
    called member's."""
    key = "\0".join(tokens).encode()
    return hmac.new(key, role + b"".join(nonces), hashlib.sha256).digest()


class Proofs:
    """The connections that members have proved to have made, and those whose proof is expected.
    Invariant: no connection is both expected to prove itself and proved."""

    def __init__(self, token: str, new_nonce: Callable[[], bytes], is_open: Callable[[Address], bool]) -> None:
        self._token = token
        self._new_nonce = new_nonce
        self._is_open = is_open
        self._expected: dict[Address, bytes] = {}
        self._proved: set[Address] = set()

    def begin(self, connection: Address, caller: StoredMember, nonce: bytes) -> LinkResponse:
        """Begins the proof of a connection that a member seems to have made. Returns the answer, with the proof of this
        end."""
        # Connections that have ended are forgotten here, so the tables stay as small as the cluster.
        self._proved = {each for each in self._proved if self._is_open(each) and each != connection}
        self._expected = {each: proof for each, proof in self._expected.items() if self._is_open(each)}
        tokens, nonces = (caller.token, self._token), (nonce, self._new_nonce())
        self._expected[connection] = prove(b"caller", tokens, nonces)
        return LinkResponse(nonces[1], prove(b"called", tokens, nonces))

    def finish(self, connection: Address, proof: bytes) -> None:
        """Notes that a member has made this connection. Raises ProtocolError if the proof is wrong."""
        expected = self._expected.pop(connection, None)
        if expected is None or not hmac.compare_digest(expected, proof):
            raise ProtocolError("the proof of a member is wrong")
        self._proved.add(connection)

    def is_member(self, connection: Address) -> bool:
        return connection in self._proved
