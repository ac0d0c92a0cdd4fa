"""The program of the child process for bulk reads, which reads pages of a stream as Arrow for the node.

It is started as `python -m stream_storage.sqlite.bulk.child_main FILE DESCRIPTOR`. It reads requests from standard
input and writes an answer to each to standard output. It ends when the input ends, also because the node was killed.

    request   i64 stream_id | i64 start | i64 end | i64 bytes_max | u8 columns      little-endian
    answer    u8 status | i64 created_us | i64 first_index | i64 next_index | i64 start | i64 rows | u32 size

columns: the sum of 1 for the data, 2 for keys and headers, 4 for the checksum.
size: the number of bytes in the shared memory of DESCRIPTOR, until the next request: an Arrow IPC stream if the status
    is OK, else the text of an error."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from stream_storage.sqlite.bulk.arrow_pages import ArrowPage

STEP_BYTES = 4 * 1024 * 1024
"""The first size of the memory, which stays a multiple of this number."""


class SharedMemory:
    """A file without a name that two processes map: a pipe would cut a page into pieces, and each piece would cost two
    switches between the processes. A child makes its own object from the inherited `descriptor`.

    Invariant: the file never shrinks, and `_map` has the size that the file had when it was mapped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedMemory:
        memory = cls(_open_file())
        try:
            memory.grow(STEP_BYTES)
        except BaseException:
            memory.close()
            raise
        return memory

    def grow(self, size_bytes: int) -> None:
        """Makes the memory at least this large. Raises OSError if the system has no room for it."""
        if size_bytes <= os.fstat(self.descriptor).st_size:
            return
        size_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        if hasattr(os, "posix_fallocate"):
            # Allocate the room here: if the system had no room at a later write, a signal would kill the process.
            os.posix_fallocate(self.descriptor, 0, size_bytes)
        else:
            os.ftruncate(self.descriptor, size_bytes)

    def view(self, size_bytes: int) -> memoryview:
        """Returns a view of the first bytes, which later writes of the other process change. Raises EOFError if there
        are fewer."""
        if self._map is None or len(self._map) < size_bytes:
            # The old mapping is freed together with its last view.
            self._map = mmap.mmap(self.descriptor, 0)
        if len(self._map) < size_bytes:
            raise EOFError(f"{size_bytes} bytes of shared memory that has {len(self._map)}")
        return memoryview(self._map)[:size_bytes]

    def close(self) -> None:
        """Closes the file. Called once; the other process keeps its mapping."""
        self._map = None
        os.close(self.descriptor)


def _open_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stream-node")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


REQUEST = struct.Struct("<qqqqB")
ANSWER = struct.Struct("<BqqqqqI")
NICE = 10
REASON_BYTES_MAX = 4096
OK, FAILED, GONE, DAMAGED = range(4)
DATA, BESIDE, CHECKSUM = 1, 2, 4


def serve(path: str, memory: SharedMemory, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until the input ends."""
    from stream_storage.sqlite.bulk.arrow_pages import ArrowPages, Columns, PagesDamaged, PagesError, StreamGone

    pages: ArrowPages | None = None
    while len(request := requests.read(REQUEST.size)) == REQUEST.size:
        stream_id, start, end, bytes_max, flags = REQUEST.unpack(request)
        columns = Columns(bool(flags & DATA), bool(flags & BESIDE), bool(flags & CHECKSUM))
        try:
            if pages is None:
                pages = ArrowPages(path)
                # If the machine has too few cores, the pushes and pulls of the node must get the processor before bulk
                # reads. Not before this line, though: the last imports are over here, and with a low priority they
                # would take longer on a busy machine than the node waits for the first answer.
                os.nice(NICE)
            page = pages.read(stream_id, start, end, bytes_max, columns)
            size = _share(page, memory)
        except PagesError as error:
            status = GONE if isinstance(error, StreamGone) else DAMAGED if isinstance(error, PagesDamaged) else FAILED
            reason = str(error).encode()[:REASON_BYTES_MAX]
            memory.view(len(reason))[:] = reason
            answers.write(ANSWER.pack(status, 0, 0, 0, 0, 0, len(reason)))
        else:
            bounds = (page.created_us, page.first_index, page.next_index, page.start, page.rows)
            answers.write(ANSWER.pack(OK, *bounds, size))
        answers.flush()


def _share(page: ArrowPage, memory: SharedMemory) -> int:
    """Writes a page into the shared memory, and returns its size. Raises PagesError."""
    from stream_storage.sqlite.bulk.arrow_pages import PagesError, ipc_size_bytes, write_ipc

    size = ipc_size_bytes(page.batch)
    try:
        memory.grow(size)
    except OSError as error:
        raise PagesError(f"there is no memory for a page of {size} bytes: {error}") from error
    write_ipc(page.batch, memory.view(size))
    return size


if __name__ == "__main__":
    serve(sys.argv[1], SharedMemory(int(sys.argv[2])), sys.stdin.buffer, sys.stdout.buffer)
