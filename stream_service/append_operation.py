"""The storage operation of `node/stream_append/1`."""

from __future__ import annotations

from stream_service import stored
from stream_service.appending import AppendRequest, AppendStatus
from stream_service.extras import encode_beside
from stream_service.mirror_operations import AnyChange
from stream_service.mirror_rows import find_mirror
from stream_storage.contract import Append, Session
from stream_storage.history import ensure_history


def append_expected(session: Session, change: AnyChange, request: AppendRequest, now_us: int) -> AppendStatus:
    """Appends the messages if the stream ends at the expected index, has the history entry of the request as its newest
    one (if the request names any), and is not a mirror. Otherwise stores nothing. Returns the status of the answer."""
    status = _decide(session, change.stream_id, request)
    if status is not AppendStatus.OK:
        return status
    last = stored.stored_stream(session, session.log.get_stream(change.stream_id)).last_time_us
    append = Append(
        change.stream_id,
        request.expected,
        max(last, now_us),
        [message.data for message in request.messages],
        [message.key for message in request.messages],
        [encode_beside(message.headers) for message in request.messages],
    )
    session.log.append((append,))
    change.appended = (append,)
    return status


def _decide(session: Session, stream_id: int, request: AppendRequest) -> AppendStatus:
    history = ensure_history(session, stream_id)
    row = find_mirror(session, stream_id)
    if row is not None and row.follows:
        return AppendStatus.REFUSED
    if request.entry_id is not None and request.entry_id != history[-1].entry_id:
        return AppendStatus.FENCED
    if session.log.get_stream(stream_id).next_index != request.expected:
        return AppendStatus.CONFLICT
    return AppendStatus.OK
