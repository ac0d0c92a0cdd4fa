"""A thread for bulk reads (pages of a stream as Arrow), which a child process makes.

The first read starts the child, which runs until the storage runner closes. If the child has died, the thread starts a
new one and repeats the request. If the new child dies too, or a child does not answer in time, the read fails."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import structlog

from stream_storage.contract import Operation
from stream_storage.errors import DatabaseCorrupt, StorageError, UnknownStreamId, corrupt_text
from stream_storage.sqlite.bulk.child_main import ANSWER, BESIDE, DAMAGED, DATA, GONE, OK, REQUEST, SharedMemory
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.freed_memory import keep_freed

ANSWER_TIMEOUT_S = 30.0
"""How long the node waits for an answer. A page takes tens of milliseconds, and a busy database up to 5 s."""
END_TIMEOUT_S = 5.0
ROW_REST_S = 100e-6
"""The pause after a page, in seconds for each message that the node stored while the page was read: bulk reads take
nearly all of the time of a node that stores few messages, and half of it at 10,000 messages a second."""
REST_PAGES_MAX = 12.0
"""The longest pause, as a multiple of the time of the page: bulk reads take a thirteenth of the time of a node that
stores 120,000 messages a second or more, and its pushes keep nine tenths of their rate."""
QUEUE_REST_S_MAX = 2.0
"""The longest time that all reads in the queue together may pause, in seconds. A client asks a second time after ten
seconds (`spark_export.source.range_reader.PATIENCE_CHECKS`), and each repeated request would cost one more page."""
KEPT_BYTES = 64 * 1024 * 1024
"""The freed memory that the C library keeps: enough for four copies of a page of twice the largest size of 8 MiB."""
NEEDED = ("pyarrow", "adbc_driver_sqlite")

logger = structlog.get_logger(__name__)


class BulkChild:
    """A running child process that reads one database file. One thread uses it. Raises OSError at the start."""

    def __init__(self, path: Path) -> None:
        # The child has to import this package from the folder from which this process imported it.
        home = str(Path(__file__).resolve().parents[3])
        search = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._memory = SharedMemory.create()
        descriptor = self._memory.descriptor
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stream_storage.sqlite.bulk.child_main", str(path.absolute()), str(descriptor)],
                pass_fds=(descriptor,),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": search},
                # Ctrl-C must reach the node only, which ends the child after the last bulk read is done. So the child
                # gets its own process group. The child stays in the session of the node: Linux may share the processor
                # equally between sessions, and then the niceness of the child would count only within its session
                # (sched(7), autogroup).
                process_group=0,
            )
        except BaseException:
            self._memory.close()
            raise
        assert self._process.stdin is not None, "it was started with pipes"
        assert self._process.stdout is not None, "it was started with pipes"
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def ask(self, request: bytes) -> tuple[int, ArrowAnswer]:
        """Returns status and answer. Raises OSError, TimeoutError, EOFError; then the caller must call `end`."""
        self._requests.write(request)
        status, created_us, first, following, start, rows, size = ANSWER.unpack(self._read(ANSWER.size))
        body = bytes(self._memory.view(size))
        return status, ArrowAnswer(created_us, first, following, start, rows, body)

    def end(self) -> None:
        """Ends the child process, and kills it if it does not end by itself. Called once."""
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._memory.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, size: int) -> bytes:
        # select() takes no descriptor above 1,023, and a node may have ten thousand connections, so this method uses
        # poll().
        ready = select.poll()
        ready.register(self._answers, select.POLLIN)
        taken = b""
        while len(taken) < size:
            if not ready.poll(ANSWER_TIMEOUT_S * 1000):
                raise TimeoutError(f"no answer in {ANSWER_TIMEOUT_S} s")
            chunk = os.read(self._answers.fileno(), size - len(taken))
            if not chunk:
                raise EOFError(f"exit code {self._process.poll()}")
            taken += chunk
        return taken


class ArrowUnavailable(StorageError):
    """The error of a bulk read in a node without the packages, or the child process, for bulk reads."""


class ArrowAnswer(msgspec.Struct, frozen=True):
    """One page from the child process, with the fields of `stream_storage.sqlite.bulk.arrow_pages.ArrowPage`."""

    created_us: int
    first_index: int
    next_index: int
    start: int
    rows: int
    body: bytes  # the rows as an Arrow IPC stream, or the text of an error


class ArrowRead(Operation):
    """A bulk read of one stream from index `start` up to, not including, `end`, as one page of Arrow rows, of at most
    `bytes_max` bytes or one message. columns: the sum of DATA, BESIDE and CHECKSUM. `answer` is None until the read has
    succeeded."""

    __slots__ = ("answer", "request", "stream_id")

    def __init__(
        self,
        stream_id: int,
        start: int,
        end: int,
        bytes_max: int,
        on_done: Callable[[Any], None],
        *,
        columns: int = DATA | BESIDE,
    ) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        # As `stream_storage.sqlite.bulk.child_main` describes it.
        self.request = REQUEST.pack(stream_id, start, end, bytes_max, columns)
        self.answer: ArrowAnswer | None = None


def find_missing() -> str | None:
    """Returns a text that names the packages that are missing for bulk reads, or None."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"{' and '.join(missing)} are not installed here: install the extra `export`" if missing else None


class ArrowThread(threading.Thread):
    """The thread that does bulk reads, one after the other, until `stop`, and hands them over by `post`. It
    pauses after a page in proportion to the messages that the node stored meanwhile (`rows_written`)."""

    def __init__(
        self,
        path: Path,
        post: Callable[[list[Operation]], None],
        rows_written: Callable[[], int],
        *,
        rest: Callable[[float], object] | None = None,
    ) -> None:
        """rest: waits for a number of seconds; by default, until `stop` at the latest."""
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
        """Makes the thread end when all submitted reads are done, without further pauses."""
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
            if stored := self._rows_written() - written:
                longest_s = REST_PAGES_MAX * (time.monotonic() - began_s)
                self._rest(min(ROW_REST_S * stored, longest_s, QUEUE_REST_S_MAX / (1 + self._queue.qsize())))
        self._end_child()

    def _ask(self, operation: ArrowRead) -> ArrowAnswer:
        if self._missing is not None:
            raise ArrowUnavailable(self._missing)
        try:
            status, answer = self._ask_child(operation.request)
        except (OSError, EOFError) as error:
            self._end_child()
            raise StorageError(f"the process that reads in bulk ended: {error}; ask again, or pull") from error
        if status == OK:
            return answer
        if status == GONE:
            raise UnknownStreamId(operation.stream_id)
        reason = answer.body.decode(errors="replace")
        raise DatabaseCorrupt(corrupt_text(reason)) if status == DAMAGED else StorageError(reason)

    def _ask_child(self, request: bytes) -> tuple[int, ArrowAnswer]:
        """Sends a request to the child, or to a new child if the old one has died. Raises OSError, EOFError."""
        if self._child is not None:
            try:
                return self._child.ask(request)
            except (BrokenPipeError, EOFError):
                # Most likely the child had begun to end before the request was sent.
                self._end_child()
        self._child = BulkChild(self._path)
        self.children += 1
        # Without this, each copy of a page gets new memory from the system, and the page faults are half of the cost.
        keep_freed(KEPT_BYTES)
        return self._child.ask(request)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()
