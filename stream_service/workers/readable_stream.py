"""ReadableStream: the part of a stream's worker that serves readers: pulls, bulk reads, descriptions and creates.

It is the base class of both kinds of stream workers: `workers.stream.StreamWorker`, which accepts pushes, and
`ReadOnlyStream`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ockam.actors.address import Address
from ockam.actors.message import Message, reply_to
from ockam.actors.worker import Worker
from ockam.identity.rules.authorizer import Frequent
from ockam.identity.rules.rights import STREAM_RIGHTS, Demand, Right, to_follow, to_replace
from ockam.identity.rules.rules import Rules
from ockam.protocol import Protocol, ProtocolError, find_name
from stream_service import protocol
from stream_service.appending import APPEND
from stream_service.bulk import BULK
from stream_service.copying import COPY
from stream_service.cutting import CUT_PULL
from stream_service.extensions import (
    DELETE,
    DELETE_ALL,
    DELETED,
    MARKED_PULL,
    RETENTION,
    RICH_PULL,
    RICH_PUSH,
    TRUNCATE,
    Outcome,
)
from stream_service.mirroring import MIRROR, ROLE, BeMirror, BePrimary, read_role
from stream_service.operations import EnsureStreams
from stream_service.protocol import PULL, PUSH
from stream_service.push_batch import PUSH_BATCH
from stream_service.stored import StoredStream
from stream_service.trace import TRACE
from stream_service.workers.admin import StreamAdmin
from stream_service.workers.bulk import BulkReads
from stream_service.workers.mirror_pulls import MirrorPulls
from stream_service.workers.pulls import PullQueue
from stream_service.workers.push_failures import Failure, failure_payload
from stream_service.workers.stream_machine import StreamBounds
from stream_service.workers.stream_services import StreamServices
from stream_service.workers.tail_machine import Tail
from stream_storage.contract import StreamRecord

NEEDED: dict[Protocol[Any, Any], Right] = {
    PUSH: Right.WRITE,
    PUSH_BATCH: Right.WRITE,
    RICH_PUSH: Right.WRITE,
    TRACE: Right.WRITE,
    PULL: Right.READ,
    RICH_PULL: Right.READ,
    CUT_PULL: Right.READ,
    MARKED_PULL: Right.READ,
    BULK: Right.READ,
    MIRROR: Right.READ,
    APPEND: Right.WRITE,
    COPY: Right.ADMIN,
    ROLE: Right.ADMIN,
    RETENTION: Right.ADMIN,
    TRUNCATE: Right.DELETE,
    DELETE: Right.DELETE,
    DELETE_ALL: Right.DELETE,
}
"""The right on a stream that each protocol needs. Requests of other protocols only ask whether the stream exists, and
where it begins and ends. For them, one right on the stream is enough, whichever it is."""


class ReadableStream(Worker):
    """Serves the readers of one stream-partition at its address.

    services: the objects that all streams of a node share.
    stream: the stored stream, if the caller has just read it. None after a crash: then the worker reads the stream
    again, after all writes that it submitted before the crash.
    on_removed: called when the stream has been deleted, to free its address.
    """

    def __init__(
        self,
        name: str,
        partition: int,
        stream: StoredStream | None,
        services: StreamServices,
        on_removed: Callable[[], None],
    ) -> None:
        self.identity = (name, partition)
        self.frequent = Frequent((PUSH.tag, PUSH_BATCH.tag, RICH_PUSH.tag), int(Right.WRITE), name)
        self._services = services
        self._on_removed = on_removed
        self._route: tuple[Address, ...] = ()
        self._counted_index = 0
        self._bounds = StreamBounds(0, 0, 0)
        self._tail = Tail(services.tails)
        self._pulls = PullQueue(self, self._bounds, self._tail, services, self._maybe_resume)
        self._bulk = BulkReads(self, self._bounds, services)
        self._mirror_pulls = MirrorPulls(self, self.identity, self._bounds, services, self._pulls)
        self.admin = StreamAdmin(self, self.identity, self._bounds, services, self._removed)
        self._stream = stream

    @property
    def bounds(self) -> StreamBounds:
        """The id, the bounds, the history and the source of the stream."""
        return self._bounds

    def started(self) -> None:
        self._route = (self.context.address,)
        self._pulls.started()
        stream, self._stream = self._stream, None
        if stream is not None:
            self._open(stream)
        else:
            self.context.pause()
            name, partition = self.identity
            opened = self.context.guard(self._opened_again)
            # This is a write and not a read, so it runs after all appends that this worker submitted before it crashed.
            self._services.storage.submit_write(
                EnsureStreams(name, (partition,), self._services.now_us(), on_done=opened)
            )

    def stopped(self) -> None:
        self._services.counters.closed.add(self.identity[0])
        self._pulls.close()

    def hand_over(self) -> list[Message]:
        """Ends serving the stream, because another node serves it from now on. What was submitted to the storage is
        still stored and confirmed. Returns the messages that were not served, in order. The mailbox has later ones."""
        self.admin.hand_over()
        return self._pulls.hand_over()

    def demand(self, message: Message) -> Demand | list[Demand]:
        """Returns the rights that the sender of this message needs (see `ockam.identity.rules.authorizer.Guarded`).
        Raises ProtocolError."""
        name, mirror = self.identity[0], self._bounds.mirror
        # Whoever gives the stream another role makes this node follow a stream of another node, or fence it.
        match read_role(message.payload).change if ROLE.is_in(message.payload) else None:
            case BeMirror(source, source_name):
                return to_follow(name, source, source_name)
            case BePrimary(fences=True) if mirror is not None:
                return to_replace(name, [(mirror.source, mirror.source_name)])
        return self._demand_here(message)

    def _demand_here(self, message: Message) -> Demand:
        """Returns the right on this stream that the sender of this message needs."""
        payload = message.payload
        rights = next((right for protocol, right in NEEDED.items() if payload.startswith(protocol.tag)), STREAM_RIGHTS)
        return Demand(rights, self.identity[0])

    def denied_payload(self, message: Message, reason: str) -> bytes | None:
        return failure_payload(message, Failure(Outcome.REFUSED, reason))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        # The worker may have failed after it submitted the push, so it is unknown whether the push is stored.
        return failure_payload(message, Failure(Outcome.UNKNOWN, reason))

    def _serve_reader(self, message: Message) -> Message | None:
        """Serves a request that is not a push or a copy. Returns the answer if it is known at once.

        Returns None if the answer is sent later. Raises ProtocolError if the request cannot be decoded, or if streams
        do not serve its protocol.
        """
        payload = message.payload
        if PULL.is_in(payload):
            self._pulls.add(message, PULL.decode_request(payload))
        elif RICH_PULL.is_in(payload):
            self._pulls.add_rich(message, RICH_PULL.decode_request(payload))
        elif CUT_PULL.is_in(payload):
            self._pulls.add_rich(message, CUT_PULL.decode_request(payload))
        elif MARKED_PULL.is_in(payload):
            self._pulls.add_rich(message, MARKED_PULL.decode_request(payload))
        elif BULK.is_in(payload):
            self._bulk.receive(message)
        elif MIRROR.is_in(payload):
            self._mirror_pulls.receive(message)
        elif not self.admin.receive(message):
            return reply_to(message, message.onward_route[0], self._describe(payload))
        return None

    def _describe(self, payload: bytes) -> bytes:
        """Encodes the answer to a create (Init), in the protocol of the request.

        Raises ProtocolError if the payload is not a create, or names another stream.
        """
        name, partition = self.identity
        if protocol.CREATE.is_in(payload):
            self._check_name(protocol.CREATE.decode_request(payload).stream_name)
            return protocol.CREATE.encode_response(protocol.StreamCreated(name))
        for partitioned in (protocol.CREATE_PARTITIONED, protocol.CREATE_PARTITIONS):
            if partitioned.is_in(payload):
                self._check_name(partitioned.decode_request(payload).stream_name)
                return partitioned.encode_response(protocol.PartitionCreated(name, partition))
        raise ProtocolError(f"a stream serves no {find_name(payload)!r}; it serves stream_push and stream_pull")

    def _check_name(self, name: str | None) -> None:
        if name is not None and name != self.identity[0]:
            raise ProtocolError("this is another stream; create streams at the stream service")

    def _removed(self) -> None:
        """Called when the stream has been deleted: refuses the waiting pulls and frees the address."""
        self._pulls.refuse(DELETED)
        self._on_removed()

    def _maybe_resume(self) -> None:
        """Resumes the mailbox, unless too many pulls wait."""
        if not self._pulls.is_full:
            self.context.resume()

    def _count_growth(self) -> None:
        """Counts the messages that were stored since the last call."""
        grown, self._counted_index = self._bounds.next_index - self._counted_index, self._bounds.next_index
        if grown > 0:
            self._services.counters.growth[self.identity[0]] += grown

    def _opened_again(self, operation: EnsureStreams) -> None:
        if operation.error is not None:
            raise operation.error
        self._open(operation.streams[0])
        self.context.resume()

    def _open(self, stream: StoredStream) -> None:
        """Copies the stream's id, bounds and retention from its stored row."""
        record, bounds = stream.record, self._bounds
        bounds.stream_id = record.stream_id
        bounds.first_index, bounds.next_index = record.first_index, record.next_index
        self._counted_index = record.next_index
        bounds.created_us = record.created_us
        bounds.set_mirror(stream.mirror, record.name)
        bounds.hold = self._services.holds.get(self.identity)
        self.admin.retention = stream.retention


class ReadOnlyStream(ReadableStream):
    """The worker of a stream-partition that only a part of this node writes. Clients may read the stream, but not
    change it.

    The part that writes the stream calls `note_changed` after each change.
    kept: the rules that forbid clients to change the stream.
    """

    def __init__(
        self, name: str, partition: int, stream: StoredStream | None, services: StreamServices, kept: Rules
    ) -> None:
        super().__init__(name, partition, stream, services, on_removed=lambda: None)
        self._kept = kept

    def receive(self, run: Sequence[Message]) -> None:
        answers: list[Message] = []
        for message in run:
            try:
                decision = self._kept.decide(message.origin.identity, self._demand_here(message))
                if not decision.allowed:
                    refusal = Failure(Outcome.REFUSED, decision.explanation)
                    answers.append(reply_to(message, self.context.address, failure_payload(message, refusal)))
                elif (answer := self._serve_reader(message)) is not None:
                    self.context.send(answer)
            except ProtocolError as error:
                self._services.counters.refuse(self, message, str(error))
        if answers:
            self._services.counters.refused += len(answers)
            # The answers are sent late, because a real publisher sends a refused push again at once.
            self.context.call_later(self._services.limits.error_delay_s, lambda: self.context.send_run(answers))
        self._pulls.answer()
        if self._pulls.is_full:
            self.context.pause()

    def note_changed(self, record: StreamRecord) -> None:
        """Updates the bounds of the stream after its writer has appended or deleted messages, and answers the waiting
        pulls.

        record: the row of the stream after the change.
        """
        self._bounds.first_index, self._bounds.next_index = record.first_index, record.next_index
        self._count_growth()
        self._pulls.wake()
        self._pulls.answer()
