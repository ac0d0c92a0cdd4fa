"""The child process for bulk reads, with an SQLite and an interpreter lock of its own.

`storage.bulk.child` starts it as `python -m storage.bulk.child_main FILE DESCRIPTOR`. It reads requests from standard
input and answers them on standard output, one after the other. It ends when the input ends, so also when the node is
killed. `storage.bulk.arrow_pages` says why this is a process.

    request   i64 stream_id | i64 start | i64 end | i64 bytes_max | u8 columns      little-endian
    answer    u8 status | i64 created_us | i64 first_index | i64 next_index | i64 start | i64 rows | u32 size

columns: a sum of 1 for data, 2 for key and beside, 4 for checksum. The answer itself stands in the memory that the
descriptor shares, `size` bytes, until the next request: an Arrow IPC stream if the status is OK, else a text.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, BinaryIO

from storage.bulk.shared_memory import SharedMemory

if TYPE_CHECKING:
    from storage.bulk.arrow_pages import ArrowPage

REQUEST = struct.Struct("<qqqqB")
ANSWER = struct.Struct("<BqqqqqI")
NICE = 10
REASON_BYTES_MAX = 4096
OK, FAILED, GONE, DAMAGED = range(4)
DATA, BESIDE, CHECKSUM = 1, 2, 4


def serve(path: str, memory: SharedMemory, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends. An error of the file or of a request is an answer too."""
    from storage.bulk.arrow_pages import ArrowPages, Columns, PagesDamaged, PagesError, StreamGone

    pages: ArrowPages | None = None
    while len(request := requests.read(REQUEST.size)) == REQUEST.size:
        stream_id, start, end, bytes_max, flags = REQUEST.unpack(request)
        columns = Columns(bool(flags & DATA), bool(flags & BESIDE), bool(flags & CHECKSUM))
        try:
            if pages is None:
                pages = ArrowPages(path)
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
    """Write a page into the shared memory, and return its size. Raises PagesError."""
    from storage.bulk.arrow_pages import PagesError, ipc_size_bytes, write_ipc

    size = ipc_size_bytes(page.batch)
    try:
        memory.grow(size)
    except OSError as error:
        raise PagesError(f"there is no memory for a page of {size} bytes: {error}") from error
    write_ipc(page.batch, memory.view(size))
    return size


if __name__ == "__main__":
    # Where there are not enough cores, pushes and pulls of the node go first.
    os.nice(NICE)
    serve(sys.argv[1], SharedMemory(int(sys.argv[2])), sys.stdin.buffer, sys.stdout.buffer)
