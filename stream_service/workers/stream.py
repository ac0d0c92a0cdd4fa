"""StreamWorker: the worker of one stream-partition. It assigns indexes, stores pushes, confirms them and answers pulls.

All pushes that arrive together become one append. The worker knows no positions of consumers. It guarantees to clients:

- A push is confirmed only when it is on disk, and pushes are confirmed in the order of their arrival.
- Pulls are answered in the order of their arrival. A pull sees every push that arrived before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from ockam.actors.message import Message, reply_to
from ockam.protocol import ProtocolError, error_payload, failed_payload
from stream_service.appending import (
    APPEND,
    COPY,
    AppendResponse,
    AppendStatus,
    CopyRequest,
    CopyResponse,
    read_append,
    read_copy,
)
from stream_service.extensions import PUSH_BATCH, RICH_PUSH, BatchFailure, Outcome
from stream_service.mirror_operations import RoleChanged, StreamChange, append_expected, store_role
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import ROLE, BePrimary, Role, RoleResponse, read_role
from stream_service.operations import StoreCopy
from stream_service.protocol import PUSH
from stream_service.publisher_rows import KnownSequences, NotedAppend
from stream_service.push_codec import decode_batch, decode_push
from stream_service.stored import StoredStream, stored_stream
from stream_service.workers.publisher_memory import PublisherMemory
from stream_service.workers.push_run import (
    UNCHECKED_BYTES,
    PushRun,
    check_payload,
    check_size,
    failure_payload,
    refusal_payload,
)
from stream_service.workers.push_traces import PushTraces
from stream_service.workers.readable_stream import ReadableStream
from stream_service.workers.served import Read, Write, find_served, not_served
from stream_service.workers.stream_machine import (
    CHANGING,
    COPYING,
    LOADING,
    SERVING,
    STAGED_MESSAGES_MAX,
    StreamMachine,
)
from stream_service.workers.stream_services import StreamServices
from stream_storage.contract import Append, Do, Session, StreamRecord
from stream_storage.errors import (
    CommitUnsettled,
    DatabaseLost,
    IndexConflict,
    StorageClosed,
    StorageError,
    UnknownStreamId,
)

logger = structlog.get_logger(__name__)

T = TypeVar("T")


class StreamWorker(ReadableStream):
    """Serves every message of `served_messages` at the address of the stream.

    Invariant: `_gathered` contains the pushes that are decoded but not yet submitted to the writing thread. Whenever
    the worker does not run, `_gathered` is empty, unless the machine is STAGING. `_submitted` contains the pushes of
    the append that is under way. The mailbox is paused while the machine does not accept messages, or too many pulls
    wait.
    """

    def __init__(
        self,
        name: str,
        partition: int,
        stream: StoredStream | None,
        services: StreamServices,
        on_removed: Callable[[tuple[str, int]], None],
    ) -> None:
        super().__init__(name, partition, stream, services, on_removed)
        self._machine = StreamMachine(self._bounds)
        self._gathered = PushRun(None)
        self._submitted: PushRun | None = None
        self._publishers = PublisherMemory(self._bounds, services)
        self._end_in_doubt = False
        self._found_end: StoredStream | None = None
        self._traces = None if services.tracing is None else PushTraces(services.tracing, name, partition)
        self._received = -1
        self._unused_since_s = 0.0

    @property
    def last_time_us(self) -> int:
        """The time of the latest message, in microseconds since 1970; 0 without a message."""
        return self._machine.last_time_us

    def started(self) -> None:
        # One callback serves all appends, because only one of them is under way at a time.
        self._on_appended = self.context.guard(self._appended)
        super().started()

    def _open(self, stream: StoredStream) -> None:
        super()._open(stream)
        self._machine.open(stream.last_time_us)

    def stopped(self) -> None:
        # No message that waits may be stored any more: after a restart, a new worker may already write to the stream.
        super().stopped()
        failure = BatchFailure(Outcome.NOT_STORED, "the stream's worker has stopped before this was stored")
        self.context.send_run(self._take_gathered().refused(self._route, failure))
        self._refuse_held(self._machine.close(), failure)

    def hand_over(self) -> list[Message]:
        pulls = super().hand_over()
        # Pushes that are decoded but not submitted come before the messages that wait behind them.
        gathered = self._take_gathered()
        self.context.send_run(gathered.answers_behind)
        return [*pulls, *gathered.messages, *self._machine.close()]

    def find_rest(self, received: int, now_s: float) -> StoredStream | None:
        """Returns the stream for its next worker if this worker can end, else None. It can end if it has got no message
        for REST_AFTER_S, nothing is under way, no publisher numbers its messages, and the stream is no mirror.
        received: the number of messages so far. now_s: a steady time."""
        if received != self._received:
            self._received, self._unused_since_s = received, now_s
        parts = self._pulls, self._bulk, self.admin
        if (
            now_s - self._unused_since_s < REST_AFTER_S
            or self._machine.state is not SERVING
            # Perhaps only this worker knows to whom the ids of publishers belong: it stores this later.
            or self._publishers.machine is not None
            or self._bounds.mirror is not None
            or self._end_in_doubt
            or self._mirrors_waiting
            or not all(part is None or part.is_idle for part in parts)
        ):
            return None
        bounds, (name, partition) = self._bounds, self.identity
        # No worker uses the size of the stored row.
        ends = bounds.first_index, bounds.next_index
        record = StreamRecord(bounds.stream_id, name, partition, *ends, size_bytes=0, created_us=bounds.created_us)
        return StoredStream(record, self.last_time_us, self.admin.retention)

    def receive(self, run: Sequence[Message]) -> None:
        # The pushes to a mirror go on to the mirror's source.
        if self._bounds.is_mirror and self._services.pass_on is not None:
            run = self._services.pass_on(self.identity, run)
        self._decode(run)
        self._proceed()
        if not self._machine.accepts or (self._pulls is not None and self._pulls.is_full):
            self.context.pause()

    # Requests

    def _decode(self, run: Sequence[Message]) -> None:
        """Gathers the pushes of a run for the next append, and serves its other requests, up to one that must wait."""
        machine, gathered = self._machine, self._gathered
        stages = machine.state is not SERVING
        staged_before, pushes_before = len(gathered.data), len(gathered)
        if not gathered.messages:
            gathered.began_s = time.perf_counter()
        push_tag, batch_tag, limits = PUSH.tag, PUSH_BATCH.tag, self._services.limits
        unchecked_bytes = min(limits.message_bytes_max, UNCHECKED_BYTES)
        for position, message in enumerate(run):
            payload = message.payload
            try:
                if len(payload) > unchecked_bytes:
                    check_payload(message, limits)
                # Nearly all messages are plain pushes or batches, so these take a short cut past the table.
                if payload.startswith(push_tag):
                    gathered.add(message, decode_push(payload))
                    continue
                if payload.startswith(batch_tag) and len(gathered.data) < STAGED_MESSAGES_MAX:
                    gathered.add_batch(message, decode_batch(payload))
                    continue
                served = find_served(payload)
                if stages and not (isinstance(served, Write) and served.stages):
                    # This request must run after all earlier pushes are stored. So this request and the later messages
                    # wait.
                    machine.hold(run[position:])
                    break
                if served is None:
                    raise not_served(payload)
                if isinstance(served, Read):
                    served.serve(self, message)
                elif not served.serve(self, message):
                    # The gathered pushes must be stored first, or the sequence numbers that this push needs are being
                    # read.
                    machine.hold(run[position:])
                    break
                elif not stages and machine.state is not SERVING:
                    # The request has begun a write of its own. The later messages wait until this has ended.
                    machine.hold(run[position + 1 :])
                    break
            except ProtocolError as error:
                self._services.counters.refuse(self, message, str(error), refusal_payload(message, str(error)))
        if self._traces is not None:
            gathered.find_traces(self._traces, pushes_before)
        if stages:
            staged = gathered.data[staged_before:]
            machine.stage(len(staged), sum(map(len, staged)))

    # The writes of `served_messages`. Each returns False if the message must wait.

    def hold_push(self, message: Message) -> bool:
        # `_decode` gathers every other push. A mailbox of batches has far more pushes than one of plain pushes, so
        # batches above STAGED_MESSAGES_MAX wait undecoded.
        return False

    def note_trace(self, message: Message) -> bool:
        # A node that does not trace drops the message.
        if self._traces is not None:
            self._traces.announce(message)
        return True

    def gather_rich(self, message: Message) -> bool:
        request = check_size(RICH_PUSH.decode_request(message.payload), self._services.limits)
        if self._bounds.refusal is not None:
            # A mirror stores no push, so it reads no sequence numbers: they belong to its source.
            request = msgspec.structs.replace(request, sequence=None)
        if request.sequence is not None and self._publishers.machine is None:
            # The stored sequence numbers are read at the first push that has one, and again after they were forgotten.
            # The pushes that are gathered already are stored before.
            if not self._gathered.messages:
                self._send_answers_behind()
                self._machine.begin(LOADING)
                self._publishers.load(self.context.guard(self._sequences_loaded))
            return False
        self._publishers.claim(message, request)
        self._gathered.add_rich(message, request)
        return True

    def _answer_behind(self, message: Message, payload: bytes) -> None:
        # If a client got the answer to a create before the confirm of its earlier push, it would take the push for lost
        # and send it again.
        self._gathered.answers_behind.append(reply_to(message, message.onward_route[0], payload))

    def _proceed(self) -> None:
        """Goes on until an activity is under way, or nothing waits."""
        machine = self._machine
        while machine.state is SERVING:
            if self._gathered.messages:
                self._append(self._take_gathered())
            elif machine.held:
                self._decode(machine.take_held())
            else:
                # All earlier pushes are stored or refused, so pulls may be answered.
                self._send_answers_behind()
                if self._pulls is not None:
                    self._pulls.answer()
                return

    def _settle(self) -> None:
        """Continues after an activity has ended: serves the messages that waited for it."""
        self._count_growth()
        machine, gathered = self._machine, self._gathered
        if machine.state is SERVING:
            # Mostly nothing waits, and a call for each of ten thousand streams costs.
            if gathered.messages or gathered.answers_behind or machine.held or self._pulls is not None:
                self._proceed()
        else:
            # The next append is submitted already. It has only pushes that came after the waiting pulls.
            if self._pulls is not None:
                self._pulls.answer()
        if self._machine.accepts and not (self._pulls is not None and self._pulls.is_full):
            self.context.resume()
        else:
            self.context.pause()

    def _maybe_resume(self) -> None:
        if self._machine.accepts:
            super()._maybe_resume()

    # Appends

    def _take_gathered(self) -> PushRun:
        gathered, self._gathered = self._gathered, PushRun(self._publishers.machine)
        return gathered

    def _append(self, pushes: PushRun) -> None:
        """Submits the append of these pushes. Answers them if there is nothing to store, refuses them without room."""
        services = self._services
        if self._bounds.refusal is not None:
            refused = BatchFailure(Outcome.NOT_STORED, self._bounds.refusal)
            services.counters.refused += len(pushes)
            self._send_late(pushes.refused(self._route, refused))
            return
        # Without data, all pushes are duplicates or out of order, and are answered without a write.
        if not pushes.data:
            pushes.remember(self._bounds.next_index)
            self.context.send_run(pushes.stored(self._bounds.next_index, self._route))
            return
        refusal = services.counters.find_no_room(pushes.data)
        if refusal is not None:
            self._refuse(pushes, BatchFailure(Outcome.NOT_STORED, refusal))
            return
        # From here on, the messages that come wait, or are staged for the next append, until this append has ended.
        place = self._machine.begin_append(len(pushes.data), services.now_us())
        # Pulls that came after these pushes must see them, so no pull is answered before the append has ended.
        if self._pulls is not None:
            self._pulls.hold()
        self._submitted, done = pushes, self._on_appended
        where = self._bounds.stream_id, place.first_index, place.time_us
        what, notes = (pushes.data, pushes.keys, pushes.headers), pushes.notes(place.first_index)
        falls = place.falls_from_us is not None
        if falls:
            name, partition = self.identity
            before_us, to_us = place.falls_from_us, place.time_us
            logger.warning("time_falls", stream=name, partition=partition, before_us=before_us, to_us=to_us)
        if falls or notes:
            services.storage.submit_write(NotedAppend(*where, *what, falls=falls, publishers=notes, on_done=done))
        else:
            services.storage.submit_write(Append(*where, *what, on_done=done))

    def _appended(self, operation: Append) -> None:
        pushes, self._submitted = self._submitted, None
        assert pushes is not None, "no append is under way"
        if operation.error is not None:
            self._append_failed(pushes, operation)
            return
        self._machine.end_append(len(pushes.data))
        self._tail.append(operation)
        self._services.counters.stored(len(pushes), pushes.waited_s())
        if self._pulls is not None:
            self._pulls.wake()
        # This comes first: the next append can be refused at once, and then forgets the numbers that are not stored.
        pushes.remember(operation.first_index)
        # The next append is submitted first, so that the writing thread works on it while the confirms are encoded.
        if self._gathered.messages:
            self._append(self._take_gathered())
        self.context.send_run(pushes.stored(operation.first_index, self._route, operation))
        self._publishers.note(self.context)
        self._settle()

    def _append_failed(self, pushes: PushRun, operation: Append) -> None:
        error = operation.error
        assert error is not None, "the append has not failed"
        self._machine.end_append(0)
        failure = BatchFailure(Outcome.UNKNOWN if error.in_doubt else Outcome.NOT_STORED, str(error))
        if isinstance(error, IndexConflict | UnknownStreamId):
            # The disk is not the reason, so the answers need no delay: the stream is deleted, or is read again below.
            self.context.send_run(pushes.refused(self._route, failure))
        else:
            self._refuse(pushes, failure)
        self._end_failed(error, restarts=self._is_foreign(error))

    # The end of every write that has failed: an append, a copy or a change

    def _is_foreign(self, error: StorageError) -> bool:
        """Whether another part of the program has written to the stream, and no write of this worker is in doubt."""
        return isinstance(error, IndexConflict) and not self._end_in_doubt

    def _end_failed(self, error: StorageError | None, *, restarts: bool) -> None:
        """Goes on after a failed write, which the caller has answered and ended in the machine.

        restarts: whether the error crashes the worker, so that it starts again and reads the stream again.
        """
        if error is not None and restarts:
            raise error
        # 1. Nobody knows whether the write is stored: look where the stream ends.
        if isinstance(error, CommitUnsettled) and not self._end_in_doubt:
            self._end_in_doubt = True
            self._search_end()
        # 2. Go on at the end that an earlier search has found.
        self._adopt_end()
        # 3. Pushes that were staged behind a failed append become the next append.
        if self._gathered.messages:
            self._append(self._take_gathered())
        self._settle()

    def _search_end(self) -> None:
        """Reads where the stream ends, because messages are in doubt. Meanwhile, they count as not stored. This is
        safe: the storage refuses an append that does not begin at the end."""

        def found(operation: Do[StoredStream]) -> None:
            if isinstance(operation.error, CommitUnsettled | DatabaseLost):
                self.context.call_later(self._services.limits.error_delay_s, self._search_end)
            elif operation.error is not None:
                raise operation.error
            elif operation.result.record.next_index == self._bounds.next_index:
                self._end_in_doubt = False
            else:
                self._found_end = operation.result
                self._adopt_end()
                self._settle()

        # This is a write, so it comes after the transaction that is in doubt, and before all later appends.
        stream_id = self._bounds.stream_id
        work = Do(lambda session: stored_stream(session, session.log.get_stream(stream_id)), self.context.guard(found))
        # A storage that is closed belongs to a node that is stopping.
        with suppress(StorageClosed):
            self._services.storage.submit_write(work)

    def _adopt_end(self) -> None:
        """Goes on at the end that was found after messages in doubt, if it is found and no activity is under way."""
        # An activity that is under way has begun at the former end, where an append cannot succeed.
        found = self._found_end
        if found is not None and self._machine.state is SERVING:
            self._found_end, self._end_in_doubt = None, False
            self._machine.move_end(found.record.next_index, found.last_time_us)
            # The sequence numbers of publishers are read again, and the tail must not have gaps.
            self._publishers.forget()
            if not self._gathered.messages:
                self._gathered = PushRun(None)
            self._tail.clear()
            if self._pulls is not None:
                self._pulls.wake()

    def _refuse(self, pushes: PushRun, failure: BatchFailure) -> None:
        """Answers pushes that failed, after a delay, because a real publisher sends a failed push again at once."""
        answers = pushes.refused(self._route, failure)
        (name, partition), reason = self.identity, failure.reason
        self._services.counters.not_stored(len(pushes), sum(map(len, pushes.data)), reason)
        known = {"pushes": len(pushes), "outcome": failure.outcome.name.lower(), "reason": reason}
        logger.error("push_failed", stream=name, partition=partition, **known)
        self._send_late(answers)

    def _send_answers_behind(self) -> None:
        gathered = self._gathered
        if gathered.answers_behind:
            answers, gathered.answers_behind = gathered.answers_behind, []
            self.context.send_run(answers)

    # Copies

    def copy(self, message: Message) -> bool:
        copy = read_copy(message.payload, self._services.limits)
        if self._bounds.refusal is not None:
            raise ProtocolError(self._bounds.refusal)
        if self._gathered.messages:
            # The pushes before the copy must get their indexes first.
            return False
        self._send_answers_behind()
        machine = self._machine
        # The client asks again with the right index. Storing at another index would change the indexes of the messages.
        if not machine.can_copy(copy.index):
            self.context.send(self._copy_answer(message, copy, stored=False))
            return True
        refusal = self._services.counters.find_no_room([each.data for each in copy.messages])
        if refusal is not None:
            self._refuse_copy(message, refusal)
            return True
        machine.begin(COPYING)
        if self._pulls is not None:
            self._pulls.hold()
        times = {"last_time_us": machine.last_time_us, "now_us": self._services.now_us()}
        begins = machine.begins_with(copy.index)
        done = self.context.guard(partial(self._copied, message, copy))
        self._services.storage.submit_write(
            StoreCopy(copy, self._bounds.stream_id, begins=begins, **times, on_done=done)
        )
        return True

    def _copied(self, message: Message, copy: CopyRequest, operation: StoreCopy) -> None:
        error = operation.error
        if error is not None:
            self._machine.end_copy(copy.index, 0, 0)
            restarts = self._is_foreign(error)
            if restarts:
                # A restart forgets the late answers.
                self.reply(message, failed_payload(str(error)))
            else:
                self._refuse_copy(message, str(error))
            self._end_failed(error, restarts=restarts)
            return
        self._machine.end_copy(copy.index, len(copy.messages), operation.last_time_us)
        # The copied messages are not in the tail, and a tail must not have gaps.
        self._tail.clear()
        if self._pulls is not None:
            self._pulls.wake()
        self.context.send(self._copy_answer(message, copy, stored=True))
        self._settle()

    def _refuse_copy(self, message: Message, reason: str) -> None:
        name, partition = self.identity
        logger.error("copy_failed", stream=name, partition=partition, reason=reason)
        self._refuse_later(message, reason)

    def _copy_answer(self, message: Message, copy: CopyRequest, *, stored: bool) -> Message:
        response = CopyResponse(copy.request_id, stored, self._bounds.next_index)
        return reply_to(message, self.context.address, COPY.encode_response(response))

    # Changes of the whole stream

    def change(self, work: Callable[[Session, StreamChange[Any]], T], then: Callable[[StreamChange[T]], None]) -> bool:
        """Begins a change of the whole stream. Returns False, and begins nothing, if something else is under way. While
        the change runs, no push is stored. work: makes the change, see `StreamChange`. then: called when the change is
        stored or has failed, before the worker goes on or restarts."""
        if self._machine.state is not SERVING or self._gathered.messages:
            return False
        self._send_answers_behind()
        self._machine.begin(CHANGING)
        # If a part of the node has called this method outside `receive`, the mailbox is still open.
        self.context.pause()
        if self._pulls is not None:
            self._pulls.hold()
        changed = self.context.guard(partial(self._changed, then))
        self._services.storage.submit_write(StreamChange(self._bounds.stream_id, work, changed))
        return True

    def _changed(self, then: Callable[[StreamChange[T]], None], operation: StreamChange[T]) -> None:
        error, record = operation.error, operation.record
        if error is not None or record is None:
            self._machine.end_change(None, 0)
            then(operation)
            self._end_failed(error, restarts=_restarts_after(error))
            return
        # The result of an earlier search of the end is dropped, because this operation knows a later end.
        if self._found_end is not None:
            self._found_end, self._end_in_doubt = None, False
        self._machine.end_change(record, operation.last_time_us)
        self._bounds.set_history(operation.history)
        self._bounds.set_mirror(operation.mirror, self.identity[0])
        # The sequence numbers of publishers are read again from what is stored now.
        self._publishers.forget()
        self._gathered = PushRun(None)
        self._publishers.note(self.context)
        if not operation.appended:
            self._tail.clear()
        for append in operation.appended:
            self._tail.append(append)
        if self._pulls is not None:
            self._pulls.wake()
        then(operation)
        self._settle()

    def change_role(self, message: Message) -> bool:
        request = read_role(message.payload)
        wanted = request.change
        if wanted is not None and self._services.role_changed is None:
            raise ProtocolError(
                "the streams of this node cannot become mirrors: it is a member of a cluster, has several workers, or "
                "stops"
            )
        if isinstance(wanted, BePrimary) and self._bounds.is_mirror and not request.force:
            raise ProtocolError("only the node itself knows whether it has everything; use force, or `mirror promote`")

        def changed(operation: RoleChanged) -> None:
            if operation.error is not None or operation.record is None:
                self.reply(message, failed_payload(f"the role cannot be changed: {operation.error}"))
                return
            can_change = self._services.role_changed is not None and self._services.may_follow(
                message.origin, self.identity[0]
            )
            response = role_response(request.request_id, operation, can_change)
            if wanted is not None:
                name, partition = self.identity
                to = {"role": response.role.name.lower(), "source": response.source, **message.origin.who}
                logger.warning("role_changed", stream=name, partition=partition, at=response.next_index, **to)
                log_given_up(self.identity, operation)
            self.reply(message, ROLE.encode_response(response))
            # A request that only asks must not begin the task of a mirror anew.
            if wanted is not None and self._services.role_changed is not None:
                self._services.role_changed(self.identity, operation.mirror)

        was_mirror, now_us = self._bounds.is_mirror, self._services.now_us()

        def work(session: Session, change: RoleChanged) -> MirrorRow | None:
            # Without `force`, this stream must fence its former source first, and a planned promotion waits for that.
            # With `force`, another primary takes pushes already, so this stream gives up its fence and takes none. Its
            # former source asks this node when it returns.
            given_up = store_role(session, change, wanted, force=request.force, gives_up_fence=request.force)
            if isinstance(wanted, BePrimary) and was_mirror:
                # New messages get the indexes before the positions that lie beyond the end.
                end = session.log.get_stream(change.stream_id).next_index
                lower = self._services.lower_positions
                lower(session, *self.identity, end, now_us, renews_all=wanted.fences)
            return given_up

        return self.change(work, changed)

    def append_expected(self, message: Message) -> bool:
        arrived_s = time.perf_counter()
        request = read_append(message.payload, self._services.limits)
        counters, data = self._services.counters, [each.data for each in request.messages]
        data_bytes = sum(map(len, data))
        if self._bounds.hold is not None and not self._bounds.is_mirror:
            counters.refused += 1
            self._refuse_later(message, self._bounds.hold)
            return True
        if self._gathered.messages:
            # The pushes before the append must be stored first.
            return False
        refusal = counters.find_no_room(data)
        if refusal is not None:
            counters.not_stored(len(data), data_bytes, refusal)
            self._refuse_later(message, refusal)
            return True

        def appended(operation: StreamChange[AppendStatus]) -> None:
            error = operation.error
            if error is not None or operation.record is None:
                # The disk is not the reason if the stream is deleted, or is read again.
                if not isinstance(error, IndexConflict | UnknownStreamId):
                    counters.not_stored(len(data), data_bytes, str(error))
                if _restarts_after(error):
                    # A restart forgets the late answers.
                    self.reply(message, failed_payload(str(error)))
                else:
                    self._refuse_later(message, str(error))
                return
            if operation.result is AppendStatus.OK:
                counters.stored(len(data), time.perf_counter() - arrived_s)
            counters.refused += operation.result is AppendStatus.REFUSED
            entry_id = operation.history[-1].entry_id
            response = AppendResponse(request.request_id, operation.result, operation.record.next_index, entry_id)
            self.reply(message, APPEND.encode_response(response))

        return self.change(partial(append_expected, request=request, now_us=self._services.now_us()), appended)

    def _refuse_later(self, message: Message, reason: str) -> None:
        self._send_late([reply_to(message, self.context.address, failed_payload(reason))])

    # Sequence numbers

    def _sequences_loaded(self, operation: Do[KnownSequences]) -> None:
        self._machine.end(LOADING)
        if operation.error is not None:
            failure = BatchFailure(Outcome.NOT_STORED, f"the stream cannot be read: {operation.error}")
            self._refuse_held(self._machine.take_held(), failure)
            raise operation.error
        # The waiting pushes with sequence numbers are gathered into a PushRun that knows these numbers.
        self._gathered = PushRun(self._publishers.loaded(operation.result))
        self._adopt_end()
        self._settle()

    def _refuse_held(self, held: Sequence[Message], failure: BatchFailure) -> None:
        answers = []
        for message in held:
            try:
                payload = failure_payload(message, failure)
            except ProtocolError as error:
                # Messages are held undecoded, so this one can turn out to be malformed.
                payload = error_payload(str(error))
            answers.append(reply_to(message, self.context.address, payload))
        self.context.send_run(answers)


def _restarts_after(error: StorageError | None) -> bool:
    """Whether a change with this error restarts the worker: only the stored stream shows then what was written."""
    return error is not None and (error.in_doubt or isinstance(error, IndexConflict))


def log_given_up(identity: tuple[str, int], operation: RoleChanged) -> None:
    """Logs that a stream became a mirror before it fenced its former source: that source may take pushes later."""
    if operation.result is not None:
        name, partition = identity
        logger.warning("fence_given_up", stream=name, partition=partition, source=operation.result.source)


def role_response(request_id: int, change: RoleChanged, can_change: bool) -> RoleResponse:
    assert change.record is not None, "the change has ended"
    mirror = change.mirror if change.mirror is not None and change.mirror.follows else None
    next_index = change.record.next_index
    return RoleResponse(
        request_id,
        role=Role.PRIMARY if mirror is None else Role.MIRROR,
        source="" if mirror is None else mirror.source,
        stream_name="" if mirror is None else mirror.source_name,
        entry_id=change.history[-1].entry_id if change.history else 0,
        next_index=next_index,
        lag=0 if mirror is None else max(0, mirror.source_next_index - next_index),
        can_change=can_change,
    )


REST_AFTER_S = 60.0
"""The worker of a stream that nobody has needed for this long ends, until somebody needs it."""
