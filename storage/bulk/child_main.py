"""The program of the child process for bulk reads, which has its own copy of SQLite and its own interpreter lock.

`storage.bulk.child` starts it as `python -m storage.bulk.child_main FILE DESCRIPTOR`. It reads requests from standard
input and answers them on standard output, one after the other. It ends when the input ends, which also happens when the
node is killed. `storage.bulk.arrow_pages` explains why bulk reads need a process.

    request   i64 stream_id | i64 start | i64 end | i64 bytes_max | u8 columns      little-endian
    answer    u8 status | i64 created_us | i64 first_index | i64 next_index | i64 start | i64 rows | u32 size

columns: a sum of 1 for data, 2 for key and beside, 4 for checksum. size: the number of bytes that the child has written
into the shared memory of the descriptor. If the status is OK, they are an Arrow IPC stream, else the text of an error.
They stay there until the next request.
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
    """Answer requests until the input ends. If a request is wrong or the file cannot be read, the answer contains the
    error."""
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
    """Write a page into the shared memory. Returns the number of bytes written. Raises PagesError."""
    from storage.bulk.arrow_pages import PagesError, ipc_size_bytes, write_ipc

    size = ipc_size_bytes(page.batch)
    try:
        memory.grow(size)
    except OSError as error:
        raise PagesError(f"there is no memory for a page of {size} bytes: {error}") from error
    write_ipc(page.batch, memory.view(size))
    return size


if __name__ == "__main__":
    # If the machine has too few cores, the pushes and pulls of the node must go before bulk reads.
    os.nice(NICE)
    serve(sys.argv[1], SharedMemory(int(sys.argv[2])), sys.stdin.buffer, sys.stdout.buffer)
