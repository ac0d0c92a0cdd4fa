"""What a copied run of messages becomes in the log. When it is stored is the stream worker's business."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from storage.contract import Append, Operation, Session
from stream_service.copying import CopyRequest
from stream_service.stored import NOTHING_BESIDE, Beside, encode_beside


class StoreCopy(Operation):
    """Store copied messages; a stream that never had any begins at the index of the first.

    last_time_us: the stream's latest time afterwards.
    """

    __slots__ = ("appends", "begins", "last_time_us")

    def __init__(
        self,
        request: CopyRequest,
        stream_id: int,
        *,
        begins: bool,
        last_time_us: int,
        now_us: int,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(on_done)
        self.begins = begins
        self.appends: list[Append] = []
        self.last_time_us = last_time_us
        timed = []
        for message in request.messages:
            # Searching by time, and retention by age, rest on times that never fall; a clock that was ahead
            # elsewhere must not hold up those who publish here.
            self.last_time_us = max(self.last_time_us, min(message.time_us, now_us))
            timed.append((self.last_time_us, message))
        index = request.index
        for time_us, group in groupby(timed, lambda each: each[0]):
            messages = [message for _, message in group]
            besides = [Beside(message.headers, None) for message in messages]
            self.appends.append(
                Append(
                    stream_id,
                    index,
                    time_us,
                    [message.data for message in messages],
                    [message.key for message in messages],
                    [None if beside == NOTHING_BESIDE else encode_beside(beside) for beside in besides],
                )
            )
            index += len(messages)

    def apply(self, session: Session) -> None:
        if self.begins:
            session.log.begin_at(self.appends[0].stream_id, self.appends[0].first_index)
        session.log.append(self.appends)

    def row_count(self) -> int:
        return sum(append.row_count() for append in self.appends)
