"""The lock on a data directory: one node at a time has it. The lock file also tells whether the last stop was clean.

The file holds the owner's process id while the directory is in use, and is empty after a clean stop. A process that was
killed loses the lock but leaves its id behind. A second line has the boot id of the machine, where the system tells it.
If the machine has not been started anew since, no power cut has taken a part of what the killed process wrote.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from storage.errors import DatabaseInUse, storage_error

FILE_NAME = "node.lock"
OWNER_BYTES_MAX = 128


BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """The id of the present start of the machine; empty where the system does not tell it."""
    try:
        return BOOT_ID_FILE.read_bytes().strip()
    except OSError:
        return b""


def owner_of(directory: Path) -> int | None:
    """The process id in the lock file; None after a clean stop or without a file. Takes no lock. Raises OSError."""
    try:
        owner = (directory / FILE_NAME).read_bytes()[:OWNER_BYTES_MAX].strip().partition(b"\n")[0]
    except FileNotFoundError:
        return None
    return int(owner) if owner.isdigit() else None


def owner_lives(directory: Path) -> bool:
    """Whether a process has the id in the lock file; the id may belong to another program by now. Takes no lock."""
    try:
        owner = owner_of(directory)
        if owner is None:
            return False
        os.kill(owner, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except OSError:
        return True
    return True


def left_in_this_boot(directory: Path) -> bool:
    """Whether the last owner certainly wrote in the present start of the machine. Takes no lock."""
    try:
        content = (directory / FILE_NAME).read_bytes()
    except OSError:
        return False
    boot = content[:OWNER_BYTES_MAX].strip().partition(b"\n")[2]
    return boot != b"" and boot == boot_id()


class DirectoryLock:
    """A lock that is held from its creation until `release`.

    left_unclean: the last stop was not clean. same_boot: the machine has certainly not been started anew since the last
    owner wrote.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises DatabaseInUse with the owner's process id, StorageError."""
        try:
            self._file = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner, _, self._boot = os.pread(self._file, OWNER_BYTES_MAX, 0).strip().partition(b"\n")
            self.left_unclean = owner != b""
            self.same_boot = self._boot != b"" and self._boot == boot_id()
            # Keep the old boot id until the files are recovered: they were written in that start of the machine.
            self._write_owner(b"%d\n%s\n" % (os.getpid(), self._boot))
        except BlockingIOError as error:
            owner = self._read_owner()
            os.close(self._file)
            raise DatabaseInUse(int(owner) if owner.isdigit() else None, directory) from error
        except OSError as error:
            os.close(self._file)
            raise storage_error(error) from error

    def confirm_boot(self, *, emptied: bool) -> None:
        """Write the present boot id, now that the files are recovered.

        emptied: the write-ahead log is empty. Otherwise it holds frames of an earlier start, and the file gets no boot
        id.
        """
        self._boot = boot_id() if emptied else b""
        try:
            self._write_owner(b"%d\n%s\n" % (os.getpid(), self._boot))
        except OSError as error:
            raise storage_error(error) from error

    def release(self, *, clean: bool) -> None:
        """Give up the lock. clean: the next owner has nothing to recover or check."""
        try:
            if clean:
                self._write_owner(b"")
        except OSError as error:
            raise storage_error(error) from error
        finally:
            os.close(self._file)

    def _read_owner(self) -> bytes:
        return os.pread(self._file, OWNER_BYTES_MAX, 0).strip().partition(b"\n")[0]

    def _write_owner(self, owner: bytes) -> None:
        """Write the new text, then cut off the rest of the old one: a reader never finds the file empty by accident."""
        os.pwrite(self._file, owner, 0)
        os.ftruncate(self._file, len(owner))
        os.fsync(self._file)
