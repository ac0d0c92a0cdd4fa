"""Creates, replaces and renames files and folders so that their content and their names survive a power cut.

Syncing a file makes its content durable. The name of the file is stored in its folder, and becomes durable when the
folder is synced. The name of the folder is in its parent folder, and so on.

`with_seal` and `without_seal`: a line in a small file with a checksum of all its other bytes. It shows damage, not
attacks. A file without the line is read as it is: an older version wrote it, or a user who changed it by hand has
removed the line. The next write by the program seals it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

CANNOT_BE_SYNCED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS})
"""The error numbers that `sync_names` ignores for a parent folder: this user may not read it, or its file system is
read-only or cannot sync folders. Usually its names are older than the program's files."""

PRIVATE_MODE: Final = 0o600
"""The permissions of a file with messages or rules: only its owner may read and write it."""

CANNOT_BE_LOCKED: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})
"""The error numbers of a file system that cannot lock folders."""


def make_folder(folder: Path, *, mode: int = 0o777) -> list[Path]:
    """Creates a folder, with the permissions `mode` before the umask, and its missing parents. Returns the created
    folders, the topmost first. Raises OSError."""
    missing, above = [], folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    made = list(reversed(missing))
    for each in made:
        each.mkdir(mode if each == folder else 0o777, exist_ok=True)
        give_to_folder(each, each.parent)
    if not made:
        # Raises FileExistsError if the path is a file.
        folder.mkdir(exist_ok=True)
    # The names of folders that existed are synced, too: a process may have made a folder and ended before the sync.
    sync_names(folder)
    return made


def remove_folders(made: list[Path]) -> None:
    """Removes the folders that `make_folder` has created, except folders that are not empty."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def sync_names(path: Path) -> None:
    """Makes the name of `path` and the names of its parent folders durable. Raises OSError."""
    # If the path contains a symbolic link, sync the folders that lead to the link and the folders that lead to its
    # target.
    for folder in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
        try:
            sync(folder)
        except OSError as error:
            if error.errno not in CANNOT_BE_SYNCED:
                raise


def sync(path: Path) -> None:
    """Makes the content of a file, or the names in a folder, durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Renames a file atomically and durably: `target` is at every moment the old file or the new one. The file gets the
    owner and group of the file that it replaces (`keep_owner`). Raises OSError."""
    keep_owner(source, target)
    source.replace(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def create_private(file: Path) -> BinaryIO:
    """Opens a new or emptied file for writing that only this user may read, whatever the umask is. A file of the
    superuser belongs to the owner of its folder. Raises OSError."""
    # The superuser follows no link in a folder of another user: it could lead to a file of the system.
    follows = 0 if os.geteuid() else os.O_NOFOLLOW
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | follows, PRIVATE_MODE)
    give_to_folder(descriptor, file.parent)
    os.fchmod(descriptor, PRIVATE_MODE)
    return os.fdopen(descriptor, "wb")


def keep_owner(made: Path | int, place: Path) -> None:
    """Gives a file (its path or descriptor) the owner and group of the file that it will replace at `place`, if this
    process may do that. If there is no file at `place`, does the same as `give_to_folder`. Raises OSError."""
    try:
        _give(made, place.stat())
    except FileNotFoundError:
        give_to_folder(made, place.parent)


def give_to_folder(made: Path | int, folder: Path) -> None:
    """Gives a file or folder of the superuser to the owner of its folder, so that the user of a node or an exporter can
    use what an administrator has made. Raises OSError."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        _give(made, owner)


def give_tree(folder: Path) -> None:
    """Gives all files and folders of the superuser below a folder to the folder's owner. Raises OSError."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        for root, folders, files in os.walk(folder):
            for name in (*folders, *files):
                # A task that was given up can remove its files meanwhile.
                with suppress(FileNotFoundError):
                    if Path(root, name).lstat().st_uid == 0:
                        _give(Path(root, name), owner)


def _give(made: Path | int, owner: os.stat_result) -> None:
    own = os.fstat(made) if isinstance(made, int) else made.lstat()
    # A file with a second name can be a file of the system that somebody else has linked into this folder.
    is_alone = own.st_nlink == 1 or not stat.S_ISREG(own.st_mode)
    if (own.st_uid, own.st_gid) != (owner.st_uid, owner.st_gid) and is_alone:
        # Only the superuser may give files away. Other users keep the file as their own, and may write it as before.
        with suppress(PermissionError):
            os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=isinstance(made, int))


def make_private(file: Path) -> None:
    """Takes the permissions of other users from a file of this user, if it exists. Raises OSError."""
    with suppress(FileNotFoundError, PermissionError):
        if stat.S_IMODE(file.stat().st_mode) & ~PRIVATE_MODE:
            file.chmod(PRIVATE_MODE)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder while the block runs, so that no two programs change a file in it at once. The lock is
    advisory, and leaves no file. Where folders cannot be locked, the block runs unlocked. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in CANNOT_BE_LOCKED:
                raise
        yield
    finally:
        os.close(descriptor)


def write_durably(file: Path, content: bytes, *, mode: int | None = None) -> None:
    """Creates or replaces a file as a whole and durably: readers find the complete old or the complete new content.

    The folder must exist. A replaced file keeps its permissions and, if this process may set them, its owner and group;
    a new file of the superuser belongs to the owner of its folder. Raises OSError; then the file has its old content,
    or the new content if only the last sync failed.

    mode: the most permissions that the file can have, for files with secrets. A new file gets all of them, before the
        user's umask is applied; a file that is replaced loses all others. None: a new file gets the usual permissions.
    """
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as writing:
            # Owner and permissions are set before there is content to read.
            keep_owner(descriptor, file)
            with suppress(FileNotFoundError):
                kept = stat.S_IMODE(file.stat().st_mode)
                os.fchmod(descriptor, kept if mode is None else kept & mode)
            writing.write(content)
            writing.flush()
            os.fsync(descriptor)
        rename_durably(part, file)
    finally:
        part.unlink(missing_ok=True)


def state_of(file: Path) -> tuple[int, ...]:
    """Returns numbers that change when the file is written, replaced or given to another user; empty without a file."""
    try:
        found = file.stat()
    except OSError:
        return ()
    # A file that is replaced has another inode, also within one tick of the clock.
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


_LINE: Final = re.compile(rb'^(?:# seal: ([0-9a-f]{8})| "seal": "([0-9a-f]{8})",)\n', re.MULTILINE)


class SealBroken(ValueError):
    """The error of a sealed file whose content is not what was written. The text says what to do."""


def with_seal(content: bytes) -> bytes:
    """Returns the content with its seal: a field of a JSON object that is indented by one, else a comment line."""
    if content.startswith(b"{\n"):
        return b'{\n "seal": "%08x",\n%s' % (crc32(content), content[2:])
    return b"# seal: %08x\n%s" % (crc32(content), content)


def without_seal(content: bytes) -> bytes:
    """Returns the content of a file without its seal, if it has one. Raises SealBroken."""
    found = _LINE.search(content)
    if found is None:
        return content
    rest = content[: found.start()] + content[found.end() :]
    if crc32(rest) != int(found[1] or found[2], 16):
        raise SealBroken(
            "it is not what was written (its seal differs); put it back from a copy, or, if you have changed it by "
            "hand, remove the line with its seal"
        )
    return rest
