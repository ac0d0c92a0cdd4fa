"""InsideStream: a partition whose worker runs in this process, for requests that use a client inside the node.

Plain pushes and pages go to the worker without frames, as requests of the client's connection: the same gate, limits
and answers. Everything else goes the way of every client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ockam.actors.message import Message
from ockam.errors import AskRefused, AskTimedOut
from ockam.protocol import ERROR, ProtocolError, error_payload
from ockam.quotas.usage import is_limited
from ockam.transport.connection import Connection
from stream_client import ClientError, Page, PushUnknown, Stream, StreamInfo, StreamNotFound, UnexpectedAnswer
from stream_client.arguments import StartLike, encoded, start_of
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import refusal
from stream_client.core.sequence_machine import not_saved
from stream_client.session import ClientSession
from stream_client.shell.base_shell import ANSWER_TIMEOUT_S
from stream_service.extensions import BATCH_MESSAGES_MAX, BATCHED, PACKED_PULL, PackedPull, PushFailure
from stream_service.names import stream_address
from stream_service.page_codec import decode_packed_page
from stream_service.push_codec import decode_batch_answer, encode_batch

BATCH_BYTES_MAX = 1024 * 1024
"""A batch of this size takes no further message, so that its encoded copies stay small."""


STREAMS_MAX = 1_000
"""The partitions of at most this many streams are remembered."""


class Stored(NamedTuple):
    """The result of `messages` pushes that follow each other. first_index: the index of the first one; negative if this
    was forgotten, long after the push. error: why the messages are not stored; then `first_index` means nothing."""

    messages: int
    first_index: int
    error: ClientError | None = None


class KnownPartitions:
    """The partitions of streams by name, as the node has listed them, until a partition is added or removed."""

    def __init__(self) -> None:
        self._known: dict[str, list[StreamInfo]] = {}
        self._changes = 0

    def of(self, changes: int) -> dict[str, list[StreamInfo]]:
        """Returns the known partitions, to which the caller adds. changes: how often a partition was added or removed.
        Each change begins a new dictionary, so that a list from before the change is not found after the change."""
        if changes != self._changes or len(self._known) >= STREAMS_MAX:
            self._known, self._changes = {}, changes
        return self._known


class InsideStream(Stream):
    def __init__(self, session: ClientSession, handle: PartitionHandle, connection: Connection) -> None:
        """connection: the node's end of the client."""
        super().__init__(session, handle)
        self._connection = connection
        self._route = (stream_address(handle.name, handle.partition),)

    async def push_plain(self, messages: list[bytes]) -> list[Stored]:
        """Stores messages without key and headers, in order. Returns the result of each batch, with its error."""
        batches = list(_batches(messages))
        payloads = [encode_batch(0, batch) for batch in batches]
        # With the prefix BATCHED, answers say why a push failed, and whether it is unknown what is stored.
        answers = await self._connection.ask(self._route, payloads, ANSWER_TIMEOUT_S, BATCHED)
        return [self._stored(answer, len(batch)) for answer, batch in zip(answers, batches, strict=True)]

    async def pull_small(self, start: StartLike, limit: int, bytes_max: int) -> Page | None:
        """Returns a page as `pull_page` does, without waiting for messages. Returns None if the page is larger than
        `bytes_max`, for example because of one large message, or of keys and headers."""
        payload = encoded(PACKED_PULL, PackedPull(0, start_of(start), limit, 0, 0))
        (answer,) = await self._connection.ask(self._route, (payload,), ANSWER_TIMEOUT_S, BATCHED)
        payload = self._checked(answer, StreamNotFound)
        if len(payload) > bytes_max:
            return None
        try:
            page = decode_packed_page(payload)
        except ProtocolError as error:
            raise UnexpectedAnswer(str(error)) from error
        return Page(page.messages, page.first_index, page.next_index, page.resume_index)

    def _stored(self, answer: Message | AskTimedOut | AskRefused, messages: int) -> Stored:
        try:
            answered = decode_batch_answer(self._checked(answer, PushUnknown))
        except ClientError as error:
            return Stored(messages, -1, error)
        failure = answered.failure
        if failure is None:
            return Stored(messages, answered.index)
        return Stored(messages, -1, not_saved(PushFailure(0, failure.outcome, failure.reason), sent_again=False))

    def _checked(self, answer: Message | AskTimedOut | AskRefused, ended: type[ClientError]) -> bytes:
        """Returns the payload of an answer. Raises its error; `ended`, if the worker has ended before it answered."""
        if isinstance(answer, AskTimedOut):
            raise self.session.silence(ANSWER_TIMEOUT_S)
        if isinstance(answer, AskRefused):
            raise refusal(error_payload(answer.reason)) if is_limited(answer.reason) else ended(answer.reason)
        if ERROR.is_in(answer.payload):
            raise refusal(answer.payload, of_stream=True)
        return answer.payload


def _batches(messages: list[bytes]) -> Iterator[list[bytes]]:
    begin = size_bytes = 0
    for end, data in enumerate(messages):
        if end - begin >= BATCH_MESSAGES_MAX or size_bytes >= BATCH_BYTES_MAX:
            yield messages[begin:end]
            begin, size_bytes = end, 0
        size_bytes += len(data)
    yield messages[begin:]
