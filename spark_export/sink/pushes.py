"""Pushes the rows of one Spark task to a node, with many unconfirmed rows at once, and waits for all confirmations."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack

from spark_export.errors import OptionError, RowsDiffer
from spark_export.sink.attempts import Attempt, BatchMessages, Doubts, EarlierRows, consecutive, find_messages
from spark_export.sink.sink_record import MARK, count_partitions, find_bounds, load_record, next_batch, save_place
from spark_export.sink.write_rows import RowToPush, digest_of
from spark_export.source.node import asked, connected, mapped_errors, pause, source_error
from spark_export.source.options import WriteOptions
from spark_export.source.plan import Place, ReadRange
from stream_client import ClientError
from stream_client.blocking import Publisher, StreamClient
from stream_client.blocking.streams import Stream
from stream_client.core.pushes import KeyedPush
from stream_service.names import partition_of

WINDOW_BYTES = 16 * 1024 * 1024
"""The largest total size of unconfirmed pushes, in bytes. The option `window` limits their number."""
SETTLE_S = 0.3
"""The pause in seconds before a repeated task searches the stream again for messages of its earlier execution.

If the node stores a late push of the earlier execution after the search, it answers the new push with the same sequence
number as a duplicate. The task then fails if the contents of the two pushes differ.
"""


class Pushes:
    """The pushes of one execution of a Spark task. Up to `window` pushes to a partition wait for their confirmation.

    With an `attempt`, rows that an earlier execution of the task has stored are not pushed again, and all executions of
    the task have the same publisher id. Without an `attempt`, the publisher id is random. The client sends unconfirmed
    pushes again over a new connection, and the node stores no message a second time.

    counts: the number of rows that are stored, by stream and partition.
    seen: the numbers of the tasks that stored messages of the batch before this execution.

    Invariant: `_unconfirmed` has all pushes, in order, whose answers were not handled. Invariant: no row is pushed to a
    partition until the task has produced every row that earlier executions stored there. New rows wait in `_held`, so
    that nothing is stored if the rows differ.

    `_pushed_s`: the monotonic time of the latest push to each partition, in seconds.
    """

    def __init__(
        self, options: WriteOptions, attempt: Attempt | None = None, ends: Mapping[Place, tuple[int, int]] | None = None
    ) -> None:
        """Finds the rows that earlier executions of the task stored, and connects to the node."""
        self.counts: dict[Place, int] = {}
        self.seen: set[int] = set()
        self._options = options
        self._attempt = attempt
        self._ends = ends or {}
        self._partitions: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._publishers: dict[Place, Publisher] = {}
        self._unconfirmed: deque[tuple[Place, KeyedPush, bytes]] = deque()
        self._unconfirmed_bytes = 0
        self._record: dict[Place, int] = {}
        self._earlier: dict[Place, EarlierRows] = {}
        self._first_numbers: dict[Place, int] = {}
        self._held: dict[Place, list[RowToPush]] = {}
        self._doubts = Doubts()
        self._pushed_s: dict[Place, float] = {}
        if attempt is not None:
            asked(options, lambda client: self._find_earlier(client, attempt))
        self._opened = ExitStack()
        self._client = self._opened.enter_context(connected(options))

    def __enter__(self) -> Pushes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def is_committed(self) -> bool:
        """Returns whether the whole batch is already recorded as stored, so that no row needs to be pushed."""
        return self._attempt is not None and self._attempt.batch < next_batch(self._record)

    def push(self, row: RowToPush) -> None:
        """Pushes a row, unless an earlier execution of the task stored it. Waits at the limits. Raises SourceError."""
        place = self._place(row)
        earlier = self._earlier.get(place)
        if earlier is None or not earlier.missing:
            self._push(place, row)
            return
        if not earlier.take(digest_of(row.content)):
            self._held.setdefault(place, []).append(row)
            return
        self.counts[place] = self.counts.get(place, 0) + 1
        if not earlier.missing:
            for held in self._held.pop(place, []):
                self._push(place, held)

    def flush(self) -> None:
        """Waits until the node has confirmed all sent messages.

        Raises RowsDiffer if the task lacks a row that an earlier execution of the task stored, and other SourceErrors.
        """
        for place, earlier in self._earlier.items():
            if earlier.missing:
                self._differ(place, f"{earlier.missing} rows that the first attempt stored are not in this attempt")
        self.drain()
        self._check_doubted()

    def drain(self) -> None:
        """Waits for the confirmation of all sent messages; earlier rows are not checked. Raises SourceError."""
        while self._unconfirmed:
            self._confirm_one()

    # Rows that earlier executions of the task stored

    def _find_earlier(self, client: StreamClient, attempt: Attempt) -> None:
        """Loads the saved indexes of the query, and finds the rows that earlier executions of this task stored."""
        self._record = load_record(client, attempt.query)
        if self.is_committed():
            return
        for place in (each for each in self._record if each[0] != MARK):
            # The first execution can ignore messages that other tasks have stored since the batch began.
            bounds = find_bounds(client, place) if attempt.repeated else self._ends.get(place)
            if bounds is None:
                continue
            found = self._find(client, place, *bounds)
            # Pushes of the earlier execution may still be on their way to the node.
            while found.own:
                pause(SETTLE_S)
                first, until = bounds[1], find_bounds(client, place)
                if until is None or until[1] <= first:
                    break
                bounds = first, until[1]
                later = find_messages(client, ReadRange(*place, *bounds), attempt)
                found.own |= later.own
                if not later.own:
                    break
            self.seen |= found.tasks
            if found.own:
                self._earlier[place] = EarlierRows(consecutive(found.own, place))
                self._first_numbers[place] = len(found.own)

    def _find(self, client: StreamClient, place: Place, first: int, end: int) -> BatchMessages:
        """Returns the messages of this batch from the saved index of the query up to `end`."""
        assert self._attempt is not None
        start = self._record.get(place, 0)
        if start > end:
            # The stream was deleted and created again, so the saved index is invalid.
            start = 0
        start = max(start, first)
        if start >= end:
            return BatchMessages({}, set())
        return find_messages(client, ReadRange(*place, start, end), self._attempt)

    def _check_doubted(self) -> None:
        """Raises RowsDiffer if a push that was answered as a duplicate has another content than the stored message."""
        for place, numbers in self._doubts.take().items():
            indexes = [index for index, _ in numbers.values()]

            def find(
                client: StreamClient, place: Place = place, indexes: list[int] = indexes
            ) -> tuple[int, BatchMessages]:
                assert self._attempt is not None
                bounds = find_bounds(client, place)
                if bounds is None or 0 <= max(indexes) < bounds[0]:
                    return (0 if bounds is None else bounds[0]), BatchMessages({}, set())
                if min(indexes) >= 0:
                    wanted = ReadRange(*place, max(min(indexes), bounds[0]), max(indexes) + 1)
                    return bounds[0], find_messages(client, wanted, self._attempt)
                return bounds[0], self._find(client, place, *bounds)

            first, found = asked(self._options, find)
            for number, (index, digest) in numbers.items():
                # A message that retention has deleted meanwhile was stored, and cannot be compared.
                if found.own.get(number) != digest and (number in found.own or max(index, 0) >= first):
                    self._differ(place, f"its row {number} is another one than that of an attempt before")

    def _differ(self, place: Place, what: str) -> None:
        assert self._attempt is not None
        raise RowsDiffer(
            f"{place[0]}/{place[1]}: batch {self._attempt.batch}, task {self._attempt.task}, is repeated and {what}; a "
            "batch is stored exactly once only if it has the same rows in each task when it is repeated: take the "
            "settings and the number of cores with which it began, or accept repeated rows with delivery=atLeastOnce"
        )

    # Places and publishers

    def _place(self, row: RowToPush) -> Place:
        """Returns the stream and partition for a row: as named, else by the hash of its key.

        Without a key, the hash of its content decides if there is an `attempt`; otherwise the partitions take turns.
        """
        stream = row.stream
        count = self._partitions.get(stream)
        if count is None:
            count = self._partitions[stream] = asked(self._options, lambda client: count_partitions(client, stream))
        partition = row.partition
        if partition is None and row.key is not None:
            partition = partition_of(row.key, count)
        elif partition is None and self._attempt is not None:
            partition = partition_of(row.content, count) if count > 1 else 0
        elif partition is None:
            partition = self._turns[stream] = (self._turns.get(stream, -1) + 1) % count
        if not 0 <= partition < count:
            raise OptionError(f"a row is for partition {partition} of {stream!r}, which has {count}")
        return stream, int(partition)

    def _publisher(self, place: Place) -> Publisher:
        """Returns the publisher of a partition.

        Before the query's first push to it, saves its end at the beginning of the batch, from which repeated executions
        search.
        """
        found = self._publishers.get(place)
        if found is not None:
            return found
        attempt = self._attempt
        if attempt is not None and place not in self._record:
            index = self._record[place] = self._ends.get(place, (0, 0))[1]
            asked(self._options, lambda client: save_place(client, attempt.query, place, index))
        stream = Stream(self._client.session, *self._client.session.core.find_handles(place[0], [place[1]]))
        found = self._publishers[place] = stream.publisher(
            self._options.window,
            idempotent=True,
            publisher_id=attempt.publisher_id if attempt else None,
            first_number=self._first_numbers.get(place, 0),
            keep_failed=True,
        )
        return found

    # Unconfirmed pushes

    def _push(self, place: Place, row: RowToPush) -> None:
        """Sends a row as a message.

        Before and after the first push to a partition, and a push after a pause, waits for all answers: another
        execution of the task may be at work, and if it has other rows, this one must stop before it stores more.
        """
        now_s = time.monotonic()
        is_first = self._attempt is not None and now_s - self._pushed_s.get(place, -math.inf) > SETTLE_S
        if is_first:
            self.drain()
        content = row.content
        while self._unconfirmed and (
            self._unconfirmed[0][1].done or self._unconfirmed_bytes + len(content) > WINDOW_BYTES
        ):
            self._confirm_one()
        with mapped_errors():
            push = self._publisher(place).push(row.data, key=row.key, headers=row.headers)
        assert isinstance(push, KeyedPush), "an idempotent publisher numbers its pushes"
        self._unconfirmed.append((place, push, content))
        self._unconfirmed_bytes += len(content)
        if is_first:
            self.drain()
        self._pushed_s[place] = time.monotonic()

    def _confirm_one(self) -> None:
        """Waits for the answer to the oldest push. Raises PushFailed and other SourceErrors."""
        place, push, content = self._unconfirmed.popleft()
        self._unconfirmed_bytes -= len(content)
        try:
            index = self._publishers[place].wait(push)
        except ClientError as error:
            failed = source_error(error)
            raise type(failed)(f"{self._client.address}: a message of {place[0]}/{place[1]}: {failed}") from error
        is_doubted = push.is_duplicate and self._attempt is not None
        if is_doubted and self._doubts.add(place, push.number, index, digest_of(content)):
            self._check_doubted()
        self.counts[place] = self.counts.get(place, 0) + 1
