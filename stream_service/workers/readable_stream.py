"""ReadableStream: the base class of both stream workers, `workers.stream.StreamWorker` and `ReadOnlyStream`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ockam.actors.address import Address
from ockam.actors.message import Message, reply_to
from ockam.actors.worker import Worker
from ockam.identity.rules.authorizer import Frequent
from ockam.identity.rules.rights import Demand, Right, to_follow, to_replace
from ockam.identity.rules.rules import Rules
from ockam.protocol import Protocol, ProtocolError, failed_payload
from stream_service.extensions import DELETED, PUSH_BATCH, RICH_PUSH, BatchFailure, Outcome, RichPull
from stream_service.mirror_operations import load_history
from stream_service.mirroring import MIRROR, ROLE, BeMirror, BePrimary, MirrorPull, has_parted, read_role
from stream_service.operations import ensure_streams
from stream_service.protocol import CREATE, PULL, PUSH, CreatePartitions, PartitionCreated, StreamCreated
from stream_service.stored import StoredStream
from stream_service.workers.admin import StreamManagement
from stream_service.workers.bulk import BulkReads
from stream_service.workers.pulls import PullQueue
from stream_service.workers.push_run import failure_payload
from stream_service.workers.served import Read, find_right, find_served, not_served
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_services import StreamServices
from stream_service.workers.tail_machine import Tail
from stream_storage.contract import Do, StreamRecord
from stream_storage.history import History

LATE_ANSWERS_MAX = 10_000
"""The most answers to refused pushes of one stream that wait before they are sent. Further ones are sent at once."""
MIRRORS_WAITING_MAX = 1_000
"""The largest number of requests of mirrors that wait until the history of the stream has been read."""

PUSH_TAGS = PUSH.tag, PUSH_BATCH.tag, RICH_PUSH.tag


class ReadableStream(Worker):
    """Serves the readers of one stream-partition at its address.

    stream: the stored stream, if it was just read. None after a crash: then the worker reads it again, after all writes
    that it submitted before the crash.
    on_removed: called with `identity` when the stream has been deleted, to free its address.
    """

    def __init__(
        self,
        name: str,
        partition: int,
        stream: StoredStream | None,
        services: StreamServices,
        on_removed: Callable[[tuple[str, int]], None],
    ) -> None:
        self.identity = (name, partition)
        self.frequent = Frequent(PUSH_TAGS, int(Right.WRITE), name)
        self._services = services
        self._on_removed = on_removed
        self._route: tuple[Address, ...] = ()
        self._counted_index = 0
        self._late = 0
        self._bounds = StreamBounds(0, 0, 0)
        self._tail = Tail(services.tails)
        self._pulls: PullQueue | None = None
        self._bulk: BulkReads | None = None
        # The requests of mirrors, while the history of the stream is being read.
        self._mirrors_waiting: list[tuple[Message, MirrorPull]] = []
        self.admin: StreamManagement = StreamManagement(self, self.identity, self._bounds, services, self._removed)
        self._stream = stream

    # A node has many streams that nobody reads for long, so these parts are made for the first request.

    @property
    def pulls(self) -> PullQueue:
        # Reads are served only while nothing is under way, so the new queue has nothing to hold its pulls for.
        if self._pulls is None:
            self._pulls = PullQueue(self, self._bounds, self._tail, self._services, self._maybe_resume)
        return self._pulls

    @property
    def bulk(self) -> BulkReads:
        if self._bulk is None:
            self._bulk = BulkReads(self, self._bounds, self._services)
        return self._bulk

    @property
    def bounds(self) -> StreamBounds:
        return self._bounds

    def started(self) -> None:
        self._route = (self.context.address,)
        # Only the first start uses the stream that was read before: after a crash it is outdated.
        stream, self._stream = self._stream, None
        if stream is not None:
            self._open(stream)
        else:
            self.context.pause()
            name, partition = self.identity
            opened = self.context.guard(self._opened_again)
            # This is a write and not a read, so it runs after all appends that this worker submitted before it crashed.
            created_us = self._services.now_us()
            work = partial(ensure_streams, name=name, partitions=(partition,), created_us=created_us)
            self._services.storage.submit_write(Do(work, opened))

    def stopped(self) -> None:
        if self._services.counters.tells_growth:
            self._services.counters.closed.add(self.identity[0])
        self.admin.end()
        self._tail.close()
        if self._pulls is not None:
            self._pulls.close()

    def hand_over(self) -> list[Message]:
        """Ends serving the stream, which another node serves from now on. Returns the messages that were not served."""
        # What was submitted to the storage is still stored and confirmed. The mailbox has later messages.
        self.admin.end()
        self._tail.close()
        return [] if self._pulls is None else self._pulls.hand_over()

    def demand(self, message: Message) -> Demand | list[Demand]:
        """Returns the rights that the sender of this message needs. Raises ProtocolError."""
        name, mirror = self.identity[0], self._bounds.mirror
        # Whoever gives the stream another role makes this node follow a stream of another node, or fence that stream.
        match read_role(message.payload).change if ROLE.is_in(message.payload) else None:
            case BeMirror(source, source_name):
                return to_follow(name, source, source_name)
            case BePrimary(fences=True) if mirror is not None:
                return to_replace(name, [(mirror.source, mirror.source_name)])
        return self._demand_here(message)

    def _demand_here(self, message: Message) -> Demand:
        return Demand(find_right(message.payload), self.identity[0])

    def denied_payload(self, message: Message, reason: str) -> bytes | None:
        return failure_payload(message, BatchFailure(Outcome.REFUSED, reason))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        # The worker may have failed after it submitted the push, so it is unknown whether the push is stored.
        return failure_payload(message, BatchFailure(Outcome.UNKNOWN, reason))

    # The reads of `served_messages` that the worker itself serves.

    def pull(self, message: Message) -> None:
        self.pulls.add(message, PULL.decode_request(message.payload))

    def pull_rich(self, message: Message, decode: Callable[[bytes], RichPull]) -> None:
        self.pulls.add_rich(message, decode(message.payload))

    def pull_mirror(self, message: Message) -> None:
        request = MIRROR.decode_request(message.payload)
        if self._bounds.history:
            self._add_mirror(message, request)
            return
        if len(self._mirrors_waiting) >= MIRRORS_WAITING_MAX:
            raise ProtocolError(f"{MIRRORS_WAITING_MAX} mirrors of this stream wait already")
        self._mirrors_waiting.append((message, request))
        if len(self._mirrors_waiting) == 1:
            stream_id, loaded = self._bounds.stream_id, self.context.guard(self._history_loaded)
            self._services.storage.submit_write(Do(lambda session: load_history(session, stream_id), loaded))

    def _history_loaded(self, operation: Do[History]) -> None:
        waiting, self._mirrors_waiting = self._mirrors_waiting, []
        if operation.error is not None:
            payload = failed_payload(f"the history of the stream cannot be read: {operation.error}")
            for message, _ in waiting:
                self.reply(message, payload)
            return
        self._bounds.learn_history(operation.result)
        for message, request in waiting:
            self._add_mirror(message, request)
        self.pulls.go_on()

    def _add_mirror(self, message: Message, request: MirrorPull) -> None:
        if request.follower is not None:
            self._services.mirror_seen(self.identity, message.origin, request.follower)
        ours = (self._bounds.history, self._bounds.next_index, self._bounds.is_mirror)
        self.pulls.add_mirror(message, request, has_parted=has_parted(*ours, request.entry_id, request.start))

    def answer_create(self, message: Message) -> None:
        self._check_name(CREATE.decode_request(message.payload).stream_name)
        self._answer_behind(message, CREATE.encode_response(StreamCreated(self.identity[0])))

    def answer_partitioned(self, message: Message, under: Protocol[CreatePartitions, PartitionCreated]) -> None:
        self._check_name(under.decode_request(message.payload).stream_name)
        self._answer_behind(message, under.encode_response(PartitionCreated(*self.identity)))

    def _answer_behind(self, message: Message, payload: bytes) -> None:
        """Sends an answer that must not overtake the confirms of earlier pushes."""
        self.reply(message, payload)

    def _send_late(self, answers: Sequence[Message]) -> None:
        """Sends answers after a delay, because a real publisher sends a refused push again at once."""
        if self._late + len(answers) > LATE_ANSWERS_MAX:
            self.context.send_run(answers)
            return

        def send() -> None:
            self._late -= len(answers)
            self.context.send_run(answers)

        self._late += len(answers)
        self.context.call_later(self._services.limits.error_delay_s, send)

    def _check_name(self, name: str | None) -> None:
        # A stream answers a create of itself, which the stream service has forwarded, and makes no other stream.
        if name is not None and name != self.identity[0]:
            raise ProtocolError("this is another stream; create streams at the stream service")

    def _removed(self) -> None:
        if self._pulls is not None:
            self._pulls.refuse(DELETED)
        self._on_removed(self.identity)

    def _maybe_resume(self) -> None:
        # Too many pulls may have paused the mailbox.
        if self._pulls is None or not self._pulls.is_full:
            self.context.resume()

    def _count_growth(self) -> None:
        grown, self._counted_index = self._bounds.next_index - self._counted_index, self._bounds.next_index
        if grown > 0 and self._services.counters.tells_growth:
            self._services.counters.growth[self.identity[0]] += grown

    def _opened_again(self, operation: Do[list[StoredStream]]) -> None:
        if operation.error is not None:
            raise operation.error
        self._open(operation.result[0])
        self.context.resume()

    def _open(self, stream: StoredStream) -> None:
        self._bounds.open(stream, self._services.holds.get(self.identity))
        self._counted_index = self._bounds.next_index
        self.admin.retention = stream.retention


class ReadOnlyStream(ReadableStream):
    """The worker of a stream-partition to which no client can write. The part of the node that writes the stream calls
    `note_changed` after each write.

    kept: the rules that forbid clients to change the stream.
    """

    def __init__(
        self, name: str, partition: int, stream: StoredStream | None, services: StreamServices, kept: Rules
    ) -> None:
        super().__init__(name, partition, stream, services, on_removed=lambda identity: None)
        self._kept = kept

    def receive(self, run: Sequence[Message]) -> None:
        answers: list[Message] = []
        for message in run:
            try:
                # 1. The rules of the node forbid clients to change the stream.
                decision = self._kept.decide(message.origin.identity, self._demand_here(message))
                if not decision.allowed:
                    refusal = BatchFailure(Outcome.REFUSED, decision.explanation)
                    answers.append(reply_to(message, self.context.address, failure_payload(message, refusal)))
                    continue
                # 2. Whatever the rules allow, nobody but the part of the node writes the stream.
                served = find_served(message.payload)
                if not isinstance(served, Read):
                    raise not_served(message.payload)
                served.serve(self, message)
            except ProtocolError as error:
                self._services.counters.refuse(self, message, str(error))
        if answers:
            self._services.counters.refused += len(answers)
            self._send_late(answers)
        # 3. Nothing is committed here, so no pull has to wait for a push.
        self.pulls.answer()
        if self.pulls.is_full:
            self.context.pause()

    def note_changed(self, record: StreamRecord) -> None:
        """Takes the bounds after an append or a deletion by the stream's writer, and answers the waiting pulls."""
        self._bounds.move(record.first_index, record.next_index)
        self._count_growth()
        self.pulls.wake()
        self.pulls.answer()
