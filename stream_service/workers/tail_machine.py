"""Tails: keeps the newest messages of all streams in memory, so that most consumers need no disk read.

A tail keeps the lists of the appends and copies no message, so it costs a push almost nothing. It does no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from itertools import repeat
from operator import attrgetter

from stream_storage.contract import Append, Record

MESSAGE_OVERHEAD_BYTES = 56
"""The memory of a message beside its data, in bytes: the bytes object and its place in a list."""


_first_index = attrgetter("first_index")
_NO_RUNS: deque[Append] = deque(maxlen=0)
"""The runs of all empty tails: one deque, which stays empty. A deque takes 760 bytes, and most streams are at rest."""


class Tails:
    """The memory that all tails of a node share. If it is full, the tail that has not grown for longest is cleared.

    Invariant: `size_bytes` is the sum over all tails and at most `bytes_max`. `_used` contains the tails that are not
    empty, in the order of their last growth, oldest first.
    """

    def __init__(self, bytes_max: int, stream_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.stream_bytes_max = min(stream_bytes_max, bytes_max)
        self.size_bytes = 0
        self._used: OrderedDict[Tail, None] = OrderedDict()

    def note(self, tail: Tail, grown_bytes: int) -> None:
        """Counts that a tail grew, or shrank if `grown_bytes` is negative. If the memory is full, clears old tails."""
        self.size_bytes += grown_bytes
        if tail.size_bytes:
            self._used[tail] = None
            self._used.move_to_end(tail)
        else:
            self._used.pop(tail, None)
        while self.size_bytes > self.bytes_max:
            next(iter(self._used)).clear()


class Tail:
    """The newest messages of one stream, in memory. It keeps or drops the messages of an append together.

    Invariant: the indexes in `_runs` have no gap. `size_bytes` is the memory that they take, at most
    `Tails.stream_bytes_max`.
    """

    __slots__ = ("_closed", "_runs", "_tails", "size_bytes")

    def __init__(self, tails: Tails) -> None:
        self._tails = tails
        self._runs = _NO_RUNS
        self._closed = False
        self.size_bytes = 0

    @property
    def next_index(self) -> int:
        return self._runs[-1].next_index if self._runs else -1

    def append(self, stored: Append) -> None:
        """Adds the messages of a stored append, whose lists must not change afterwards. Drops the oldest appends
        above the memory limit."""
        size_bytes = _size_in_memory(stored)
        # The append does not follow the tail: keeping both would leave a gap.
        runs = self._runs
        if runs and stored.first_index != runs[-1].next_index:
            self.clear()
        # One append larger than the whole tail is not kept.
        if size_bytes > self._tails.stream_bytes_max or self._closed:
            self.clear()
            return
        if self._runs is _NO_RUNS:
            self._runs = deque()
        self._runs.append(stored)
        grown_bytes = size_bytes
        while self.size_bytes + grown_bytes > self._tails.stream_bytes_max:
            grown_bytes -= _size_in_memory(self._runs.popleft())
        self.size_bytes += grown_bytes
        self._tails.note(self, grown_bytes)

    def clear(self) -> None:
        size_bytes, self.size_bytes = self.size_bytes, 0
        self._runs = _NO_RUNS
        self._tails.note(self, -size_bytes)

    def close(self) -> None:
        """Removes all messages and ignores later appends, because the worker of the stream has stopped."""
        self._closed = True
        self.clear()

    def find_page(self, index: int, limit: int, bytes_max: int, first_bytes_max: int) -> list[Record] | None:
        """Returns the page that `stream_storage.contract.Log.read` would return; None if its first message is not in
        memory.

        The page is empty if the data of its first message exceeds `first_bytes_max`.
        """
        if not self._runs or index < self._runs[0].first_index:
            return None
        page: list[Record] = []
        runs = self._runs
        # Search from the append that has the index: a full tail can have many thousand appends of one message each.
        position = bisect_right(runs, index, key=_first_index) - 1
        for run in map(runs.__getitem__, range(position, len(runs))):
            start = index - run.first_index if index > run.first_index else 0
            if start >= len(run.data):
                continue
            for record in _records(run, start, start + limit - len(page)):
                bytes_max -= len(record[1])
                if len(record[1]) > first_bytes_max if not page else bytes_max < 0:
                    return page
                page.append(record)
            if len(page) >= limit:
                break
        return page


def _size_in_memory(run: Append) -> int:
    size_bytes = run.size_bytes + MESSAGE_OVERHEAD_BYTES * len(run.data)
    for beside in (run.keys, run.headers):
        if beside is not None:
            size_bytes += sum(len(each) for each in beside if each is not None)
    return size_bytes


def _records(run: Append, start: int, end: int) -> zip[Record]:
    return zip(
        range(run.first_index + start, run.next_index),
        run.data[start:end],
        repeat(run.time_us),
        repeat(None) if run.keys is None else run.keys[start:end],
        repeat(None) if run.headers is None else run.headers[start:end],
        strict=False,
    )
