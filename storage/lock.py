"""The lock on a data directory: one node at a time, and whether the last one stopped in good order.

The file holds the owner's process id while the directory is in use, and nothing after a clean stop. A process
that was killed loses the lock but leaves its id behind.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from storage.errors import DatabaseInUse, storage_error

FILE_NAME = "node.lock"


class DirectoryLock:
    """Held from creation until `release`. left_unclean: the last owner did not stop in good order."""

    def __init__(self, directory: Path) -> None:
        """Raises DatabaseInUse with the owner's process id, StorageError."""
        try:
            self._file = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.left_unclean = self._read_owner() != b""
            self._write_owner(b"%d\n" % os.getpid())
        except BlockingIOError as error:
            owner = self._read_owner()
            os.close(self._file)
            raise DatabaseInUse(int(owner) if owner.isdigit() else None, directory) from error
        except OSError as error:
            os.close(self._file)
            raise storage_error(error) from error

    def release(self, *, clean: bool) -> None:
        """Give the directory up. clean: nothing has to be recovered or checked by the next owner."""
        try:
            if clean:
                self._write_owner(b"")
        except OSError as error:
            raise storage_error(error) from error
        finally:
            os.close(self._file)

    def _read_owner(self) -> bytes:
        return os.pread(self._file, 32, 0).strip()

    def _write_owner(self, owner: bytes) -> None:
        """Write before cutting off what was there, so that a reader never finds it empty by accident."""
        os.pwrite(self._file, owner, 0)
        os.ftruncate(self._file, len(owner))
        os.fsync(self._file)
