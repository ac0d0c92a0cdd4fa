"""The worker of one stream-partition: it alone assigns indexes, confirms what is on disk, and answers pulls.

It takes its mailbox in runs. All pushes of a run are one append; plain pushes that come while it commits are decoded
and staged for the next one, which is as large as the commit was long. It knows nothing of consumers.

What a peer may rely on: pushes are confirmed in the order in which they came, pulls are answered in the order in which
they came, and a pull sees every push that came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from ockam.address import Address
from ockam.message import Message, reply_to
from ockam.protocol import ProtocolError, failed_payload, find_name
from ockam.worker import Worker
from storage.contract import Append, StreamRecord
from storage.errors import IndexConflict, StreamNotFound
from stream_service import protocol
from stream_service.bulk import BULK
from stream_service.copying import COPY, CopyRequest, CopyResponse, read_copy
from stream_service.extensions import DELETE, DELETED, RETENTION, RICH_PULL, RICH_PUSH, TRUNCATE, Outcome
from stream_service.operations import EnsureStreams, FallingAppend, LoadSequences
from stream_service.protocol import PULL, PUSH
from stream_service.stored import StoredStream
from stream_service.workers.bulk import BulkReads
from stream_service.workers.care import Care
from stream_service.workers.clock_machine import TOLERANCE_US
from stream_service.workers.copies import StoreCopy
from stream_service.workers.pulls import PullQueue, StreamEnd
from stream_service.workers.push_failures import Failure, failure_payload, refusal_payload
from stream_service.workers.push_run import PushRun, check_size
from stream_service.workers.sequence_machine import LOADED_MAX, SequenceMachine
from stream_service.workers.stream_services import StreamServices
from stream_service.workers.tail_machine import Tail

CHANGES = (PUSH, RICH_PUSH, COPY, TRUNCATE, DELETE, RETENTION)
"""What changes a stream, and is refused where somebody else keeps it."""
STAGED_BEHIND_MIN = 32
"""Behind an append of fewer messages none are staged but wait in the mailbox, since handing them over one by one costs
more than the writing thread can wait."""
STAGED_MESSAGES_MAX = 10_000
"""With so many pushes staged the mailbox waits: as many as one run can have."""
STAGED_BYTES_MAX = 16 * 1024 * 1024
"""The same, by the size of their payloads: as much as fills a mailbox."""

logger = structlog.get_logger(__name__)


class StreamWorker(Worker):
    """Serves push, pull and create (idempotent) at the stream's own address, and the care of the stream (`care`).

    services: what all streams of a node share.
    stream: the stream as stored, where the caller has just read it; None after a crash, and then it is read again
    behind whatever the worker's earlier life left in the writing thread.
    removed: called when the stream has been deleted, to free its address.
    keeper: who alone writes this stream, and tells by `note_changed`; None where anybody may, through this worker.
    Invariant: `_busy` counts what is under way: at most one append and one loading of sequences. The mailbox is paused
    while something is held, too many pulls wait or too many pushes are staged, or nothing is staged behind an append
    (`_stages`). Pushes are staged only while an append is under way, and behind them nothing but more plain pushes.
    """

    def __init__(
        self,
        name: str,
        partition: int,
        stream: StoredStream | None,
        services: StreamServices,
        removed: Callable[[], None],
        keeper: str | None = None,
    ) -> None:
        self.keeper = keeper
        self._name = name
        self._partition = partition
        self._storage = services.storage
        self._limits = services.limits
        self._now_us = services.now_us
        self._counters = services.counters
        self._loaded = False
        self._busy = 0
        self._held: Sequence[Message] = ()
        self._stages = False
        self._staged = PushRun(None)
        self._staged_bytes = 0
        self._last_time_us = 0
        self._route: tuple[Address, ...] = ()
        self._sequences: SequenceMachine | None = None
        self._end = StreamEnd(0, 0, 0)
        self._tail = Tail(services.tails)
        self._pulls = PullQueue(self, self._end, self._tail, services, self._maybe_resume)
        self._bulk = BulkReads(self, self._end, services)
        self.care = Care(self, self.identity, self._end, services, partial(self._end_with, removed))
        if stream is not None:
            self._load(stream)

    @property
    def identity(self) -> tuple[str, int]:
        """Name and partition."""
        return self._name, self._partition

    def started(self) -> None:
        self._route = (self.context.address,)
        self._pulls.started()
        if not self._loaded:
            self.context.pause()
            self._storage.submit_write(
                EnsureStreams(
                    self._name, (self._partition,), self._now_us(), on_done=self.context.guard(self._loaded_again)
                )
            )

    def stopped(self) -> None:
        """What is held must not be stored any more: a later life may be at work by the time it could be."""
        self._pulls.close()
        failure = Failure(Outcome.NOT_STORED, "the stream's worker has stopped before this was stored")
        self.context.send_run(self._take_staged().refused(self._route, failure))
        self._answer_held(failure)

    def receive(self, run: Sequence[Message]) -> None:
        if self.keeper is not None:
            self._receive_kept(run)
            return
        if self._busy:
            self._stage(run)
            return
        pushes = PushRun(self._sequences)
        add, push_tag, decode_push = pushes.add, PUSH.tag, PUSH.decode_request
        bytes_max = self._limits.message_bytes_max
        for position, message in enumerate(run):
            payload = message.payload
            try:
                if len(payload) > bytes_max:
                    raise ProtocolError(f"a message of {len(payload)} bytes; a stream keeps at most {bytes_max}")
                if payload.startswith(push_tag):
                    add(message, decode_push(payload))
                elif RICH_PUSH.is_in(payload):
                    request = check_size(RICH_PUSH.decode_request(payload), self._limits)
                    if request.sequence is not None and self._sequences is None:
                        self._load_sequences(run[position:])
                        break
                    pushes.add_rich(message, request)
                elif COPY.is_in(payload):
                    copy = read_copy(payload, self._limits)
                    if not len(pushes):
                        self.context.send_run(pushes.answers_behind)
                        self._copy(message, copy, run[position + 1 :])
                        return
                    # It goes behind the pushes before it.
                    self._held = run[position:]
                    self.context.pause()
                    break
                elif (answer := self._receive_other(message)) is not None:
                    pushes.add_answer(answer)
            except ProtocolError as error:
                self._counters.refuse(self, message, str(error), refusal_payload(message, str(error)))
        if len(pushes):
            self._pulls.hold()
            self._append(pushes)
        else:
            self.context.send_run(pushes.answers_behind)
            self._pulls.answer()
        if self._pulls.is_full:
            self.context.pause()

    def note_changed(self, record: StreamRecord) -> None:
        """The stream's keeper has written to it, or has cut its front; those who wait for messages have them."""
        self._end.first_index, self._end.next_index = record.first_index, record.next_index
        self._pulls.wake()
        self._pulls.answer()

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        # What it was doing when it failed, nobody knows: the push may have been on its way to the disk.
        return failure_payload(message, Failure(Outcome.UNKNOWN, reason))

    def _receive_other(self, message: Message) -> Message | None:
        """An answer that is known at once, to be sent behind those to the pushes before: a client that hears of a
        create, and not of a push before it, would send the push again. Raises ProtocolError."""
        payload = message.payload
        if PULL.is_in(payload):
            self._pulls.add(message, PULL.decode_request(payload))
        elif RICH_PULL.is_in(payload):
            self._pulls.add_rich(message, RICH_PULL.decode_request(payload))
        elif BULK.is_in(payload):
            self._bulk.receive(message)
        elif not self.care.receive(message):
            return reply_to(message, message.onward_route[0], self._describe(payload))
        return None

    def _receive_kept(self, run: Sequence[Message]) -> None:
        """Serve those who read; nobody but the keeper changes this stream. Refused late, as a failed push is."""
        answers: list[Message] = []
        refusal = Failure(Outcome.REFUSED, f"this stream is written by {self.keeper} alone")
        for message in run:
            try:
                if any(change.is_in(message.payload) for change in CHANGES):
                    answers.append(reply_to(message, self.context.address, failure_payload(message, refusal)))
                elif (answer := self._receive_other(message)) is not None:
                    self.context.send(answer)
            except ProtocolError as error:
                self._counters.refuse(self, message, str(error))
        if answers:
            self._counters.refused += len(answers)
            self.context.call_later(self._limits.error_delay_s, lambda: self.context.send_run(answers))
        self._pulls.answer()
        if self._pulls.is_full:
            self.context.pause()

    def _describe(self, payload: bytes) -> bytes:
        """The answer to a create: this stream's Init, under the name of the protocol asked. Raises ProtocolError."""
        if protocol.CREATE.is_in(payload):
            self._check_name(protocol.CREATE.decode_request(payload).stream_name)
            return protocol.CREATE.encode_response(protocol.StreamCreated(self._name))
        for partitioned in (protocol.CREATE_PARTITIONED, protocol.CREATE_PARTITIONS):
            if partitioned.is_in(payload):
                self._check_name(partitioned.decode_request(payload).stream_name)
                return partitioned.encode_response(protocol.PartitionCreated(self._name, self._partition))
        raise ProtocolError(f"a stream serves no {find_name(payload)!r}; it serves stream_push and stream_pull")

    def _check_name(self, name: str | None) -> None:
        if name is not None and name != self._name:
            raise ProtocolError("this is another stream; create streams at the stream service")

    def _stage(self, run: Sequence[Message]) -> None:
        """Decode plain pushes for the next append; from the first other message on, hold the run until that is done."""
        add, push_tag, decode_push = self._staged.add, PUSH.tag, PUSH.decode_request
        bytes_max = self._limits.message_bytes_max
        for position, message in enumerate(run):
            payload = message.payload
            size_bytes = len(payload)
            if size_bytes > bytes_max or not payload.startswith(push_tag):
                self._held = run[position:]
                self.context.pause()
                return
            try:
                add(message, decode_push(payload))
            except ProtocolError as error:
                self._counters.refuse(self, message, str(error), refusal_payload(message, str(error)))
            self._staged_bytes += size_bytes
        if self._stage_full:
            self.context.pause()

    @property
    def _stage_full(self) -> bool:
        return len(self._staged) >= STAGED_MESSAGES_MAX or self._staged_bytes >= STAGED_BYTES_MAX

    def _take_staged(self) -> PushRun:
        staged, self._staged, self._staged_bytes = self._staged, PushRun(None), 0
        return staged

    def _append(self, pushes: PushRun) -> None:
        if not pushes.data:
            self._settled(pushes.stored(self._end.next_index, self._route))
            return
        refusal = self._counters.find_no_room(pushes.data)
        if refusal is not None:
            self._refuse(pushes, Failure(Outcome.NOT_STORED, refusal))
            self._settled([])
            return
        self._submit(pushes)

    def _submit(self, pushes: PushRun) -> None:
        self._busy += 1
        self._stages = len(pushes) >= STAGED_BEHIND_MIN
        if not self._stages:
            self.context.pause()
        before_us, now_us = self._last_time_us, self._now_us()
        # Times do not fall, but where the clock was wrong before: else one message of a wrong year would take all later
        # ones there with it.
        falls = before_us - now_us > TOLERANCE_US
        self._last_time_us = now_us if falls else max(before_us, now_us)
        place = self._end.stream_id, self._end.next_index, self._last_time_us
        done = self.context.guard(partial(self._appended, pushes))
        content = pushes.data, pushes.keys, pushes.headers
        if falls:
            logger.warning(
                "time_falls", stream=self._name, partition=self._partition, before_us=before_us, to_us=now_us
            )
            self._storage.submit_write(FallingAppend(*place, *content, before_us=before_us, on_done=done))
        else:
            self._storage.submit_write(Append(*place, *content, on_done=done))

    def _appended(self, pushes: PushRun, operation: Append) -> None:
        self._busy -= 1
        if operation.error is None:
            self._tail.append(operation)
            self._counters.write_failure = None
            first_index, self._end.next_index = self._end.next_index, self._end.next_index + len(pushes.data)
            self._pulls.wake()
            if len(self._staged) and not self._busy and self._counters.find_no_room(self._staged.data) is None:
                # The next append is on its way before the answers to this one are made.
                self._submit(self._take_staged())
                self.context.send_run(pushes.stored(first_index, self._route))
                self._pulls.answer()
                self._maybe_resume()
            else:
                self._settled(pushes.stored(first_index, self._route))
            return
        if isinstance(operation, FallingAppend):
            self._last_time_us = operation.before_us
        outcome = Outcome.UNKNOWN if operation.error.in_doubt else Outcome.NOT_STORED
        failure = Failure(outcome, str(operation.error))
        if isinstance(operation.error, IndexConflict | StreamNotFound):
            self.context.send_run(pushes.refused(self._route, failure))
            if isinstance(operation.error, IndexConflict):
                raise operation.error
            self._settled([])
            return
        self._refuse(pushes, failure)
        self._settled([])

    def _refuse(self, pushes: PushRun, failure: Failure) -> None:
        """Say that they were not stored, but late: a real publisher sends a refused push again at once."""
        answers = pushes.refused(self._route, failure)
        self._counters.pushes_failed += len(pushes)
        self._counters.write_failure = reason = failure.reason
        known = {"pushes": len(pushes), "outcome": failure.outcome.name.lower(), "reason": reason}
        logger.error("push_failed", stream=self._name, partition=self._partition, **known)
        self.context.call_later(self._limits.error_delay_s, lambda: self.context.send_run(answers))

    def _copy(self, message: Message, copy: CopyRequest, behind: Sequence[Message]) -> None:
        """Store messages with the times and at the indexes that they had elsewhere; then handle those behind."""
        self._held = behind
        self.context.pause()
        self._pulls.hold()
        end = self._end
        begins = end.next_index == 0 != copy.index
        if copy.index != end.next_index and not begins:
            self._settled([self._copy_answer(message, copy, stored=False)])
            return
        refusal = self._counters.find_no_room([each.data for each in copy.messages])
        if refusal is not None:
            self._refuse_copy(message, refusal)
            return
        self._busy += 1
        self._stages = False
        times = {"last_time_us": self._last_time_us, "now_us": self._now_us()}
        done = self.context.guard(lambda operation: self._copied(operation, message, copy))
        self._storage.submit_write(StoreCopy(copy, end.stream_id, begins=begins, **times, on_done=done))

    def _copied(self, operation: StoreCopy, message: Message, copy: CopyRequest) -> None:
        self._busy -= 1
        if operation.error is not None:
            if isinstance(operation.error, IndexConflict):
                raise operation.error
            self._refuse_copy(message, str(operation.error))
            return
        # What comes next is not behind what the tail has; it keeps only what follows without a gap.
        self._tail.clear()
        if operation.begins:
            self._end.first_index = copy.index
        self._end.next_index = copy.index + len(copy.messages)
        self._last_time_us = operation.last_time_us
        self._pulls.wake()
        self._settled([self._copy_answer(message, copy, stored=True)])

    def _refuse_copy(self, message: Message, reason: str) -> None:
        """Say that nothing was stored, as late as to a push, and go on."""
        answer = reply_to(message, self.context.address, failed_payload(reason))
        logger.error("copy_failed", stream=self._name, partition=self._partition, reason=reason)
        self.context.call_later(self._limits.error_delay_s, lambda: self.context.send_run([answer]))
        self._settled([])

    def _copy_answer(self, message: Message, copy: CopyRequest, *, stored: bool) -> Message:
        response = CopyResponse(copy.request_id, stored, self._end.next_index)
        return reply_to(message, self.context.address, COPY.encode_response(response))

    def _load_sequences(self, held: Sequence[Message]) -> None:
        """Learn which sequenced messages are stored, and handle these messages after that."""
        self._busy += 1
        self._held = held
        self.context.pause()
        loaded = self.context.guard(self._sequences_loaded)
        self._storage.submit_read(LoadSequences(self._end.stream_id, self._end.next_index, LOADED_MAX, loaded))

    def _sequences_loaded(self, operation: LoadSequences) -> None:
        if operation.error is not None:
            self._answer_held(Failure(Outcome.NOT_STORED, f"the stream cannot be read: {operation.error}"))
            raise operation.error
        self._busy -= 1
        self._sequences = SequenceMachine()
        self._sequences.remember(operation.found)
        self._settled([])

    def _end_with(self, removed: Callable[[], None]) -> None:
        """The stream has been deleted: nobody waits for its messages any more."""
        self._pulls.refuse(DELETED)
        removed()

    def _answer_held(self, failure: Failure) -> None:
        held, self._held = self._held, ()
        self.context.send_run(reply_to(each, self.context.address, failure_payload(each, failure)) for each in held)

    def _settled(self, answers: Sequence[Message]) -> None:
        """Send answers; when nothing of ours is under way any more, go on: with what was staged, with what was held
        behind that, or with the mailbox."""
        self.context.send_run(answers)
        if self._busy:
            return
        if len(self._staged):
            self._pulls.answer()
            self._append(self._take_staged())
        elif self._held:
            held, self._held = self._held, ()
            self.receive(held)
        else:
            self._pulls.answer()
        self._maybe_resume()

    def _maybe_resume(self) -> None:
        waits = self._busy and not self._stages
        if not waits and not self._held and not self._stage_full and not self._pulls.is_full:
            self.context.resume()

    def _loaded_again(self, operation: EnsureStreams) -> None:
        if operation.error is not None:
            raise operation.error
        self._load(operation.streams[0])
        self.context.resume()

    def _load(self, stream: StoredStream) -> None:
        record = stream.record
        end = self._end
        end.stream_id, end.first_index, end.next_index = record.stream_id, record.first_index, record.next_index
        self._last_time_us = stream.last_time_us
        self.care.retention = stream.retention
        self._loaded = True
