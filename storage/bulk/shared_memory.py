"""SharedMemory: memory that a process and its child share. The two agree on when which of them may write.

A page of some megabytes costs one copy on each side. A pipe would cut it into pieces, with two changes of process for
each piece.
"""

from __future__ import annotations

import mmap
import os
import tempfile

STEP_BYTES = 4 * 1024 * 1024
"""The memory has this size at first, and grows by multiples of it."""


class SharedMemory:
    """Memory in a file without a name, which two processes map.

    descriptor: the descriptor of the file. A child inherits it, and makes its own `SharedMemory` from it.
    Invariant: the file never shrinks, and `_map` has the size that the file had when it was mapped.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedMemory:
        """Make new memory. Raises OSError where there is no room for it."""
        memory = cls(_open_file())
        try:
            memory.grow(STEP_BYTES)
        except BaseException:
            memory.close()
            raise
        return memory

    def grow(self, size_bytes: int) -> None:
        """Make the memory at least this large. Raises OSError where there is no room."""
        if size_bytes > os.fstat(self.descriptor).st_size:
            _allocate(self.descriptor, -(-size_bytes // STEP_BYTES) * STEP_BYTES)

    def view(self, size_bytes: int) -> memoryview:
        """The first `size_bytes`, which the other process may change later. Raises EOFError beyond the end."""
        if self._map is None or len(self._map) < size_bytes:
            # The old mapping goes when the last view of it goes.
            self._map = mmap.mmap(self.descriptor, 0)
        if len(self._map) < size_bytes:
            raise EOFError(f"{size_bytes} bytes of shared memory that has {len(self._map)}")
        return memoryview(self._map)[:size_bytes]

    def close(self) -> None:
        """Close the file. To be called once. The other process keeps its mapping."""
        self._map = None
        os.close(self.descriptor)


def _open_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stream-node")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _allocate(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        # Allocate now: writing to a page that has no room would kill the process with a signal.
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
