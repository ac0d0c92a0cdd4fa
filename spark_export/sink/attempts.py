"""Finds the rows that an earlier execution of the same Spark task has stored, so that no row is stored twice.

Spark executes a task again after a failure, and executes the last micro-batch again after a restart. Each message of a
task has a sequence number and a publisher id, which identifies the query, the batch and the task. So a later execution
finds the messages of an earlier execution in the stream. The later execution compares rows with these messages by
content, so the order of the rows can differ. If the later execution lacks a stored row, it fails, because a stored
message cannot be removed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow.compute as compute

from spark_export.errors import RowsDiffer, SourceError
from spark_export.sink.write_rows import content_of, digest_of
from spark_export.source.bulk_pages import BulkPages
from spark_export.source.options import ReadOptions
from spark_export.source.plan import Place, ReadRange
from stream_client import AccessDenied, RequestRefused
from stream_client.blocking import StreamClient
from stream_service.extras import decode_extras

DOUBTED_MAX = 10_000
"""The largest number of pushes of a partition that are compared together (see `Doubts`)."""
QUERY_BYTES = 12
BATCH_BYTES = 8
TASK_BYTES = 4


@dataclass(frozen=True)
class Attempt:
    """One execution of a Spark task, which belongs to a batch.

    query: the name of the query or the write, under which the node saves its progress
        (`spark_export.sink.sink_record`).
    batch: the number of the micro-batch, or the `writeVersion` of a write.
    repeated: whether Spark reports that an earlier execution failed.
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
        """The publisher id of the messages of the task, the same in each execution."""
        return self.batch_id + self.task.to_bytes(TASK_BYTES, "big")


@dataclass
class BatchMessages:
    """The messages of a batch in an index range of one partition.

    own: the digests of the messages of the same task, by sequence number, in index order.
    tasks: the numbers of all tasks of the batch with messages in the range.
    """

    own: dict[int, bytes]
    tasks: set[int]


def find_messages(client: StreamClient, wanted: ReadRange, attempt: Attempt) -> BatchMessages:
    """Reads a range of one partition and returns the messages of the batch to which `attempt` belongs.

    Raises SourceError if the node does not support bulk reads, and ClientErrors.
    """
    found = BatchMessages({}, set())
    try:
        for page in BulkPages(client, wanted, ReadOptions()).pages():
            if page.batch is None or "beside" not in page.batch.schema.names:
                continue
            # Most messages of a range belong to other publishers. These messages are not decoded.
            may_be_own = compute.match_substring(page.batch.column("beside"), attempt.batch_id)
            for row in compute.indices_nonzero(may_be_own).to_pylist():
                extras = decode_extras(page.batch.column("beside")[row].as_py())
                if extras.sequence is None or not extras.sequence.publisher_id.startswith(attempt.batch_id):
                    continue
                publisher_id = extras.sequence.publisher_id
                found.tasks.add(int.from_bytes(publisher_id[len(attempt.batch_id) :], "big"))
                if publisher_id == attempt.publisher_id:
                    key = page.batch.column("key")[row].as_py() if "key" in page.batch.schema.names else None
                    content = content_of(page.batch.column("data")[row].as_py(), key, extras.headers)
                    found.own[extras.sequence.sequence] = digest_of(content)
    except AccessDenied:
        raise
    except RequestRefused as error:
        raise SourceError(
            f"{client.address} refuses the bulk read with which a writer finds what it has stored: {error}; install "
            "the extra `export` where the node runs, or write with delivery=atLeastOnce"
        ) from error
    return found


class EarlierRows:
    """The rows that earlier executions of a task stored in one partition; `missing` were not produced again yet."""

    def __init__(self, stored: Sequence[bytes]) -> None:
        self.missing = len(stored)
        self._stored = stored
        self._at = 0
        self._others: Counter[bytes] | None = None

    def take(self, digest: bytes) -> bool:
        """Returns whether a row with this digest is stored already, and takes it. Each stored row matches only one
        call."""
        if self._others is None:
            # Every execution of a task usually has the rows in the same order.
            if self._at < len(self._stored) and self._stored[self._at] == digest:
                self._at += 1
                self.missing -= 1
                return True
            self._others = Counter(self._stored[self._at :])
        if not self._others[digest]:
            return False
        self._others[digest] -= 1
        self.missing -= 1
        return True


class Doubts:
    """The pushes of one execution of a task that the node answered as duplicates, until they are compared.

    Such a push was stored before, by this execution (before a reconnect) or by another one. If the other one has stored
    another row under this sequence number, the present execution must stop. So the first push is compared at once, and
    later ones in growing groups.
    """

    def __init__(self) -> None:
        self._waiting: dict[Place, dict[int, tuple[int, bytes]]] = {}
        self._limits: dict[Place, int] = {}

    def add(self, place: Place, number: int, index: int, digest: bytes) -> bool:
        """Adds a push. Returns whether the pushes are to be compared now. Index -1: the node does not say it."""
        waiting = self._waiting.setdefault(place, {})
        waiting[number] = (index, digest)
        return len(waiting) >= self._limits.get(place, 1)

    def take(self) -> dict[Place, dict[int, tuple[int, bytes]]]:
        taken, self._waiting = self._waiting, {}
        for place in taken:
            self._limits[place] = min(10 * self._limits.get(place, 1), DOUBTED_MAX)
        return taken


def consecutive(found: dict[int, bytes], place: Place) -> list[bytes]:
    """Returns the digests of the stored rows in order. Raises RowsDiffer unless their numbers are 0, 1, 2, …"""
    if list(found) != list(range(len(found))):
        raise RowsDiffer(
            f"{place[0]}/{place[1]}: of the messages that an earlier attempt at this batch stored, some were deleted, "
            "so nobody can say which rows are missing; keep messages longer (retention) than a batch may take"
        )
    return list(found.values())


def check_tasks(seen: Iterable[int], tasks: Iterable[int], batch: int) -> None:
    """Raises RowsDiffer if a task that stored messages of the batch is no longer a task of the batch."""
    gone = sorted(set(seen) - set(tasks))
    if gone:
        raise RowsDiffer(
            f"batch {batch} had a task {gone[0]} when it was first tried, and has fewer tasks now: its rows may be in "
            "the streams twice; repeat a batch with the settings and the number of cores with which it began"
        )
