"""StreamLink: how a worker of the forwarding services uses one stream, by the same messages as every client.

The answers come to an address of their own, so that the worker can pause its mailbox while it waits for them. A worker
that sends in the name of a client does so with the client's origin: the stream decides by the rights of that client."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ockam.actors.address import Address, local
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.protocol import ERROR
from stream_client.correspondent import RoutedMessage, decode_routed
from stream_client.errors import UnexpectedAnswer
from stream_service.extensions import (
    BATCHED,
    PUSH_BATCH,
    PUSH_FAILED,
    RICH_PULL,
    BatchAnswer,
    BatchFailure,
    FromIndex,
    RichMessage,
    RichPull,
)
from stream_service.names import stream_address
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest

PENDING_MESSAGES_MAX = 10_000
PENDING_BYTES_MAX = 16 * 1024 * 1024
"""Above one of these two limits, the worker takes no messages until pushes are confirmed."""
PAGE_MESSAGES = 1_000
PUSHED = local(BATCHED + b"push")


class _LinkAnswers(Worker):
    """Takes the answers for another worker. It has no `demand`, so it gets only messages of this node's workers."""

    def __init__(self, take: Callable[[Message], None]) -> None:
        self._take = take

    def handle(self, message: Message) -> None:
        if message.origin.kind == "local":
            self._take(message)


class LinkedWorker(Worker):
    """A worker that uses a stream by a StreamLink, from its start to its end."""

    _link: StreamLink

    def stopped(self) -> None:
        self._link.close()

    def answered(self, what: str, payload: bytes) -> None:
        """Takes an answer to `ask`. what: the text that `ask` was given."""

    def failed(self, what: str, payload: bytes) -> None:
        """Takes the `error` that answers an `ask` or a push as a whole."""

    def settled(self, message: Message, size_bytes: int, index: int | None, reason: str) -> None:
        """Takes the result of a push of `size_bytes` of data. index: None if `reason` says why it may not be stored."""


class StreamLink:
    """Partition 0 of the stream `name`, which is created if it does not exist. worker: uses the stream.

    Invariant: `_pending` has the pushes that were not settled, and `pending_bytes` is the size of their data."""

    def __init__(self, worker: LinkedWorker, node: Node, name: str, *, service: Address, origin: Origin) -> None:
        self._worker = worker
        self._node = node
        self._context = worker.context
        self.name = name
        self._service = service
        self.origin = origin
        self._stream = stream_address(name, 0)
        self._pending: dict[int, tuple[Message, int]] = {}
        self._pushes = self.pending_bytes = 0
        take = self._context.guard(self._take)
        self._inner = node.register([local("FWS_" + secrets.token_hex(8))], lambda: _LinkAnswers(take))

    def close(self) -> None:
        self._node.unregister(self._inner)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def open(self) -> None:
        """Asks for the creation of the stream. `answered` gets the answer, an Init, with the text "open"."""
        payload = CREATE.encode_request(CreateStream(self.name))
        self._node.send(Message((self._service,), (self._inner, local("open")), payload, self.origin))

    def ask(self, what: str, payload: bytes, at: Address | None = None) -> bool:
        """Sends a request to the stream, or to another service. Returns False if there is no such stream any more."""
        to = self._stream if at is None else at
        return self._node.send(Message((to,), (self._inner, local(what)), payload, self.origin))

    def pull(self, index: int, *, request_id: int, wait_ms: int) -> bool:
        request = RichPull(request_id, FromIndex(index), PAGE_MESSAGES, wait_ms)
        return self.ask("pull", RICH_PULL.encode_request(request))

    def push(self, message: Message, data: bytes, origin: Origin = HERE) -> bool:
        """Stores data for a message, which `settled` gets. Returns False if there is no such stream any more."""
        payload = PUSH.encode_request(PushRequest(self._pushes, data))
        self._pending[self._pushes] = message, len(data)
        if not self._node.send(Message((self._stream,), (self._inner, PUSHED), payload, origin)):
            del self._pending[self._pushes]
            return False
        self._pushes += 1
        self.pending_bytes += len(data)
        if self.pending > PENDING_MESSAGES_MAX or self.pending_bytes > PENDING_BYTES_MAX:
            self._context.pause()
        return True

    def take_pending(self) -> list[Message]:
        """Forgets and returns the messages whose pushes were not settled. `settled` is not called for them any more."""
        pending, self._pending, self.pending_bytes = self._pending, {}, 0
        return [message for message, _ in pending.values()]

    def _take(self, message: Message) -> None:
        what = message.onward_route[1]
        if ERROR.is_in(message.payload):
            self._worker.failed(str(what), message.payload)
        elif what != PUSHED:
            self._worker.answered(str(what), message.payload)
        else:
            answer = _read_answer(message.payload)
            reason = "" if answer.failure is None else answer.failure.reason
            for number in range(answer.count):
                # The link may have given up the push.
                pushed, size_bytes = self._pending.pop(answer.request_id + number, (None, 0))
                self.pending_bytes -= size_bytes
                if pushed is not None:
                    index = answer.index + number if answer.failure is None else None
                    self._worker.settled(pushed, size_bytes, index, reason)
            if self.pending * 2 <= PENDING_MESSAGES_MAX and self.pending_bytes * 2 <= PENDING_BYTES_MAX:
                self._context.resume()


def _read_answer(payload: bytes) -> BatchAnswer:
    """Reads the answer to pushes in each of its forms: to one push, to one that failed, and to several."""
    if PUSH.is_in(payload):
        confirm = PUSH.decode_response(payload)
        return BatchAnswer(confirm.request_id, 1, confirm.index, None)
    if PUSH_FAILED.is_in(payload):
        failed = PUSH_FAILED.decode_response(payload)
        return BatchAnswer(failed.request_id, 1, 0, BatchFailure(failed.outcome, failed.reason))
    return PUSH_BATCH.decode_response(payload)


def read_routed(message: RichMessage) -> RoutedMessage | None:
    """Returns the routed message that a message of a stream has, or None if it has none."""
    try:
        return decode_routed(message.data)
    except UnexpectedAnswer:
        return None
