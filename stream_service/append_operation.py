"""The storage operation of `node/stream_append/1`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stream_service import stored
from stream_service.appending import AppendRequest, AppendStatus
from stream_service.mirror_operations import StreamChange
from stream_service.mirror_rows import find_mirror
from stream_service.stored import NO_EXTRAS, Extras, encode_extras
from stream_storage.contract import Append, Session
from stream_storage.history import ensure_history


class AppendExpected(StreamChange):
    """Appends messages if the stream ends at the expected index and has the expected history. Else stores nothing."""

    __slots__ = ("now_us", "request", "status")

    def __init__(self, stream_id: int, request: AppendRequest, now_us: int, on_done: Callable[[Any], None]) -> None:
        super().__init__(stream_id, on_done)
        self.request = request
        self.now_us = now_us
        self.status = AppendStatus.OK

    def change(self, session: Session) -> None:
        self.status, self.appended = self._decide(session), ()
        if self.status is not AppendStatus.OK:
            return
        last = stored.stored_stream(session, session.log.get_stream(self.stream_id)).last_time_us
        messages = self.request.messages
        extras = [Extras(message.headers, None) for message in messages]
        append = Append(
            self.stream_id,
            self.request.expected,
            max(last, self.now_us),
            [message.data for message in messages],
            [message.key for message in messages],
            [None if each == NO_EXTRAS else encode_extras(each) for each in extras],
        )
        session.log.append((append,))
        self.appended = (append,)

    def _decide(self, session: Session) -> AppendStatus:
        history = ensure_history(session, self.stream_id)
        row = find_mirror(session, self.stream_id)
        if row is not None and row.follows:
            return AppendStatus.REFUSED
        if self.request.entry_id is not None and self.request.entry_id != history[-1].entry_id:
            return AppendStatus.FENCED
        if session.log.get_stream(self.stream_id).next_index != self.request.expected:
            return AppendStatus.CONFLICT
        return AppendStatus.OK
