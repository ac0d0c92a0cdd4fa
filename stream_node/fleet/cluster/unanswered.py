"""UnansweredRequests: messages of clients to one other member that have no answer yet. It sends nothing.
When the member is lost, nobody knows which of them it has served. A client that uses only the requests of Ockam's
specification gets ERROR for each push, and pushes again; it gets an empty answer to each pull. A client of ours loses
its connection and sends everything again in order. A client that has all answers notices nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence

from bare.errors import Irregular
from bare.varint import decode_uint
from index_service.protocol import INDEX, INDEX_PARTITIONED, SaveIndex, SavePartitionIndex
from ockam.actors.address import Address, Route
from ockam.actors.message import Message
from ockam.protocol import ProtocolError
from ockam.transport.forwarding import has_more
from stream_service.extensions import TOLD, TRACE
from stream_service.protocol import PULL, PUSH, PullResponse, PushConfirm, Status
from stream_service.push_codec import BATCH_TAG, BATCH_TAG_BYTES, decode_push

ROUTES_MIN = 1_024
"""From this number of routes on, the routes of ended connections are dropped each time the number has doubled."""


class _OpenRequests:
    """The requests of one return route that have no answer yet."""

    __slots__ = ("count", "lost", "opens_session")

    def __init__(self) -> None:
        self.count = 0  # messages without an answer
        self.opens_session = False  # whether one of them opened a session, which ends with the member
        # The answers if the member is lost, oldest first; None if the client must lose its connection then.
        self.lost: deque[bytes] | None = deque()


class UnansweredRequests:
    def __init__(self, is_there: Callable[[Address], bool]) -> None:
        self._is_there = is_there
        self._open: dict[Route, _OpenRequests] = {}
        self._look_at = ROUTES_MIN

    def __len__(self) -> int:
        return len(self._open)

    def sent(self, message: Message, *, opens_session: bool) -> None:
        """Notes a message to the member. opens_session: whether it opens a session."""
        route, payload = message.return_route, message.payload
        # Nobody waits for an answer to these.
        if not route or message.origin.kind == "local" or is_silent(payload):
            return
        found = self._open.get(route)
        if found is None:
            # Routes of ended connections are dropped, at a cost that stays small for each message.
            if len(self._open) >= self._look_at:
                self._open = {each: known for each, known in self._open.items() if self._is_there(each[0])}
                self._look_at = max(ROUTES_MIN, 2 * len(self._open))
            found = self._open[route] = _OpenRequests()
        found.count += _pushes(payload)
        found.opens_session = found.opens_session or opens_session
        # The specification's requests have an answer for a loss. Every other request makes the client lose its
        # connection.
        if found.lost is not None:
            answer = None if route[-1].value.startswith(TOLD) else _lost_answer(payload)
            if answer is None:
                found.lost = None
            else:
                found.lost.append(answer)

    def answered(self, messages: Sequence[Message]) -> None:
        for message in messages:
            found = self._open.get(message.onward_route)
            # At the end of a stream, a pull stays open while a further part of its page is to come.
            if found is None or has_more(message.payload):
                continue
            found.count -= _pushes(message.payload)
            if found.lost:
                found.lost.popleft()
            # Some requests have several answers.
            if found.count <= 0 and not found.opens_session:
                del self._open[message.onward_route]

    def take(self, *, has_left: bool = False, told: Container[Route] = ()) -> tuple[list[Address], list[Message]]:
        """Forgets everything. Returns the connections that clients must lose, and the answers to the other clients.
        has_left: whether the member has left in order, so that it has ended its sessions. told: the routes whose
        clients have got an error already."""
        taken, self._open = self._open, {}
        if has_left:
            taken = {route: found for route, found in taken.items() if not found.opens_session and route not in told}
        ended = dict.fromkeys(route[0] for route, found in taken.items() if found.lost is None or found.opens_session)
        answers = [
            Message(route, (), payload)
            for route, found in taken.items()
            if route[0] not in ended
            for payload in found.lost or ()
        ]
        return list(ended), answers


def is_silent(payload: bytes) -> bool:
    """Whether nobody answers this message."""
    try:
        if INDEX.is_in(payload):
            return isinstance(INDEX.decode_request(payload), SaveIndex)
        if INDEX_PARTITIONED.is_in(payload):
            return isinstance(INDEX_PARTITIONED.decode_request(payload), SavePartitionIndex)
    except ProtocolError:
        # The index service does not answer messages that it cannot read.
        return True
    return TRACE.is_in(payload)


def _pushes(payload: bytes) -> int:
    """Returns how many pushes a payload stands for: those of a batch, or of the answer to a batch; otherwise 1."""
    if not payload.startswith(BATCH_TAG):
        return 1
    try:
        # A batch and its answer begin with the size of the body, a request id and the number of pushes.
        _, at = decode_uint(payload, BATCH_TAG_BYTES)
        _, at = decode_uint(payload, at)
        return decode_uint(payload, at)[0]
    except (Irregular, IndexError):
        return 1


def _lost_answer(payload: bytes) -> bytes | None:
    """Returns the answer to a lost push or pull of the specification; None for any other request."""
    try:
        if PUSH.is_in(payload):
            return PUSH.encode_response(PushConfirm(decode_push(payload).request_id, Status.ERROR, 0))
        if PULL.is_in(payload):
            return PULL.encode_response(PullResponse(PULL.decode_request(payload).request_id, []))
    except ProtocolError:
        pass
    return None
