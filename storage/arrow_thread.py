"""The thread that hands bulk reads to a child process and takes its pages back. It reads no database itself.

The child is started by the first read and lives until the runner closes. One that died between two reads is replaced at
once; one that dies, or does not answer, while it is at a read fails that one, and the next read starts another.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import structlog

from storage.arrow_child import ANSWER, BESIDE, CHECKSUM, DAMAGED, DATA, GONE, OK, REQUEST
from storage.contract import Operation
from storage.delivery import Deliver
from storage.errors import DatabaseCorrupt, StorageError, StreamNotFound, corrupt_text, storage_error

ANSWER_TIMEOUT_S = 30.0
"""A page takes some ten milliseconds; the child's own wait for a busy database is 5 s."""
END_TIMEOUT_S = 5.0
PIPE_BYTES = 1024 * 1024
"""Linux's pipes hold 64 KiB unless told otherwise, which is sixty changes of process for a page."""
PIPE_SIZE: int | None = getattr(fcntl, "F_SETPIPE_SZ", None)
KEPT_BYTES = 64 * 1024 * 1024
"""Twice the largest page, at each of its stations: read, packed, framed, half sent."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h."""
NEEDED = ("pyarrow", "adbc_driver_sqlite")

logger = structlog.get_logger(__name__)


class ArrowUnavailable(StorageError):
    """Bulk reads need packages that are not installed here, or a database that is a file."""


class ArrowAnswer(msgspec.Struct, frozen=True):
    """A page; see `storage.arrow_pages.ArrowPage`. body: an Arrow IPC stream of its rows."""

    created_us: int
    first_index: int
    next_index: int
    start: int
    rows: int
    body: bytearray


class ArrowRead(Operation):
    """Messages of one stream from `start` up to, not including, `end`, as Arrow; `answer` once it is done.

    bytes_max: what the page may have, but one message is always in it if there is one.
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
        """As the child reads it."""
        flags = DATA * self.data | BESIDE * self.beside | CHECKSUM * self.checksum
        return REQUEST.pack(self.stream_id, self.start, self.end, self.bytes_max, flags)


def find_missing() -> str | None:
    """Why this program cannot read in bulk, or None."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"{' and '.join(missing)} are not installed here: install the extra `spark`" if missing else None


def keep_large_blocks() -> None:
    """Have the C library keep what pages are copied through, up to KEPT_BYTES, where it can be told so (glibc).

    Otherwise it gives each block of some megabytes back to the system and gets it anew, page fault by page fault, which
    was half of what a bulk read cost the node.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class ArrowThread(threading.Thread):
    """Takes reads until it is given None, and delivers every one, done or with an error. path: of the database."""

    def __init__(self, path: Path, deliver: Deliver) -> None:
        super().__init__(name="storage-arrow", daemon=False)
        self.pages = 0
        self.rows = 0
        self.children = 0
        self._path = path
        self._missing = find_missing()
        self._deliver = deliver
        self._queue: SimpleQueue[ArrowRead | None] = SimpleQueue()
        self._child: subprocess.Popen[bytes] | None = None

    def submit(self, operation: ArrowRead) -> None:
        self._queue.put(operation)

    def stop(self) -> None:
        """End after what was submitted."""
        self._queue.put(None)

    def run(self) -> None:
        while (operation := self._queue.get()) is not None:
            try:
                operation.answer = self._ask(operation)
                self.pages += 1
                self.rows += operation.answer.rows
            except BaseException as error:
                operation.error = storage_error(error)
                if not isinstance(error, StorageError):
                    logger.critical("bulk_read_failed", reason=str(error))
            self._deliver([operation])
        self._end_child()

    def _ask(self, operation: ArrowRead) -> ArrowAnswer:
        """Raises StorageError."""
        if self._missing is not None:
            raise ArrowUnavailable(self._missing)
        try:
            try:
                children = self.children
                child = self._ensure_child()
                head = self._ask_child(child, operation)
            except (BrokenPipeError, EOFError):
                if self.children > children:
                    raise
                # It was on its way out before it was asked.
                self._end_child()
                child = self._ensure_child()
                head = self._ask_child(child, operation)
            status, created_us, first, following, start, rows, size = ANSWER.unpack(head)
            body = self._read(child, size)
        except (OSError, EOFError) as error:
            self._end_child()
            raise StorageError(f"the process that reads in bulk ended: {error}; ask again, or pull") from error
        if status == OK:
            return ArrowAnswer(created_us, first, following, start, rows, body)
        if status == GONE:
            raise StreamNotFound(operation.stream_id)
        reason = body.decode()
        raise DatabaseCorrupt(corrupt_text(reason)) if status == DAMAGED else StorageError(reason)

    def _ask_child(self, child: subprocess.Popen[bytes], operation: ArrowRead) -> bytearray:
        """The head of its answer. Raises OSError, EOFError."""
        assert child.stdin is not None, "it was started with pipes"
        child.stdin.write(operation.packed())
        child.stdin.flush()
        return self._read(child, ANSWER.size)

    def _ensure_child(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end_child()
            # It finds this package where this process found it.
            home = str(Path(__file__).resolve().parent.parent)
            search = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
            self._child = subprocess.Popen(
                [sys.executable, "-m", "storage.arrow_child", str(self._path.absolute())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search},
                # Ctrl-C is for the node, which ends its child when it has drained.
                start_new_session=True,
            )
            self.children += 1
            keep_large_blocks()
            if PIPE_SIZE is not None and self._child.stdout is not None:
                with contextlib.suppress(OSError):
                    fcntl.fcntl(self._child.stdout, PIPE_SIZE, PIPE_BYTES)
        return self._child

    def _read(self, child: subprocess.Popen[bytes], size: int) -> bytearray:
        """Exactly so many bytes of the child's answer. Raises EOFError, TimeoutError."""
        assert child.stdout is not None, "it was started with pipes"
        descriptor = child.stdout.fileno()
        # Not select(), which knows no descriptor above 1,023: a node may have ten thousand connections.
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        taken = bytearray(size)
        view, at = memoryview(taken), 0
        while at < size:
            if not ready.poll(ANSWER_TIMEOUT_S * 1000):
                raise TimeoutError(f"no answer in {ANSWER_TIMEOUT_S} s")
            count = os.readv(descriptor, [view[at:]])
            if not count:
                raise EOFError(f"exit code {child.poll()}")
            at += count
        return taken

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            child.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
