"""Pushes the rows of one Spark task to a node, with many unconfirmed rows at once, and stores no row twice.

The node's index service keeps the progress of a query, or of a write with a `writeId`, as saved indexes under a client
id that only this query uses. Each partition that the query writes has a saved index: no message of an uncommitted batch
is before it, so a search for such messages begins there. A save never lowers a saved index, so a late save from a
failed task has no effect.

Spark executes a task again after a failure, and the last micro-batch after a restart. Each message has a number and a
publisher id, which identifies the query, the batch and the task. So a later execution finds the messages of an earlier
one in the stream. It compares rows with them by content, so the order of the rows can differ. If it lacks a
stored row, it fails, because a stored message cannot be removed.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pyarrow.compute as compute

from index_service.extensions import FENCED_SAVE, FencedSave, SaveStatus
from spark_export.errors import BadAnswer, OptionError, RowsDiffer, SourceError
from spark_export.sink.write_rows import RowToPush, content_of, digest_of
from spark_export.source import node
from spark_export.source.options import ReadOptions, WriteOptions
from spark_export.source.plan import Place, ReadRange, StreamEnds, by_place
from spark_export.source.range_reader import bulk_pages
from stream_client import AccessDenied, ClientError, RequestRefused
from stream_client.blocking import Publisher, Stream, StreamClient, set_position
from stream_client.core.pushes import KeyedPush
from stream_client.core.service_route import INDEX_SERVICE
from stream_service.extensions import decode_extras
from stream_service.names import partition_of

WINDOW_BYTES = 16 * 1024 * 1024
"""The largest total size of unconfirmed pushes, in bytes. The option `window` limits their number."""
DOUBTED_MAX = 10_000
"""The largest number of pushes of a partition that are compared together with stored messages."""
SETTLE_S = 0.3
"""The pause in seconds before a repeated task searches the stream again for messages of its earlier execution.

If the node stores a late push of the earlier execution after the search, it answers the new push with the same sequence
number as a duplicate. The task then fails if the contents of the two pushes differ.
"""
MARK = "committed batches"
"""The stream name whose saved index, in partition 0, is the number of the next batch to commit."""
QUERY_BYTES = 12
BATCH_BYTES = 8
TASK_BYTES = 4


@dataclass(frozen=True)
class Attempt:
    """One execution of a Spark task, which belongs to a batch.

    query: the client id under which the node saves the progress of the query or write.
    batch: the number of the micro-batch, or the `writeVersion`. repeated: whether an earlier execution failed.
    """

    query: str
    batch: int
    task: int
    repeated: bool = False

    @property
    def batch_id(self) -> bytes:
        return hashlib.sha256(self.query.encode()).digest()[:QUERY_BYTES] + self.batch.to_bytes(BATCH_BYTES, "big")

    @property
    def publisher_id(self) -> bytes:
        return self.batch_id + self.task.to_bytes(TASK_BYTES, "big")


class Pushes:
    """The pushes of one execution of a Spark task. Up to `window` pushes to a partition wait for their confirmation.

    With an `attempt`, rows that an earlier execution of the task has stored are not pushed again. Without one, the
    publisher id is random. The client sends unconfirmed pushes again over a new connection, and the node stores no
    message a second time.

    counts: the number of rows that are stored, by stream and partition.
    seen: the numbers of the tasks that stored messages of the batch before this execution.

    Invariant: no row is pushed to a partition until the task has produced every row that earlier executions stored
    there. New rows wait in `_held`, so that nothing is stored if the rows differ.

    `_unconfirmed`: all pushes, in order, whose answers were not handled.
    `_earlier`: by partition, the digests of the rows that earlier executions stored and this one did not produce yet.
    `_doubted`: by partition and sequence number, the index and digest of each push that the node answered as a
        duplicate. Such a push was stored before, by this execution (before a reconnect) or by another execution,
        perhaps with another row. So the first one is compared at once, and later ones in growing groups
        (`_doubted_max`).
    """

    def __init__(
        self, options: WriteOptions, attempt: Attempt | None = None, ends: Mapping[Place, StreamEnds] | None = None
    ) -> None:
        self.counts: Counter[Place] = Counter()
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
        self._earlier: dict[Place, Counter[bytes]] = {}
        self._first_numbers: dict[Place, int] = {}
        self._held: dict[Place, list[RowToPush]] = {}
        self._doubted: dict[Place, dict[int, tuple[int, bytes]]] = {}
        self._doubted_max: dict[Place, int] = {}
        self._pushed_s: dict[Place, float] = {}
        if attempt is not None:
            node.asked(options, lambda client: self._find_earlier(client, attempt))
        self._opened = ExitStack()
        self._client = self._opened.enter_context(node.connected(options))

    def __enter__(self) -> Pushes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def is_committed(self) -> bool:
        """Returns whether the whole batch is recorded as stored, so that no row needs to be pushed."""
        return self._attempt is not None and self._attempt.batch < self._record.get((MARK, 0), 0)

    def push(self, row: RowToPush) -> None:
        """Pushes a row, unless an earlier execution of the task stored it. Waits at the limits. Raises SourceError."""
        place = self._place(row)
        earlier = self._earlier.get(place)
        if not earlier:
            self._push(place, row)
            return
        digest = digest_of(row.content)
        if digest not in earlier:
            self._held.setdefault(place, []).append(row)
            return
        # Each stored row stands for one row of this execution, since a task may have equal rows.
        earlier[digest] -= 1
        if not earlier[digest]:
            del earlier[digest]
        self.counts[place] += 1
        if not earlier:
            for held in self._held.pop(place, []):
                self._push(place, held)

    def flush(self) -> None:
        """Waits for all confirmations. Raises RowsDiffer if the task lacks a stored row, and other SourceErrors."""
        for place, earlier in self._earlier.items():
            if earlier:
                self._differ(place, f"{earlier.total()} rows that the first attempt stored are not in this attempt")
        self.drain()
        self._check_doubted()

    def drain(self) -> None:
        """Waits for all confirmations, and does not check earlier rows. Raises SourceError."""
        while self._unconfirmed:
            self._confirm_one()

    # Rows that earlier executions of the task stored

    def _find_earlier(self, client: StreamClient, attempt: Attempt) -> None:
        """Loads the saved indexes of the query, and finds the rows that earlier executions of this task stored."""
        self._record = node.saved_indexes(client, attempt.query)
        if self.is_committed():
            return
        for place in (each for each in self._record if each[0] != MARK):
            # In a first execution, only an earlier run of the batch can have stored its rows: before `_ends`.
            bounds = node.find_partition(client, place) if attempt.repeated else self._ends.get(place)
            if bounds is None:
                continue
            own = newer = self._find_own(client, attempt, bounds)
            # Pushes of the earlier execution may still be on their way to the node.
            while newer:
                node.pause(SETTLE_S)
                first, bounds = bounds.next_index, node.find_partition(client, place)
                if bounds is None or bounds.next_index <= first:
                    break
                newer = find_messages(client, ReadRange(*place, first, bounds.next_index), attempt)[0]
                own |= newer
            if list(own) != list(range(len(own))):
                raise RowsDiffer(
                    f"{place[0]}/{place[1]}: of the messages that an earlier attempt at this batch stored, some were "
                    "deleted, so nobody can say which rows are missing; keep messages longer (retention) than a batch "
                    "may take"
                )
            if own:
                self._earlier[place], self._first_numbers[place] = Counter(own.values()), len(own)

    def _find_own(self, client: StreamClient, attempt: Attempt, bounds: StreamEnds) -> dict[int, bytes]:
        """Returns the digests that `find_messages` finds from the query's saved index on. Adds the task numbers to
        `seen`."""
        place, end = (bounds.stream, bounds.partition), bounds.next_index
        start = self._record.get(place, 0)
        # An index beyond the end is of a stream that was deleted and created again since, so it is invalid.
        start = max(0 if start > end else start, bounds.first_index)
        if start >= end:
            return {}
        own, tasks = find_messages(client, ReadRange(*place, start, end), attempt)
        self.seen |= tasks
        return own

    def _check_doubted(self) -> None:
        """Raises RowsDiffer if a push that was answered as a duplicate has another content than the stored message."""
        doubted, self._doubted = self._doubted, {}
        for place, numbers in doubted.items():
            # The node answers a duplicate quickly, so a long series is compared in few requests.
            self._doubted_max[place] = min(10 * self._doubted_max.get(place, 1), DOUBTED_MAX)
            indexes = [index for index, _ in numbers.values()]
            first, found = node.asked(self._options, partial(self._find_doubted, place, min(indexes), max(indexes) + 1))
            for number, (index, digest) in numbers.items():
                # A message that retention has deleted meanwhile was stored, and cannot be compared.
                if found.get(number) != digest and (number in found or max(index, 0) >= first):
                    self._differ(place, f"its row {number} is another one than that of an attempt before")

    def _find_doubted(self, place: Place, start: int, end: int, client: StreamClient) -> tuple[int, dict[int, bytes]]:
        """Returns the first index of a partition, and the digests that `find_messages` finds. start: -1 if unknown."""
        assert self._attempt is not None
        bounds = node.find_partition(client, place)
        if bounds is None:
            return 0, {}
        if start < 0:
            return bounds.first_index, self._find_own(client, self._attempt, bounds)
        wanted = ReadRange(*place, max(start, bounds.first_index), end)
        return bounds.first_index, find_messages(client, wanted, self._attempt)[0] if wanted.count > 0 else {}

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
        if stream not in self._partitions:
            self._partitions[stream] = node.asked(self._options, lambda client: count_partitions(client, stream))
        count = self._partitions[stream]
        partition = row.partition
        if partition is None and (row.key is not None or self._attempt is not None):
            partition = partition_of(row.content if row.key is None else row.key, count) if count > 1 else 0
        elif partition is None:
            partition = self._turns[stream] = (self._turns.get(stream, -1) + 1) % count
        if not 0 <= partition < count:
            raise OptionError(f"a row is for partition {partition} of {stream!r}, which has {count}")
        return stream, int(partition)

    def _publisher(self, place: Place) -> Publisher:
        if (found := self._publishers.get(place)) is not None:
            return found
        attempt = self._attempt
        if attempt is not None and place not in self._record:
            # Repeated executions search from the index at which the partition ended when the batch began.
            index = self._record[place] = self._ends[place].next_index if place in self._ends else 0
            node.asked(self._options, lambda client: save_place(client, attempt.query, place, index))
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
        # All answers are awaited before and after the first push to a partition, and the first push after a pause:
        # another execution of the task may be at work. If it has other rows, this one must not store more.
        now_s = time.monotonic()
        is_first = self._attempt is not None and now_s - self._pushed_s.get(place, -math.inf) > SETTLE_S
        if is_first:
            self.drain()
        content = row.content
        # The waiting pushes use a bounded amount of memory.
        while self._unconfirmed and (
            self._unconfirmed[0][1].done or self._unconfirmed_bytes + len(content) > WINDOW_BYTES
        ):
            self._confirm_one()
        with node.mapped_errors():
            push = self._publisher(place).push(row.data, key=row.key, headers=row.headers)
        assert isinstance(push, KeyedPush), "an idempotent publisher numbers its pushes"
        self._unconfirmed.append((place, push, content))
        self._unconfirmed_bytes += len(content)
        if is_first:
            self.drain()
        self._pushed_s[place] = time.monotonic()

    def _confirm_one(self) -> None:
        """Waits for the answer to the oldest push. Raises SinkPushFailed and other SourceErrors."""
        place, push, content = self._unconfirmed.popleft()
        self._unconfirmed_bytes -= len(content)
        try:
            index = self._publishers[place].wait(push)
        except ClientError as error:
            failed = node.source_error(error)
            raise type(failed)(f"{self._client.address}: a message of {place[0]}/{place[1]}: {failed}") from error
        if push.is_duplicate and self._attempt is not None:
            doubted = self._doubted.setdefault(place, {})
            doubted[push.number] = index, digest_of(content)
            if len(doubted) >= self._doubted_max.get(place, 1):
                self._check_doubted()
        self.counts[place] += 1


def find_messages(client: StreamClient, wanted: ReadRange, attempt: Attempt) -> tuple[dict[int, bytes], set[int]]:
    """Returns the digests of the stored messages of the task, by sequence number, in index order; and the numbers of
    all tasks of the batch with messages in the range. Raises SourceError without bulk reads, and ClientErrors."""
    own, tasks = dict[int, bytes](), set[int]()
    try:
        for _, batch in bulk_pages(client, wanted, ReadOptions()):
            if batch is None or "beside" not in batch.schema.names:
                continue
            # Most messages of a range belong to other publishers. These messages are not decoded.
            may_be_own = compute.match_substring(batch.column("beside"), attempt.batch_id)
            for row in compute.indices_nonzero(may_be_own).to_pylist():
                extras = decode_extras(batch.column("beside")[row].as_py())
                number = extras.sequence
                if number is None or not number.publisher_id.startswith(attempt.batch_id):
                    continue
                tasks.add(int.from_bytes(number.publisher_id[len(attempt.batch_id) :], "big"))
                if number.publisher_id == attempt.publisher_id:
                    key = batch.column("key")[row].as_py() if "key" in batch.schema.names else None
                    content = content_of(batch.column("data")[row].as_py(), key, extras.headers)
                    own[number.sequence] = digest_of(content)
    except AccessDenied:
        raise
    except RequestRefused as error:
        raise SourceError(
            f"{client.address} refuses the bulk read with which a writer finds what it has stored: {error}; install "
            "the extra `export` where the node runs, or write with delivery=atLeastOnce"
        ) from error
    return own, tasks


def save_place(client: StreamClient, client_id: str, place: Place, index: int) -> None:
    """Saves an index of a query for a partition, unless a higher index is saved. Raises ClientErrors, BadAnswer."""
    request = FencedSave(1, client_id, *place, index, None)
    if client.session.ask(INDEX_SERVICE, FENCED_SAVE, request).status is not SaveStatus.OK:
        raise BadAnswer(f"the node did not save position {index} of {place[0]}/{place[1]} for {client_id}")


def commit_batch(client: StreamClient, client_id: str, batch: int, written: set[Place]) -> None:
    """Records that a batch is stored, and saves the next index of each written partition. The call can be repeated."""
    # The batch number is saved first. If this process ends between the saves, the other indexes are only too low.
    save_place(client, client_id, (MARK, 0), batch + 1)
    record = node.saved_indexes(client, client_id)
    places = {place for place in {*record, *written} if place[0] != MARK}
    for stream in sorted({stream for stream, _ in places}):
        for each in node.list_partitions(client, stream):
            place = (stream, each.partition)
            saved = record.get(place, 0)
            if place in places and saved > each.next_index:
                # The stream was deleted and created again, and only this request lowers an index.
                set_position(client, client_id, *place, each.next_index)
            elif place in places and saved < each.next_index:
                save_place(client, client_id, place, each.next_index)


def count_partitions(client: StreamClient, stream: str) -> int:
    """Returns the number of partitions of a stream, which is created if it is missing."""
    found = node.list_partitions(client, stream)
    if not found:
        client.create(stream)
    return max((each.partition + 1 for each in found), default=1)


def find_ends(client: StreamClient, options: WriteOptions, is_any: bool) -> dict[Place, StreamEnds]:
    """Returns the partitions that a write can reach, and creates its stream. is_any: rows name their streams."""
    found = []
    if options.stream is not None:
        found = node.list_partitions(client, options.stream)
        if options.partitions is not None or not found:
            client.create_partitioned(options.stream, options.partitions or 1)
            found = node.list_partitions(client, options.stream)
    if is_any:
        found = node.list_partitions(client)
    return by_place(found)
