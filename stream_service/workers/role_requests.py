"""ChangeableStream: serves the requests that change the role of one stream, and those that append at an expected index.

Each request is one change of the stream. It begins when the earlier pushes are stored, and while it runs, no push is
stored. So a stream that becomes a mirror has confirmed no push beyond the end that its answer reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import structlog

from ockam.actors.message import Message
from ockam.protocol import ProtocolError, failed_payload
from stream_service.appending import APPEND, AppendResponse, AppendStatus, read_append
from stream_service.counters import NO_ROOM
from stream_service.mirror_operations import RoleChanged, StreamChange, append_expected, store_role
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import ROLE, BePrimary, Role, RoleResponse, read_role
from stream_service.workers.readable_stream import ReadableStream
from stream_storage.contract import Session
from stream_storage.errors import IndexConflict, UnknownStreamId

logger = structlog.get_logger(__name__)

T = TypeVar("T")


class ChangeableStream(ReadableStream):
    """Serves `node/stream_role/1` and `node/stream_append/1`, by rows of `served_messages`."""

    def change(self, work: Callable[[Session, StreamChange[Any]], T], then: Callable[[StreamChange[T]], None]) -> bool:
        """Begins a change of the whole stream, and returns True; False if something else is under way.

        work: makes the change, see `StreamChange`.
        then: called when the change is stored or has failed, before the worker goes on or restarts.
        """
        raise NotImplementedError

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
        if not counters.has_room(data_bytes, len(data)):
            counters.not_stored(len(data), data_bytes, NO_ROOM)
            self._refuse_later(message, NO_ROOM)
            return True

        def appended(operation: StreamChange[AppendStatus]) -> None:
            error = operation.error
            if error is not None or operation.record is None:
                # The disk is not the reason if the stream is deleted, or is read again.
                if not isinstance(error, IndexConflict | UnknownStreamId):
                    counters.not_stored(len(data), data_bytes, str(error))
                self._refuse_later(message, str(error))
                return
            if operation.result is AppendStatus.OK:
                counters.stored(len(data), time.perf_counter() - arrived_s)
            counters.refused += operation.result is AppendStatus.REFUSED
            entry_id = operation.history[-1].entry_id
            response = AppendResponse(request.request_id, operation.result, operation.record.next_index, entry_id)
            self.reply(message, APPEND.encode_response(response))

        work = partial(append_expected, request=request, now_us=self._services.now_us())
        if not self.change(work, appended):
            return False
        # The room is reserved once, however often the request had to wait.
        counters.find_no_room(data)
        return True

    def _refuse_later(self, message: Message, reason: str) -> None:
        payload = failed_payload(reason)
        delay_s = self._services.limits.error_delay_s
        self.context.call_later(delay_s, lambda: self.reply(message, payload))


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
