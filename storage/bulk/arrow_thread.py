"""ArrowThread: the thread that passes bulk reads to a child process and takes its pages. It reads no database itself.

The first read starts the child, which lives until the runner closes. If the child has died, the thread starts another
and asks once more. If that one dies too, or a child does not answer, the read fails, and the next read starts another.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import structlog

from storage.bulk.child import Answer, BulkChild
from storage.bulk.child_main import BESIDE, CHECKSUM, DAMAGED, DATA, GONE, OK, REQUEST
from storage.contract import Operation
from storage.errors import DatabaseCorrupt, StorageError, StreamNotFound, corrupt_text, storage_error

BUSY_ROWS = 64
"""The thread rests if the node has stored this many messages while a page was read; that is several thousand a
second."""
REST_PAGES = 2.0
"""The length of a rest, as a multiple of the time for the page before: reading then takes a third of the time."""
KEPT_BYTES = 64 * 1024 * 1024
"""Twice the largest page for each of its four copies: read, packed, framed, half sent."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Constants of malloc.h."""
NEEDED = ("pyarrow", "adbc_driver_sqlite")

logger = structlog.get_logger(__name__)


class ArrowUnavailable(StorageError):
    """Bulk reads need packages that are not installed here, or a database that is a file."""


class ArrowAnswer(msgspec.Struct, frozen=True):
    """One page, as `storage.bulk.arrow_pages.ArrowPage` describes it. body: an Arrow IPC stream of its rows."""

    created_us: int
    first_index: int
    next_index: int
    start: int
    rows: int
    body: bytes


class ArrowRead(Operation):
    """Reads messages of one stream from `start` up to, not including, `end`, as Arrow.

    bytes_max: the largest size of the page; but one message is always in it, if there is one. answer: the page, once
    the operation is done.
    """

    __slots__ = ("answer", "beside", "bytes_max", "checksum", "data", "end", "start", "stream_id")

    def __init__(
        self,
        stream_id: int,
        start: int,
        end: int,
        bytes_max: int,
        on_done: Callable[[Any], None],
        *,
        data: bool = True,
        beside: bool = True,
        checksum: bool = False,
    ) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.start = start
        self.end = end
        self.bytes_max = bytes_max
        self.data = data
        self.beside = beside
        self.checksum = checksum
        self.answer: ArrowAnswer | None = None

    def packed(self) -> bytes:
        """The request as the child reads it."""
        flags = DATA * self.data | BESIDE * self.beside | CHECKSUM * self.checksum
        return REQUEST.pack(self.stream_id, self.start, self.end, self.bytes_max, flags)


def find_missing() -> str | None:
    """The reason why this program cannot read in bulk, or None."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"{' and '.join(missing)} are not installed here: install the extra `spark`" if missing else None


def keep_large_blocks() -> None:
    """Make the C library keep freed memory, up to KEPT_BYTES, instead of giving it back to the system (glibc only).

    Otherwise each copy of a page of some megabytes gets new memory from the system, one page fault after the other,
    which was half of the cost of a bulk read.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class ArrowThread(threading.Thread):
    """Takes reads until it is told to stop, and posts each of them when it is done or has an error.

    path: the path of the database. rows_written: returns how many messages the node has stored so far. A bulk read can
    wait, so while the node stores many messages, the thread rests after each page.
    """

    def __init__(
        self,
        path: Path,
        post: Callable[[list[Operation]], None],
        rows_written: Callable[[], int],
        *,
        rest: Callable[[float], object] | None = None,
    ) -> None:
        """rest: waits in this thread for a number of seconds; by default until `stop` at the latest."""
        super().__init__(name="storage-arrow", daemon=False)
        self.pages = 0
        self.rows = 0
        self.children = 0
        self._path = path
        self._missing = find_missing()
        self._post = post
        self._rows_written = rows_written
        self._stopping = threading.Event()
        self._rest = rest or self._stopping.wait
        self._queue: SimpleQueue[ArrowRead | None] = SimpleQueue()
        self._child: BulkChild | None = None

    def submit(self, operation: ArrowRead) -> None:
        self._queue.put(operation)

    def stop(self) -> None:
        """End after the reads that were submitted, without further rests."""
        self._stopping.set()
        self._queue.put(None)

    def run(self) -> None:
        while (operation := self._queue.get()) is not None:
            began_s, written = time.monotonic(), self._rows_written()
            try:
                operation.answer = self._ask(operation)
                self.pages += 1
                self.rows += operation.answer.rows
            except BaseException as error:
                operation.error = storage_error(error)
                if not isinstance(error, StorageError):
                    logger.critical("bulk_read_failed", reason=str(error))
            self._post([operation])
            if self._rows_written() - written >= BUSY_ROWS:
                self._rest(REST_PAGES * (time.monotonic() - began_s))
        self._end_child()

    def _ask(self, operation: ArrowRead) -> ArrowAnswer:
        """Raises StorageError."""
        if self._missing is not None:
            raise ArrowUnavailable(self._missing)
        try:
            status, bounds, body = self._ask_child(operation.packed())
        except (OSError, EOFError) as error:
            self._end_child()
            raise StorageError(f"the process that reads in bulk ended: {error}; ask again, or pull") from error
        if status == OK:
            return ArrowAnswer(*bounds, body)
        if status == GONE:
            raise StreamNotFound(operation.stream_id)
        reason = body.decode(errors="replace")
        raise DatabaseCorrupt(corrupt_text(reason)) if status == DAMAGED else StorageError(reason)

    def _ask_child(self, request: bytes) -> Answer:
        """Ask the child; if it has died, start another and ask that. Raises OSError, EOFError."""
        if self._child is not None:
            try:
                return self._child.ask(request)
            except (BrokenPipeError, EOFError):
                # Most likely the child was ending before it was asked.
                self._end_child()
        self._child = BulkChild(self._path)
        self.children += 1
        keep_large_blocks()
        return self._child.ask(request)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()
