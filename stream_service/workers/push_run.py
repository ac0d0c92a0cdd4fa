"""PushRun: collects the pushes of one append, and encodes their answers afterwards. It stores nothing.

Nearly all appends have only plain pushes. Then every push is stored, and `decisions` is None. If there are rich pushes
(`node/stream_push/1`), some may be duplicates or out of order, and the lists of keys and headers are filled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ockam.actors.address import Route
from ockam.actors.message import Message
from ockam.protocol import ProtocolError, error_payload
from stream_service.extensions import (
    BATCHED,
    INDEX_KNOWN,
    PUSH_BATCH,
    PUSH_FAILED,
    RICH_PUSH,
    TOLD,
    BatchAnswer,
    BatchFailure,
    Outcome,
    PushBatch,
    PushFailure,
    RichConfirm,
    RichPush,
    RichStatus,
    check_beside,
    encode_beside,
)
from stream_service.limits import DELIVERY_BYTES, PUBLISHER_ID_BYTES_MAX, SEQUENCE_MAX, StreamLimits
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status
from stream_service.publisher_rows import PublisherRow
from stream_service.push_codec import decode_batch, encode_batch_stored, encode_confirm
from stream_service.workers.push_traces import PushTraces, TracedPush
from stream_service.workers.sequence_machine import Decision, Duplicate, New, OutOfOrder, PublisherSequences
from stream_storage.contract import Append


def is_told(message: Message) -> bool:
    """Whether the sender of this message understands `node/push_failed/1`."""
    return bool(message.return_route) and message.return_route[-1].value.startswith(TOLD)


def push_failure(message: Message, request: PushRequest | PushBatch | RichPush, failure: BatchFailure) -> bytes:
    """Encodes the answer to a push that failed. request: the decoded payload of the message.

    A client of the real services gets a confirm with the status ERROR, which is all that it knows. A client whose
    return address begins with `extensions.TOLD` gets `node/push_failed/1`, with the outcome and the reason. A flag in
    each request would make plain pushes larger and slower."""
    if isinstance(request, PushBatch):
        return PUSH_BATCH.encode_response(BatchAnswer(request.request_id, len(request.messages), 0, failure))
    if is_told(message):
        return PUSH_FAILED.encode_response(PushFailure(request.request_id, failure.outcome, failure.reason))
    if isinstance(request, PushRequest):
        return PUSH.encode_response(PushConfirm(request.request_id, Status.ERROR, 0))
    status = RichStatus.REFUSED if failure.outcome is Outcome.REFUSED else RichStatus.ERROR
    return RICH_PUSH.encode_response(RichConfirm(request.request_id, status, 0, 0))


def refusal_payload(message: Message, reason: str) -> bytes | None:
    """Encodes the answer to a push that is refused, for example because it is too large.

    Returns None if the message is no push, or the client understands no such answer. The caller then sends an `error`.
    """
    try:
        request = _decode(message.payload)
    except ProtocolError:
        return None
    if request is None or (isinstance(request, PushRequest) and not is_told(message)):
        return None
    return push_failure(message, request, BatchFailure(Outcome.REFUSED, reason))


def failure_payload(message: Message, failure: BatchFailure) -> bytes:
    """Encodes the answer to a message of any protocol that the worker could not handle.

    A push gets no `error`, because a real producer would publish the `error` as a message.
    """
    request = _decode(message.payload)
    return error_payload(failure.reason) if request is None else push_failure(message, request, failure)


def _decode(payload: bytes) -> PushRequest | PushBatch | RichPush | None:
    if PUSH.is_in(payload):
        return PUSH.decode_request(payload)
    if RICH_PUSH.is_in(payload):
        return RICH_PUSH.decode_request(payload)
    return decode_batch(payload) if PUSH_BATCH.is_in(payload) else None


UNCHECKED_BYTES = 60_000
"""A payload of at most this many bytes fits into every frame, so only larger ones are examined one by one."""


class PushRun:
    """The pushes of one append, in order.

    Invariant: without a rich push, `decisions`, `keys` and `headers` are None. Otherwise `decisions` has an entry for
    each request, and the other two for each message in `data`.
    """

    __slots__ = (
        "_pushes",
        "_sequences",
        "_traced",
        "_traces",
        "answers_behind",
        "began_s",
        "data",
        "decisions",
        "headers",
        "keys",
        "messages",
        "requests",
    )

    def __init__(self, sequences: PublisherSequences | None) -> None:
        self._sequences = sequences
        self.began_s = 0.0  # when the first push arrived, in seconds of `time.perf_counter`
        self._pushes = 0
        self.messages: list[Message] = []  # the messages that brought these pushes
        # one for each of `messages`; a PushBatch has several pushes
        self.requests: list[PushRequest | PushBatch | RichPush] = []
        self.data: list[bytes] = []  # the messages to store
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes | None] | None = None
        self.decisions: list[Decision] | None = None  # whether each request is new, a duplicate or out of order
        self.answers_behind: list[Message] = []  # answers to other requests, sent after these pushes are answered
        self._traces: PushTraces | None = None
        self._traced: Sequence[TracedPush] = ()

    def __len__(self) -> int:
        return self._pushes

    def waited_s(self) -> float:
        return time.perf_counter() - self.began_s

    def add(self, message: Message, request: PushRequest) -> None:
        self._pushes += 1
        self.messages.append(message)
        self.requests.append(request)
        self.data.append(request.data)
        if self.decisions is not None and self.keys is not None and self.headers is not None:
            self.decisions.append(New())
            self.keys.append(None)
            self.headers.append(None)

    def add_batch(self, message: Message, batch: PushBatch) -> None:
        count = len(batch.messages)
        self._pushes += count
        self.messages.append(message)
        self.requests.append(batch)
        self.data += batch.messages
        if self.decisions is not None and self.keys is not None and self.headers is not None:
            self.decisions.append(New())
            self.keys += [None] * count
            self.headers += [None] * count

    def add_rich(self, message: Message, request: RichPush) -> None:
        """Adds a rich push. If it has a sequence number, this PushRun must have `PublisherSequences`."""
        # The first rich push of the run: fill the lists for the plain pushes before it.
        if self.decisions is None or self.keys is None or self.headers is None:
            self.decisions = [New() for _ in self.requests]
            self.keys = [None] * len(self.data)
            self.headers = [None] * len(self.data)
        decision: Decision = New()
        if request.sequence is not None:
            assert self._sequences is not None, "the sequences of the stream have not been loaded"
            sequence = request.sequence
            decision = self._sequences.decide(sequence.publisher_id, sequence.sequence, len(self.data))
        self._pushes += 1
        self.messages.append(message)
        self.requests.append(request)
        self.decisions.append(decision)
        if isinstance(decision, New):
            self.data.append(request.data)
            self.keys.append(request.key)
            self.headers.append(encode_beside(request.headers, request.sequence))

    def notes(self, first_index: int) -> dict[bytes, PublisherRow]:
        """Returns the rows of publishers that the append must write."""
        return {} if self._sequences is None else self._sequences.notes(first_index)

    def find_traces(self, traces: PushTraces, begin: int) -> None:
        self._traces = traces
        self._traced = [*self._traced, *traces.match(self.messages[begin:], self.requests[begin:])]

    def remember(self, first_index: int) -> None:
        """Records the sequence numbers of the stored pushes. Call it before another run can be refused: a refusal
        forgets all numbers that are not recorded."""
        if self._sequences is not None:
            self._sequences.stored(first_index)

    def stored(self, first_index: int, route: Route, operation: Append | None = None) -> list[Message]:
        """Returns the answers to all pushes, after `remember`. operation: the append that has stored `data`; None:
        nothing was new."""
        if self.decisions is None:
            answers = self._plain_answers(first_index, route) + self.answers_behind
        else:
            answers = [*self._rich_answers(first_index, route), *self.answers_behind]
        if self._traces is not None:
            self._traces.stored(self._traced, operation)
        return answers

    def refused(self, route: Route, failure: BatchFailure) -> list[Message]:
        """Returns the answers to all pushes, after `data` could not be stored."""
        if self._sequences is not None:
            self._sequences.refused()
        answers = []
        for position, (message, request) in enumerate(zip(self.messages, self.requests, strict=True)):
            confirm = None
            if isinstance(request, RichPush):
                # Although this append failed, it is known whether a push is out of order or was stored earlier.
                confirm = _confirm_known(request.request_id, self.decisions[position] if self.decisions else New())
            if confirm is not None:
                payload = RICH_PUSH.encode_response(confirm)
            else:
                payload = push_failure(message, request, failure)
            answers.append(Message(message.return_route, route, payload))
        if self._traces is not None:
            self._traces.refused(self._traced, failure.reason)
        return answers + self.answers_behind

    def _plain_answers(self, index: int, route: Route) -> list[Message]:
        """Joins the answers to pushes that follow each other, if their publisher understands joined answers."""
        # If a transaction has pushes to many streams, most of these streams have one push or one batch in it.
        if len(self.messages) == 1:
            message, request = self.messages[0], self.requests[0]
            payload = _stored(request.request_id, len(self.data), index, isinstance(request, PushBatch))
            return [Message(message.return_route, route, payload)]
        answers: list[Message] = []
        return_route: Route = ()
        # The pushes of the next answer: the request id and the index of the first one, and their number.
        request_id, first_index, count, has_batch, joins = 0, index, 0, False, False
        for message, request in zip(self.messages, self.requests, strict=True):
            # The messages of one publisher usually share one route object.
            if not joins or message.return_route is not return_route or request.request_id != request_id + count:
                if count:
                    answers.append(Message(return_route, route, _stored(request_id, count, first_index, has_batch)))
                if message.return_route is not return_route:
                    return_route = message.return_route
                    # Whether the publisher understands an answer to several pushes.
                    joins = bool(return_route) and return_route[-1].value.startswith(BATCHED)
                request_id, first_index, count, has_batch = request.request_id, index, 0, False
            more = 1
            if isinstance(request, PushBatch):
                more, has_batch = len(request.messages), True
            count += more
            index += more
        answers.append(Message(return_route, route, _stored(request_id, count, first_index, has_batch)))
        return answers

    def _rich_answers(self, first_index: int, route: Route) -> Iterator[Message]:
        index = first_index
        for message, request, decision in zip(self.messages, self.requests, self.decisions or (), strict=True):
            count = 1
            if isinstance(request, PushRequest):
                payload = encode_confirm(request.request_id, index)
            elif isinstance(request, PushBatch):
                count = len(request.messages)
                payload = encode_batch_stored(request.request_id, count, index)
            else:
                payload = RICH_PUSH.encode_response(_confirm(request.request_id, decision, index, first_index))
            if isinstance(decision, New):
                index += count
            yield Message(message.return_route, route, payload)


def _stored(request_id: int, count: int, index: int, has_batch: bool) -> bytes:
    if count == 1 and not has_batch:
        return encode_confirm(request_id, index)
    return encode_batch_stored(request_id, count, index)


def _confirm(request_id: int, decision: Decision, index: int, first_index: int) -> RichConfirm:
    if isinstance(decision, New):
        return RichConfirm(request_id, RichStatus.OK, index, 0)
    if isinstance(decision, Duplicate) and decision.offset is not None:
        return RichConfirm(request_id, RichStatus.DUPLICATE, first_index + decision.offset, INDEX_KNOWN)
    confirm = _confirm_known(request_id, decision)
    assert confirm is not None, "a decision is new, a duplicate or out of order"
    return confirm


def _confirm_known(request_id: int, decision: Decision) -> RichConfirm | None:
    """Returns the answer to a rich push that appends nothing, else None."""
    match decision:
        case OutOfOrder(expected):
            return RichConfirm(request_id, RichStatus.OUT_OF_ORDER, 0, expected)
        case Duplicate(index=int(known)):
            return RichConfirm(request_id, RichStatus.DUPLICATE, known, INDEX_KNOWN)
        case Duplicate(index=None, offset=None):
            return RichConfirm(request_id, RichStatus.DUPLICATE, 0, 0)
    return None


def check_payload(message: Message, limits: StreamLimits) -> None:
    """Raises ProtocolError if a push is too large for a stream, or for consumers with the framing of its sender."""
    size_bytes, frame_bytes_max = len(message.payload), message.origin.frame_bytes_max - DELIVERY_BYTES
    if size_bytes > limits.message_bytes_max:
        raise ProtocolError(f"a message of {size_bytes} bytes; a stream keeps at most {limits.message_bytes_max}")
    if size_bytes > frame_bytes_max:
        raise ProtocolError(
            f"a message of {size_bytes} bytes; with this framing at most {frame_bytes_max} can be pulled"
        )


def check_size(request: RichPush, limits: StreamLimits) -> RichPush:
    """Returns the request unchanged. Raises ProtocolError if its key, headers or publisher id are too large."""
    check_beside(request.key, request.headers, limits)
    if request.sequence is not None and len(request.sequence.publisher_id) > PUBLISHER_ID_BYTES_MAX:
        raise ProtocolError(f"a publisher id above {PUBLISHER_ID_BYTES_MAX} bytes")
    if request.sequence is not None and request.sequence.sequence > SEQUENCE_MAX:
        raise ProtocolError(f"a sequence number above {SEQUENCE_MAX}")
    return request
