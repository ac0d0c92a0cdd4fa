"""Pushes the rows of one Spark task to a node, with many unconfirmed rows at once, and waits for all confirmations."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spark_export.errors import BadAnswer, ConnectionBroken, OptionError, RowsDiffer, SinkPushFailed, SourceUnreachable
from spark_export.sink.sink_record import (
    MARK,
    Place,
    count_partitions,
    find_bounds,
    load_record,
    next_batch,
    save_place,
)
from spark_export.sink.write_rows import RowToPush, digest_of
from spark_export.source.attempts import Attempt, BatchMessages, Doubts, EarlierRows, consecutive, find_messages
from spark_export.source.node_client import NodeConnection, body_of
from spark_export.source.node_wire import BareReader, data, optional, partition_of, stream_address, uint
from spark_export.source.options import FETCH_BYTES, WriteOptions
from spark_export.source.plan import ReadRange
from spark_export.source.range_reader import RETRY_DELAY_S, pause

T = TypeVar("T")

PROTOCOL = "node/stream_push/1"
FAILED = "node/push_failed/1"
RETURN_ADDRESS = b"node/1/push-%d"
"""The form of the return addresses of pushes. With the prefix `node/1/`, a failed push is answered with its reason."""
OK, ERROR, DUPLICATE, OUT_OF_ORDER = range(4)
OUTCOMES = {0: "is not stored", 1: "is refused", 2: "may have been stored, or not"}
WINDOW_BYTES = 16 * 1024 * 1024
"""The largest total size of unconfirmed pushes, in bytes. The option `window` limits their number."""
SETTLE_S = 0.3
"""The pause in seconds before a repeated task searches the stream again for messages of its earlier execution.

If the node stores a late push of the earlier execution after the search, it answers the new push with the same sequence
number as a duplicate. The task then fails if the contents of the two pushes differ.
"""


class Pushes:
    """The pushes of one execution of a Spark task. Up to `window` pushes wait for the confirmation of the node.

    With an `attempt`, rows that an earlier execution of the task has stored are not pushed again, and all executions of
    the task have the same publisher id. Without an `attempt`, the publisher id is random.

    counts: the number of rows that are stored, by stream and partition.
    seen: the numbers of the tasks that stored messages of the batch before this execution.

    Invariant: `_unconfirmed` contains, in order, all sent pushes without an answer. After a reconnect these pushes are
    sent again, and the node stores no message a second time. Invariant: no row is pushed to a partition until the task
    has produced every row that earlier executions stored there. New rows wait in `_held`, so that nothing is stored if
    the rows differ.

    `_retries`: the number of reconnects since the last answer. `_pushed_s`: the monotonic time of the latest push to
    each partition, in seconds.
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
        self._publisher_id = attempt.publisher_id if attempt else secrets.token_bytes(16)
        self._partitions: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._numbers: dict[Place, int] = {}
        self._unconfirmed: dict[bytes, tuple[Place, bytes, int, bytes]] = {}
        self._sent = 0
        self._unconfirmed_bytes = 0
        self._retries = 0
        self._record: dict[Place, int] = {}
        self._earlier: dict[Place, EarlierRows] = {}
        self._held: dict[Place, list[bytes]] = {}
        self._doubts = Doubts()
        self._pushed_s: dict[Place, float] = {}
        if attempt is not None:
            self._asked(lambda node: self._find_earlier(node, attempt))
        self._node = NodeConnection.to(options)

    def __enter__(self) -> Pushes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._node.close()

    def is_committed(self) -> bool:
        """Returns whether the whole batch is already recorded as stored, so that no row needs to be pushed."""
        return self._attempt is not None and self._attempt.batch < next_batch(self._record)

    def push(self, row: RowToPush) -> None:
        """Pushes a row, unless an earlier execution of the task stored it. Waits at the limits. Raises SourceError."""
        place = self._place(row)
        earlier = self._earlier.get(place)
        if earlier is None or not earlier.missing:
            self._push(place, row.body)
            return
        if not earlier.take(digest_of(row.body)):
            self._held.setdefault(place, []).append(row.body)
            return
        self.counts[place] = self.counts.get(place, 0) + 1
        if not earlier.missing:
            for body in self._held.pop(place, []):
                self._push(place, body)

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
            self._kept(self._confirm_one)

    # Rows that earlier executions of the task stored

    def _find_earlier(self, node: NodeConnection, attempt: Attempt) -> None:
        """Loads the saved indexes of the query, and finds the rows that earlier executions of this task stored."""
        self._record = load_record(node, attempt.query)
        if self.is_committed():
            return
        for place in (each for each in self._record if each[0] != MARK):
            # The first execution can ignore messages that other tasks have stored since the batch began.
            bounds = find_bounds(node, place) if attempt.repeated else self._ends.get(place)
            if bounds is None:
                continue
            found = self._find(node, place, *bounds)
            # Pushes of the earlier execution may still be on their way to the node.
            while found.own:
                pause(SETTLE_S)
                first, until = bounds[1], find_bounds(node, place)
                if until is None or until[1] <= first:
                    break
                bounds = first, until[1]
                later = find_messages(node, ReadRange(*place, *bounds), attempt, FETCH_BYTES)
                found.own |= later.own
                if not later.own:
                    break
            self.seen |= found.tasks
            if found.own:
                self._earlier[place] = EarlierRows(consecutive(found.own, place))
                self._numbers[place] = len(found.own)

    def _find(self, node: NodeConnection, place: Place, first: int, end: int) -> BatchMessages:
        """Returns the messages of this batch from the saved index of the query up to `end`."""
        assert self._attempt is not None
        start = self._record.get(place, 0)
        if start > end:
            # The stream was deleted and created again, so the saved index is invalid.
            start = 0
        start = max(start, first)
        if start >= end:
            return BatchMessages({}, set())
        return find_messages(node, ReadRange(*place, start, end), self._attempt, FETCH_BYTES)

    def _check_doubted(self) -> None:
        """Raises RowsDiffer if a push that was answered as a duplicate has another content than the stored message."""
        for place, numbers in self._doubts.take().items():
            indexes = [index for index, _ in numbers.values()]

            def find(
                node: NodeConnection, place: Place = place, indexes: list[int] = indexes
            ) -> tuple[int, BatchMessages]:
                assert self._attempt is not None
                bounds = find_bounds(node, place)
                if bounds is None or 0 < max(indexes) < bounds[0]:
                    return (0 if bounds is None else bounds[0]), BatchMessages({}, set())
                if min(indexes) > 0:
                    wanted = ReadRange(*place, max(min(indexes), bounds[0]), max(indexes) + 1)
                    return bounds[0], find_messages(node, wanted, self._attempt, FETCH_BYTES)
                return bounds[0], self._find(node, place, *bounds)

            first, found = self._asked(find)
            for number, (index, digest) in numbers.items():
                # A message that retention has deleted meanwhile was stored, and cannot be compared.
                if found.own.get(number) != digest and (number in found.own or index >= first):
                    self._differ(place, f"its row {number} is another one than that of an attempt before")

    def _differ(self, place: Place, what: str) -> None:
        assert self._attempt is not None
        raise RowsDiffer(
            f"{place[0]}/{place[1]}: batch {self._attempt.batch}, task {self._attempt.task}, is repeated and {what}; a "
            "batch is stored exactly once only if it has the same rows in each task when it is repeated: take the "
            "settings and the number of cores with which it began, or accept repeated rows with delivery=atLeastOnce"
        )

    def _asked(self, ask: Callable[[NodeConnection], T]) -> T:
        """Calls `ask` with a new connection, again if the connection breaks."""
        for left in range(self._options.fetch_retries, -1, -1):
            try:
                with NodeConnection.to(self._options) as node:
                    return ask(node)
            except (ConnectionBroken, SourceUnreachable):
                if not left:
                    raise
                pause(RETRY_DELAY_S)
        raise AssertionError("the last attempt returns or raises")

    # Places and numbers

    def _place(self, row: RowToPush) -> Place:
        """Returns the stream and partition for a row: as named, else by the hash of its key.

        Without a key, the hash of its content decides if there is an `attempt`; otherwise the partitions take turns.
        """
        stream = row.stream
        count = self._partitions.get(stream)
        if count is None:
            with NodeConnection.to(self._options) as node:
                count = self._partitions[stream] = count_partitions(node, stream)
        partition = row.partition
        if partition is None and row.key is not None:
            partition = partition_of(row.key, count)
        elif partition is None and self._attempt is not None:
            partition = partition_of(row.body, count) if count > 1 else 0
        elif partition is None:
            partition = self._turns[stream] = (self._turns.get(stream, -1) + 1) % count
        if not 0 <= partition < count:
            raise OptionError(f"a row is for partition {partition} of {stream!r}, which has {count}")
        return stream, int(partition)

    def _number(self, place: Place) -> int:
        """Returns the next sequence number for a partition.

        Before the query's first push to it, saves its end at the beginning of the batch, from which repeated executions
        search.
        """
        attempt = self._attempt
        if attempt is not None and place not in self._record:
            index = self._ends.get(place, (0, 0))[1]
            self._asked(lambda node: save_place(node, attempt.query, place, index))
            self._record[place] = index
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        return number

    # The window of unconfirmed pushes

    def _push(self, place: Place, content: bytes) -> None:
        """Sends a row as a message.

        Before and after the first push to a partition, and a push after a pause, waits for all answers: another
        execution of the task may be at work, and if it has other rows, this one must stop before it stores more.
        """
        now_s = time.monotonic()
        is_first = self._attempt is not None and now_s - self._pushed_s.get(place, -math.inf) > SETTLE_S
        if is_first:
            self.drain()
        self._send_next(place, content)
        if is_first:
            self.drain()
        self._pushed_s[place] = time.monotonic()

    def _send_next(self, place: Place, content: bytes) -> None:
        number = self._number(place)
        body = content + optional(data(self._publisher_id) + uint(number))
        while self._unconfirmed and (
            len(self._unconfirmed) >= self._options.window or self._unconfirmed_bytes + len(body) > WINDOW_BYTES
        ):
            self._kept(self._confirm_one)
        self._kept(lambda: self._send(place, body, number, content))

    def _send(self, place: Place, body: bytes, number: int, content: bytes) -> None:
        # The push is recorded before it is sent, so that a reconnect repeats the push if sending fails.
        self._sent += 1
        return_address = RETURN_ADDRESS % self._sent
        self._unconfirmed[return_address] = (place, body, number, content)
        self._unconfirmed_bytes += len(body)
        self._node.send(stream_address(*place), PROTOCOL, body, return_address)

    def _confirm_one(self) -> None:
        answer = self._node.receive()
        self._retries = 0
        sent = self._unconfirmed.pop(answer.return_address, None)
        if sent is None:
            return
        place, body, number, content = sent
        self._unconfirmed_bytes -= len(body)
        if answer.protocol == FAILED:
            failure = BareReader(body_of(answer, FAILED))
            failure.uint()
            what = OUTCOMES.get(failure.uint(), "was not confirmed")
            raise SinkPushFailed(f"{self._node.endpoint}: a message of {place[0]}/{place[1]} {what}: {failure.text()}")
        reader = BareReader(body_of(answer, PROTOCOL))
        _, status, index, _ = (reader.uint() for _ in range(4))
        if status == ERROR:
            where = f"{place[0]}/{place[1]}"
            raise SinkPushFailed(
                f"{self._node.endpoint} answers ERROR to a message of {where}, without a reason; see its log"
            )
        if status not in (OK, DUPLICATE):
            raise BadAnswer(f"{place[0]}/{place[1]}: the node answered status {status} to a push")
        is_doubted = status == DUPLICATE and self._attempt is not None
        if is_doubted and self._doubts.add(place, number, index, digest_of(content)):
            self._check_doubted()
        self.counts[place] = self.counts.get(place, 0) + 1

    def _kept(self, step: Any) -> None:
        """Calls `step` once. If the connection breaks, sends all unconfirmed pushes again over another."""
        try:
            step()
        except ConnectionBroken as error:
            self._reconnect(error)

    def _reconnect(self, reason: Exception) -> None:
        while self._retries < self._options.fetch_retries:
            self._retries += 1
            pause(RETRY_DELAY_S)
            self._node.close()
            try:
                self._node = NodeConnection.to(self._options)
                for return_address, (place, body, _, _) in self._unconfirmed.items():
                    self._node.send(stream_address(*place), PROTOCOL, body, return_address)
                return
            except (ConnectionBroken, SourceUnreachable) as error:
                reason = error
        raise SourceUnreachable(f"pushes have no answer, tried {self._options.fetch_retries} times more: {reason}")
