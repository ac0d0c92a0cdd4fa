"""StreamManagement: describes one stream, sets its retention, truncates it and deletes it.

Messages are deleted in steps. Each step is a short transaction, so that pushes can be stored between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from ockam.actors.message import HERE, Message
from ockam.protocol import Protocol, ProtocolError, error_payload, failed_payload
from stream_service import extensions, mirror_rows, stored
from stream_service.extensions import DeleteResponse
from stream_service.operations import describe, find_cut, truncate_step
from stream_service.publisher_rows import forget_publishers
from stream_service.workers.clock import Clock
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_services import StreamServices
from stream_storage.contract import Do, DoLittle, Operation, Session, StreamRecord
from stream_storage.errors import StorageBusy, StorageClosed, StorageError, UnknownStreamId
from stream_storage.history import forget_history

if TYPE_CHECKING:
    from ockam.actors.worker import Worker

MOVED = "the stream has moved to another node of the cluster; ask again"

logger = structlog.get_logger(__name__)

Finish = Callable[[int, StorageError | None], None]
"""Called when a truncation has ended, with the number of deleted messages, and the error that ended it or None."""


def usable_retention(retention: extensions.Retention | None, clock: Clock) -> extensions.Retention | None:
    """Returns the limits that can be applied now: while the clock is in doubt, no message is too old."""
    if retention is not None and retention.age_s is not None and clock.in_doubt:
        return msgspec.structs.replace(retention, age_s=None)
    return retention


def find_kept(session: Session, *, stream_id: int, retention: extensions.Retention, now_us: int) -> int:
    """Returns the index before which a stream deletes its messages. Raises UnknownStreamId."""
    return stored.first_index_kept(session, session.log.get_stream(stream_id), retention, now_us)


class StreamManagement:
    """Serves the requests of `served_messages` by which one stream is managed. Each deletion writes one log line.

    The methods that take a message raise ProtocolError if it cannot be decoded or is not valid. The argument `under` is
    the protocol of the answer.

    Invariant: at most one step of a truncation is under way. `_cuts` contains the truncations that have not ended: the
    first is under way, and the others wait.
    """

    __slots__ = (
        "_bounds",
        "_cuts",
        "_cutting",
        "_has_ended",
        "_identity",
        "_next_before",
        "_removed",
        "_services",
        "_under_way",
        "_worker",
        "retention",
    )

    def __init__(
        self,
        worker: Worker,
        identity: tuple[str, int],
        bounds: StreamBounds,
        services: StreamServices,
        removed: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._bounds = bounds
        self._services = services
        self._removed = removed
        self._identity = identity
        self._cuts: list[tuple[int, Finish]] = []
        self._cutting = False
        self._next_before = bounds.next_index
        self._has_ended = False
        self._under_way = 0
        self.retention: extensions.Retention | None = None

    @property
    def is_idle(self) -> bool:
        """False while an operation is under way whose end changes this object."""
        return not self._under_way and not self._cuts

    @property
    def _log(self) -> Any:
        name, partition = self._identity
        return logger.bind(stream=name, partition=partition)

    def _until(self, ended: Callable[[Any], None]) -> Callable[[Any], None]:
        """Counts an operation as under way. Returns its `on_done`, which takes it off the count and calls `ended`."""
        self._under_way += 1

        def done(operation: Any) -> None:
            self._under_way -= 1
            ended(operation)

        return self._worker.context.guard(done)

    def describe(self, message: Message) -> None:
        self._tell(message, extensions.INFO, extensions.INFO.decode_request(message.payload).request_id)

    def _check_may_change(self) -> None:
        """Raises ProtocolError if the stream is a mirror, or is held (`StreamDirectory.hold`) and stores nothing."""
        if self._bounds.refusal is not None:
            way = "; `mirror remove` makes it a stream of its own" if self._bounds.is_mirror else ""
            raise ProtocolError(f"{self._bounds.refusal}{way}")

    def end(self) -> None:
        """Ends all truncations after their present step, because another worker serves the stream from now on, here or
        at another node. Safe to repeat."""
        self._has_ended = True
        self._services.counters.retaining.pop(self._bounds.stream_id, None)

    def apply_retention(self, default: extensions.Retention | None) -> None:
        """Deletes the messages that exceed the stream's retention, or `default` if it has none of its own."""
        retention = usable_retention(self.retention or default, self._services.clock)
        if self._cuts:
            # While a truncation is under way, retention waits for its next round.
            return
        # An empty stream has nothing to delete. A mirror deletes what its source has deleted, and nothing else. A
        # stream that is held may become a mirror.
        if retention is None or self._bounds.refusal is not None or self._bounds.first_index == self._bounds.next_index:
            self._services.counters.retaining.pop(self._bounds.stream_id, None)
            return

        def cut(found: Do[int]) -> None:
            if found.error is None and found.result > self._bounds.first_index and not self._has_ended:
                self._services.counters.retaining.setdefault(self._bounds.stream_id, time.monotonic())
                self._cut(found.result, retained)
            else:
                self._services.counters.retaining.pop(self._bounds.stream_id, None)

        def retained(deleted: int, error: StorageError | None) -> None:
            if error is not None:
                self._log.error("retention_failed", deleted=deleted, reason=str(error))
                return
            end = self._bounds.first_index
            self._log.info("retention_applied", deleted=deleted, from_index=end - deleted, before_index=end)
            # A limit by size measures only SIZES_MAX messages at a time, so there may be more to delete.
            if deleted >= stored.SIZES_MAX:
                self.apply_retention(default)
            else:
                self._services.counters.retaining.pop(self._bounds.stream_id, None)

        now_us = self._services.clock.time_us()
        find = partial(find_kept, stream_id=self._bounds.stream_id, retention=retention, now_us=now_us)
        self._services.storage.submit_read(Do(find, self._until(cut)))

    def follow(self, first_index: int) -> None:
        """Deletes the messages of a mirror before this index. During a truncation, deletes nothing: the caller repeats
        the call with a later page of the source."""

        def finished(deleted: int, error: StorageError | None) -> None:
            if error is not None:
                self._log.error("truncation_not_followed", deleted=deleted, reason=str(error))

        if not self._cuts:
            self._cut(first_index, finished)

    def _tell(self, message: Message, under: Protocol[Any, extensions.InfoResponse], request_id: int) -> None:
        def told(found: Do[extensions.StreamInfo]) -> None:
            if found.error is not None:
                self._refuse(message, found.error)
            else:
                self._worker.reply(message, under.encode_response(extensions.InfoResponse(request_id, found.result)))

        stream_id = self._bounds.stream_id
        work = Do(lambda session: describe(session, session.log.get_stream(stream_id)), self._until(told))
        self._services.storage.submit_read(work)

    def truncate(self, message: Message) -> None:
        self._check_may_change()
        request = extensions.TRUNCATE.decode_request(message.payload)

        def finished(deleted: int, error: StorageError | None) -> None:
            first_index = self._bounds.first_index - deleted
            if error is not None:
                self._fail(message, deleted, first_index, error)
                return
            self._note("stream_truncated", message, deleted, first_index)
            response = extensions.TruncateResponse(request.request_id, deleted, self._bounds.first_index)
            self._worker.reply(message, extensions.TRUNCATE.encode_response(response))

        def found(cut: Do[int]) -> None:
            if cut.error is not None:
                self._refuse(message, cut.error)
            else:
                self._cut(cut.result, finished)

        work = partial(find_cut, stream_id=self._bounds.stream_id, before=request.before)
        self._services.storage.submit_read(Do(work, self._until(found)))

    def delete(self, message: Message, under: Protocol[Any, DeleteResponse]) -> None:
        self._check_may_change()
        request: extensions.DeleteRequest = under.decode_request(message.payload)
        keeps_positions = not isinstance(request, extensions.DeleteAllRequest) or request.keeps_positions
        stream_id, first_index = self._bounds.stream_id, self._bounds.first_index

        def remove(session: Session) -> None:
            session.log.delete_stream(stream_id)
            stored.forget_falls(session, stream_id)
            forget_history(session, stream_id)
            mirror_rows.forget_rows(session, stream_id)
            forget_publishers(session, stream_id)
            if not keeps_positions:
                self._services.forget_positions(session, *self._identity)

        def emptied(deleted: int, error: StorageError | None) -> None:
            if error is not None:
                self._fail(message, deleted, first_index, error)
                return
            # Messages that were pushed after the truncation began are deleted together with the stream, and counted
            # too.
            left = self._bounds.next_index - self._bounds.first_index
            gone = self._until(lambda operation: removed(operation, deleted + left))
            self._services.storage.submit_write(DoLittle(remove, gone))

        def removed(operation: Operation, deleted: int) -> None:
            if operation.error is not None and not isinstance(operation.error, UnknownStreamId):
                self._fail(message, deleted, first_index, operation.error)
                return
            self._services.counters.retaining.pop(stream_id, None)
            self._note("stream_deleted", message, deleted, first_index)
            self._worker.reply(message, under.encode_response(DeleteResponse(request.request_id, deleted)))
            self._removed()

        # The messages are deleted first, in steps: deleting all of them with the stream would be one long transaction.
        self._cut(self._bounds.next_index, emptied)

    def retain(self, message: Message) -> None:
        self._check_may_change()
        request = extensions.RETENTION.decode_request(message.payload)
        retention = request.retention
        if retention == extensions.Retention():
            raise ProtocolError("a retention without any limit; leave it out to return to the node's default")

        def changed(operation: Operation) -> None:
            if operation.error is not None:
                self._refuse(message, operation.error)
                return
            kept = None if retention is None else msgspec.to_builtins(retention)
            self._log.info("retention_set", retention=kept, **message.origin.who)
            self._tell(message, extensions.RETENTION, request.request_id)

        self.set_retention(retention, self._until(changed))

    def set_retention(self, retention: extensions.Retention | None, then: Callable[[Operation], None]) -> None:
        """Stores the retention of the stream. then: called when it is stored, or has failed."""

        def changed(operation: Operation) -> None:
            if operation.error is None:
                self.retention = retention
            then(operation)

        stream_id = self._bounds.stream_id
        self._services.storage.submit_write(
            DoLittle(lambda session: stored.set_retention(session, stream_id, retention), changed)
        )

    def _note(self, event: str, message: Message, deleted: int, first_index: int) -> None:
        """Logs a truncation or a deletion. first_index: the index of the first deleted message."""
        end = first_index + deleted
        known = {"deleted": deleted, "from_index": first_index, "before_index": end, **message.origin.who}
        # Deletions by the node's own workers are no acts of an operator, and happen often.
        (self._log.debug if message.origin is HERE else self._log.info)(event, **known)

    def _fail(self, message: Message, deleted: int, first_index: int, error: StorageError) -> None:
        """Refuses a truncation or a deletion that failed, and logs it if it had deleted messages."""
        if deleted:
            end = first_index + deleted
            known = {"deleted": deleted, "from_index": first_index, "before_index": end, **message.origin.who}
            self._log.error("stream_truncated", **known, reason=str(error))
        self._refuse(message, error)

    def _cut(self, index: int, finish: Finish) -> None:
        """Deletes the messages before `index` in steps, after all earlier truncations have ended."""
        self._cuts.append((index, finish))
        if not self._cutting:
            self._next_step(0)

    def _next_step(self, deleted: int) -> None:
        index = self._cuts[0][0]
        if self._has_ended:
            self._finish(deleted, StorageBusy(MOVED))
            return
        # Another truncation may have deleted these messages already.
        if self._bounds.first_index >= min(index, self._bounds.next_index):
            self._finish(deleted, None)
            return
        self._cutting = True
        # A step deletes more messages than were pushed since the previous step, so that it keeps up with publishers.
        pushed, self._next_before = self._bounds.next_index - self._next_before, self._bounds.next_index
        limits = self._services.limits
        messages_max = max(limits.truncate_step_messages, min(2 * pushed, limits.truncating_messages))
        stepped = self._worker.context.guard(lambda step: self._stepped(step, deleted))

        def submit() -> None:
            work = partial(
                truncate_step,
                stream_id=self._bounds.stream_id,
                index=index,
                messages_max=messages_max,
                bytes_max=limits.truncate_step_bytes,
                times=self._services.clock.times(),
            )
            operation = DoLittle(work, done)
            try:
                # While the step waited for its turn, another worker may have taken over the stream.
                if self._has_ended:
                    raise StorageBusy(MOVED)
                self._services.storage.submit_write(operation)
            except (StorageBusy, StorageClosed) as error:
                operation.error = error
                done(operation)

        def done(step: DoLittle[tuple[int, StreamRecord]]) -> None:
            # The step of a worker that has failed meanwhile ends here, too, so that other steps can begin.
            self._services.truncation_turns.end(expected)
            stepped(step)

        expected = min(messages_max, index - self._bounds.first_index)
        self._services.truncation_turns.begin(expected, submit)

    def _stepped(self, step: DoLittle[tuple[int, StreamRecord]], deleted: int) -> None:
        self._cutting = False
        if step.error is not None:
            self._finish(deleted, step.error)
            return
        now_deleted, record = step.result
        # Readers see the new first index after each step.
        self._bounds.truncate(record.first_index)
        self._next_step(deleted + now_deleted)

    def _finish(self, deleted: int, error: StorageError | None) -> None:
        _, finish = self._cuts.pop(0)
        finish(deleted, error)
        if self._cuts and not self._cutting:
            self._next_step(0)

    def _refuse(self, message: Message, error: StorageError) -> None:
        gone = isinstance(error, UnknownStreamId)
        self._worker.reply(message, error_payload(extensions.DELETED) if gone else failed_payload(str(error)))
