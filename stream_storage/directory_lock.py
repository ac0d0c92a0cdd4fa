"""The lock on a data directory, which one node at a time can hold. Its file also shows whether the last stop was clean.

The first line of the file is the owner's process id while the directory is in use, and stays there if the process is
killed. After a clean stop the file is empty, or holds the word KEPT if another program was reading the database, so
that commits stayed in the write-ahead log. The second line is the boot id of the machine, if the system has one. If it
is still the same, no power cut can have lost a part of the write-ahead log."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from ockam.files.durable_files import CANNOT_BE_LOCKED, PRIVATE_MODE, give_to_folder
from stream_storage.errors import DatabaseInUse, NoLocks, system_error

FILE_NAME = "node.lock"
OWNER_BYTES_MAX = 128
KEPT = b"kept"
"""The first line after a clean stop that left commits in the write-ahead log. The log is complete and synced."""


BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Returns the boot id of the machine, which changes at each restart; b"" if the system has none."""
    try:
        return BOOT_ID_FILE.read_bytes().strip()
    except OSError:
        return b""


def owner_of(directory: Path) -> int | None:
    """Returns the process id in the lock file; None after a clean stop or without a file. Raises OSError."""
    try:
        owner = (directory / FILE_NAME).read_bytes()[:OWNER_BYTES_MAX].strip().partition(b"\n")[0]
    except FileNotFoundError:
        return None
    return int(owner) if owner.isdigit() else None


def owner_lives(directory: Path) -> bool:
    """Returns whether the process in the lock file runs. The id can belong to another program by now. Takes no lock."""
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
    """Returns whether the machine has certainly not restarted since the last owner wrote. Takes no lock."""
    try:
        content = (directory / FILE_NAME).read_bytes()
    except OSError:
        return False
    boot = content[:OWNER_BYTES_MAX].strip().partition(b"\n")[2]
    return boot != b"" and boot == boot_id()


def check_locks(directory: Path) -> None:
    """Raises NoLocks if the file system lacks the locks that SQLite needs. SQLite would say that the database is in
    use. Locks a nameless file: a lock on the database itself would end when its descriptor is closed."""
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # The next step reports any other fault of the directory.
        if error.errno in CANNOT_BE_LOCKED:
            raise NoLocks(directory, error.strerror) from error


class DirectoryLock:
    """The lock on one data directory, held from the creation of the object until `release`.

    left_unclean: whether the last stop was not clean.
    log_kept: whether the last stop was clean and left commits in the write-ahead log.
    same_boot: True if the machine has certainly not restarted since the last owner wrote to the directory."""

    def __init__(self, directory: Path) -> None:
        """Takes the lock. Raises DatabaseInUse, with the owner's process id, NoLocks, and other StorageErrors."""
        try:
            self._file = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT, PRIVATE_MODE)
            give_to_folder(self._file, directory)
        except OSError as error:
            raise system_error(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner, _, self._boot = os.pread(self._file, OWNER_BYTES_MAX, 0).strip().partition(b"\n")
            self.log_kept = owner == KEPT
            self.left_unclean = owner != b"" and not self.log_kept
            self.same_boot = self._boot != b"" and self._boot == boot_id()
            # Keep the old boot id in the file until the database is recovered: it shows whether the machine has
            # restarted since the database was written.
            self._write_owner(b"%d\n%s\n" % (os.getpid(), self._boot))
        except BlockingIOError as error:
            owner = os.pread(self._file, OWNER_BYTES_MAX, 0).strip().partition(b"\n")[0]
            os.close(self._file)
            raise DatabaseInUse(int(owner) if owner.isdigit() else None, directory) from error
        except OSError as error:
            os.close(self._file)
            if error.errno in CANNOT_BE_LOCKED:
                raise NoLocks(directory, error.strerror) from error
            raise system_error(error) from error

    @property
    def descriptor(self) -> int:
        """The descriptor of the lock file. A process that inherits it holds the lock, too, until it ends."""
        return self._file

    def confirm_boot(self, *, emptied: bool) -> None:
        """Writes the current boot id, after the database is recovered: the id says that all of the write-ahead log was
        written in this boot. Writes no id if the log is not `emptied` and the machine may have restarted since."""
        self._boot = boot_id() if emptied or self.same_boot else b""
        try:
            self._write_owner(b"%d\n%s\n" % (os.getpid(), self._boot))
        except OSError as error:
            raise system_error(error) from error

    def release(self, *, clean: bool, log_kept: bool = False) -> None:
        """Releases the lock. clean: whether the next owner has nothing to recover or check. log_kept: whether a clean
        stop leaves commits in the write-ahead log."""
        try:
            if clean:
                self._write_owner(b"%s\n%s\n" % (KEPT, self._boot) if log_kept else b"")
        except OSError as error:
            raise system_error(error) from error
        finally:
            os.close(self._file)

    def release_as_found(self) -> None:
        """Releases the lock of an owner that has changed nothing, so that the next owner makes the same checks."""
        self.release(clean=not self.left_unclean, log_kept=self.log_kept)

    def _write_owner(self, owner: bytes) -> None:
        # The rest of the old content is cut off after the write: in this order a reader never finds the file empty.
        os.pwrite(self._file, owner, 0)
        os.ftruncate(self._file, len(owner))
        os.fsync(self._file)
