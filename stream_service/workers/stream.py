"""The worker of one stream-partition: it alone assigns indexes, confirms what is on disk, and answers pulls.

It takes its mailbox in runs. All pushes of a run are one append; while that commits, the mailbox waits, so that the
next run is as large as the commit was long. It keeps no messages and knows nothing of consumers.

What a peer may rely on: pushes are confirmed in the order in which they came, pulls are answered in the order in which
they came, and a pull sees every push that came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from ockam.address import Address
from ockam.message import Message
from ockam.protocol import ProtocolError, error_payload, find_name
from ockam.worker import Worker
from storage.contract import Append, Operation, StreamRecord
from storage.errors import IndexConflict, StorageError
from storage.runner import Runner
from stream_service import protocol
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.operations import EnsureStreams
from stream_service.protocol import PULL, PUSH, PushConfirm, PushRequest, Status
from stream_service.workers.pulls import PullQueue, StreamEnd

logger = structlog.get_logger(__name__)


class StreamWorker(Worker):
    """Serves push, pull and create (idempotent) at the stream's own address.

    record: the stream as stored, where the caller has just read it; None after a crash, and then it is read again
    behind whatever the worker's earlier life left in the writing thread.
    Invariant: at most one append and one read are under way; while an append is, or too many pulls wait, the
    mailbox is paused.
    """

    def __init__(
        self,
        name: str,
        partition: int,
        record: StreamRecord | None,
        storage: Runner,
        limits: StreamLimits,
        now_us: Callable[[], int],
        counters: StreamCounters,
    ) -> None:
        self._name = name
        self._partition = partition
        self._record = record
        self._storage = storage
        self._limits = limits
        self._now_us = now_us
        self._counters = counters
        self._end = StreamEnd(record.stream_id, record.next_index) if record is not None else StreamEnd(0, 0)
        self._route: tuple[Address, ...] = ()
        self._pulls = PullQueue(self, self._end, storage, limits, counters, self._maybe_resume)
        self._appending = False

    @property
    def identity(self) -> tuple[str, int]:
        """Name and partition."""
        return self._name, self._partition

    def started(self) -> None:
        self._route = (self.context.address,)
        if self._record is None:
            self.context.pause()
            self._storage.submit_write(
                EnsureStreams(self._name, (self._partition,), self._now_us(), on_done=self.context.guard(self._loaded))
            )

    def receive(self, run: Sequence[Message]) -> None:
        pushes: list[Message] = []
        requests: list[PushRequest] = []
        push_tag, decode_push = PUSH.tag, PUSH.decode_request
        for message in run:
            payload = message.payload
            if not payload.startswith(push_tag):
                self._receive_other(message)
                continue
            try:
                requests.append(decode_push(payload))
            except ProtocolError as error:
                self._counters.refuse(self, message, str(error))
            else:
                pushes.append(message)
        if pushes:
            self._append(pushes, requests)
        else:
            self._pulls.answer()
            if self._pulls.full:
                self.context.pause()

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        """A failed push is told by its confirm, never by `error`: a real producer would publish an `error` back."""
        if not PUSH.is_in(message.payload):
            return error_payload(reason)
        request_id = PUSH.decode_request(message.payload).request_id
        return PUSH.encode_response(PushConfirm(request_id, Status.ERROR, 0))

    def _receive_other(self, message: Message) -> None:
        payload = message.payload
        try:
            if PULL.is_in(payload):
                self._pulls.add(message, PULL.decode_request(payload))
                return
            self.reply(message, self._describe(payload))
        except ProtocolError as error:
            self._counters.refuse(self, message, str(error))

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

    def _append(self, pushes: list[Message], requests: list[PushRequest]) -> None:
        self._appending = True
        self.context.pause()
        data = [request.data for request in requests]
        self._storage.submit_write(
            Append(
                self._end.stream_id,
                self._end.next_index,
                self._now_us(),
                data,
                on_done=self.context.guard(lambda operation: self._appended(operation, pushes, requests)),
            )
        )

    def _appended(self, operation: Operation, pushes: list[Message], requests: list[PushRequest]) -> None:
        self._appending = False
        if operation.error is None:
            self._confirm(pushes, requests, Status.OK, self._end.next_index)
            self._end.next_index += len(pushes)
            self._counters.write_failure = None
        else:
            self._refuse(pushes, requests, operation.error)
            if isinstance(operation.error, IndexConflict):
                raise operation.error
        self._pulls.answer()
        self._maybe_resume()

    def _maybe_resume(self) -> None:
        if not self._appending and not self._pulls.full:
            self.context.resume()

    def _loaded(self, operation: EnsureStreams) -> None:
        if operation.error is not None:
            raise operation.error
        (record,) = operation.records
        self._end.stream_id, self._end.next_index = record.stream_id, record.next_index
        self.context.resume()

    def _refuse(self, pushes: list[Message], requests: list[PushRequest], error: StorageError) -> None:
        self._counters.pushes_failed += len(pushes)
        self._counters.write_failure = str(error)
        logger.error("push_failed", stream=self._name, partition=self._partition, pushes=len(pushes), reason=str(error))
        self.context.call_later(self._limits.error_delay_s, lambda: self._confirm(pushes, requests, Status.ERROR, None))

    def _confirm(
        self, pushes: list[Message], requests: list[PushRequest], status: Status, first_index: int | None
    ) -> None:
        """Answer each push, in order; the messages are on disk by now, or they never will be (first_index None)."""
        encode, route = PUSH.encode_response, self._route
        step = 0 if first_index is None else 1
        index = first_index or 0
        answers = []
        for message, request in zip(pushes, requests, strict=True):
            confirm = encode(PushConfirm(request.request_id, status, index))
            answers.append(Message(message.return_route, route, confirm))
            index += step
        self.context.send_run(answers)
