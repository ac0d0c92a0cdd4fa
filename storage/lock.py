"""The lock on a data directory: one node at a time, and whether the last one stopped in good order.

The file holds the owner's process id while the directory is in use, and nothing after a clean stop. A process
that was killed loses the lock but leaves its id behind. A second line has the id of the machine's start (its boot),
where the system tells: within one, a killed process leaves all that it wrote; no power cut has taken part of it.
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
    """Which start of the machine this is; nothing where the system does not tell."""
    try:
        return BOOT_ID_FILE.read_bytes().strip()
    except OSError:
        return b""


def owner_of(directory: Path) -> int | None:
    """The process id in the file; None where the last owner stopped in good order, or the file is missing. Takes no
    lock. Raises OSError."""
    try:
        owner = (directory / FILE_NAME).read_bytes()[:OWNER_BYTES_MAX].strip().partition(b"\n")[0]
    except FileNotFoundError:
        return None
    return int(owner) if owner.isdigit() else None


def owner_lives(directory: Path) -> bool:
    """Whether there is a process with the id in the file, which may be another's by now. Takes no lock."""
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
    """Whether what the last owner left was written in this start of the machine, for sure. Takes no lock."""
    try:
        content = (directory / FILE_NAME).read_bytes()
    except OSError:
        return False
    boot = content[:OWNER_BYTES_MAX].strip().partition(b"\n")[2]
    return boot != b"" and boot == boot_id()


class DirectoryLock:
    """Held from creation until `release`. left_unclean: the last owner did not stop in good order. same_boot: since
    what it left was written, the machine has not been started anew, for sure."""

    def __init__(self, directory: Path) -> None:
        """Raises DatabaseInUse with the owner's process id, StorageError."""
        try:
            self._file = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner, _, self._boot = os.pread(self._file, OWNER_BYTES_MAX, 0).strip().partition(b"\n")
            self.left_unclean = owner != b""
            self.same_boot = self._boot != b"" and self._boot == boot_id()
            # Until what was left is recovered, it is still of the start in which it was written.
            self._write_owner(b"%d\n%s\n" % (os.getpid(), self._boot))
        except BlockingIOError as error:
            owner = self._read_owner()
            os.close(self._file)
            raise DatabaseInUse(int(owner) if owner.isdigit() else None, directory) from error
        except OSError as error:
            os.close(self._file)
            raise storage_error(error) from error

    def confirm_boot(self, *, emptied: bool) -> None:
        """From now on all is written in this start of the machine. emptied: nothing is left of what was written before;
        otherwise it stays unknown."""
        self._boot = boot_id() if emptied else b""
        try:
            self._write_owner(b"%d\n%s\n" % (os.getpid(), self._boot))
        except OSError as error:
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
        return os.pread(self._file, OWNER_BYTES_MAX, 0).strip().partition(b"\n")[0]

    def _write_owner(self, owner: bytes) -> None:
        """Write before cutting off what was there, so that a reader never finds it empty by accident."""
        os.pwrite(self._file, owner, 0)
        os.ftruncate(self._file, len(owner))
        os.fsync(self._file)
