"""Memory that a process and its child share: one writes what the other copies out. Who may do so when is theirs to say.

A page of some megabytes so costs one copy on each side. Through a pipe it would be cut into pieces, with two changes of
process for each.
"""

from __future__ import annotations

import mmap
import os
import tempfile

STEP_BYTES = 4 * 1024 * 1024
"""It grows by multiples of this, and has as much at first."""


class SharedMemory:
    """descriptor: of a file without a name, which a child inherits and makes its own `SharedMemory` of.

    Invariant: the file is as large as it ever had to be, and `_map` covers what it was at the last `view`.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedMemory:
        """Raises OSError where there is no room for it."""
        memory = cls(_open_file())
        try:
            memory.grow(STEP_BYTES)
        except BaseException:
            memory.close()
            raise
        return memory

    def grow(self, size_bytes: int) -> None:
        """Have room for so many bytes at least. Raises OSError where there is none."""
        if size_bytes > os.fstat(self.descriptor).st_size:
            _allocate(self.descriptor, -(-size_bytes // STEP_BYTES) * STEP_BYTES)

    def view(self, size_bytes: int) -> memoryview:
        """The first so many bytes, which the other side changes when it is its turn. Raises EOFError beyond the end."""
        if self._map is None or len(self._map) < size_bytes:
            # The old one is unmapped with the last view of it.
            self._map = mmap.mmap(self.descriptor, 0)
        if len(self._map) < size_bytes:
            raise EOFError(f"{size_bytes} bytes of shared memory that has {len(self._map)}")
        return memoryview(self._map)[:size_bytes]

    def close(self) -> None:
        """Once. The other side keeps what it has mapped."""
        self._map = None
        os.close(self.descriptor)


def _open_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stream-node")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _allocate(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        # What is not there when it is written to ends the process by a signal.
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
