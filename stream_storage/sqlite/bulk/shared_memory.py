"""Memory that a process shares with its child process. This module does not prevent both processes from writing at the
same time.

With shared memory, a page of several megabytes is copied once by the child and once by the node. A pipe would cut the
page into pieces, and each piece would cost two switches between the processes.
"""

from __future__ import annotations

import mmap
import os
import tempfile

STEP_BYTES = 4 * 1024 * 1024
"""The initial size of the memory, in bytes. When the memory grows, its size stays a multiple of this number."""


class SharedMemory:
    """Shared memory: a file without a name that two processes map into their memory.

    descriptor: the descriptor of the file. A child inherits the descriptor, and makes its own `SharedMemory` from
    this descriptor.
    Invariant: the file never shrinks, and `_map` has the size that the file had when it was mapped.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedMemory:
        """Create new shared memory. Raises OSError if the system has no room for the memory."""
        memory = cls(_open_file())
        try:
            memory.grow(STEP_BYTES)
        except BaseException:
            memory.close()
            raise
        return memory

    def grow(self, size_bytes: int) -> None:
        """Make the memory at least `size_bytes` large. Raises OSError if the system has no room for the memory."""
        if size_bytes > os.fstat(self.descriptor).st_size:
            _allocate(self.descriptor, -(-size_bytes // STEP_BYTES) * STEP_BYTES)

    def view(self, size_bytes: int) -> memoryview:
        """Returns a view of the first `size_bytes` bytes. The bytes are not copied, so later writes of the other
        process change the view. Raises EOFError if the memory is smaller."""
        if self._map is None or len(self._map) < size_bytes:
            # The old mapping is freed together with its last view.
            self._map = mmap.mmap(self.descriptor, 0)
        if len(self._map) < size_bytes:
            raise EOFError(f"{size_bytes} bytes of shared memory that has {len(self._map)}")
        return memoryview(self._map)[:size_bytes]

    def close(self) -> None:
        """Close the file. Must be called only once. The other process keeps its mapping."""
        self._map = None
        os.close(self.descriptor)


def _open_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stream-node")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _allocate(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        # Allocate the room here: if the system had no room at a later write, a signal would kill the process.
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
