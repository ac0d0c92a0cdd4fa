"""Memory that a process shares with its child process. It does not keep both from writing at the same time.

A page of several megabytes is copied once by the child and once by the node. A pipe would cut it into pieces, and each
piece would cost two switches between the processes."""

from __future__ import annotations

import mmap
import os
import tempfile

STEP_BYTES = 4 * 1024 * 1024
"""The first size of the memory, which stays a multiple of this number."""


class SharedMemory:
    """A file without a name that two processes map. A child makes its own object from the inherited `descriptor`.

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
        if size_bytes > os.fstat(self.descriptor).st_size:
            _allocate(self.descriptor, -(-size_bytes // STEP_BYTES) * STEP_BYTES)

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


def _allocate(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        # Allocate the room here: if the system had no room at a later write, a signal would kill the process.
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
