"""PartitionWatch: notices partitions that are added to a stream."""

from __future__ import annotations

import math
from collections.abc import Callable

from stream_client.core.service_route import STREAM_SERVICE
from stream_client.errors import ClientError
from stream_client.session import ClientSession
from stream_service.extensions import LIST, ListRequest, ListResponse, StreamKey

WATCH_S = 5.0
"""The interval between two questions whether a stream has more partitions, in seconds."""
ABSENT_S = 1.0
"""The interval between two questions whether a stream exists by now, in seconds."""
UNANSWERED_S = 30.0
"""After this time, in seconds, a question that was not answered is asked again."""
PARTITIONS_MAX = 4_096


class PartitionWatch:
    """Asks whether a stream has more partitions than the `known` ones (0 if the stream does not exist), while its user
    calls `poll`. `on_more` is called with the numbers of the added partitions, in order. At `due_s`, on the client's
    clock in seconds, `poll` asks again. No message of a node reports that a stream has grown, so all users of a stream
    ask at intervals, and know the same partitions within a few seconds."""

    def __init__(self, session: ClientSession, name: str, known: int, on_more: Callable[[list[int]], None]) -> None:
        self._session = session
        self._name = name
        self._known = known
        self._on_more = on_more
        self.due_s = 0.0
        self._wait()
        self._cancel: Callable[[], None] | None = None
        self._asked_s = -math.inf

    def poll(self) -> None:
        """Asks the node if the interval is over. Does not wait. The user of the stream calls it often."""
        now_s = self._session.shell.now_s()
        if now_s < self.due_s:
            return
        self._wait()
        # A slow node needs longer for its list than one interval.
        if self._cancel is not None and now_s < self._asked_s + UNANSWERED_S:
            return
        self.stop()
        self._asked_s = now_s
        # The node lists the partitions of this stream in order, and then the streams whose longer names begin alike.
        after = StreamKey(self._name, self._known - 1) if self._known else None
        request = ListRequest(0, self._name, after, PARTITIONS_MAX)
        self._cancel = self._session.ask_nowait(STREAM_SERVICE, LIST, request, self._answered)

    def stop(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def _wait(self) -> None:
        self.due_s = self._session.shell.now_s() + (WATCH_S if self._known else ABSENT_S)

    def _answered(self, answer: ListResponse | ClientError) -> None:
        self._cancel, self._asked_s = None, -math.inf
        # A node that cannot list its streams is asked again all the same: it can be replaced by another one.
        if isinstance(answer, ClientError):
            return
        found = [info.partition for info in answer.streams if info.stream_name == self._name]
        count = max(found, default=-1) + 1
        if count > self._known:
            more, self._known = list(range(self._known, count)), count
            self._on_more(more)
