"""Makes, replaces and renames files and folders so that they outlast a power cut, with their names.

Syncing a file makes its content durable. The file's name is kept in its folder, and is durable once the folder has been
synced; the name of the folder is kept in the folder above, and so on. Every part of the program that keeps files uses
this module. It knows no database and no format.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

CANNOT_BE_SYNCED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS})
"""Errors of syncing a folder above ours that are passed over: this user may not read the folder, or its file system is
read-only or syncs no folders. The names in such a folder are older than our files, or nothing can be done."""


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and the missing folders above it. Returns the folders that were made, the uppermost first.

    When this returns, the names of all these folders are on disk, also of the folders that existed before: another
    process may have made them a moment ago, and ended before it synced them. Raises OSError.
    """
    missing, above = [], folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    made = list(reversed(missing))
    for each in made:
        each.mkdir(exist_ok=True)
    if not made:
        # Raises FileExistsError if the path is a file.
        folder.mkdir(exist_ok=True)
    sync_names(folder)
    return made


def remove_folders(made: list[Path]) -> None:
    """Remove the folders that `make_folder` made, unless there is something in them."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def sync_names(path: Path) -> None:
    """When this returns, all folder names on the path to a file or folder are on disk. Raises OSError."""
    # If the path has a symbolic link, the folders that lead to the link count, and those that lead to its target.
    for folder in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
        try:
            sync(folder)
        except OSError as error:
            if error.errno not in CANNOT_BE_SYNCED:
                raise


def sync(path: Path) -> None:
    """When this returns, the content of a file, or the names in a folder, are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Rename atomically: `target` is either the old file or the new one. On disk when this returns. Raises OSError."""
    source.replace(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def write_durably(file: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Make or replace a file as a whole: readers find the old content or the new one, also after a power cut.

    The content is on disk when this returns. The folder must exist. mode: the permissions of a new file, less the
    user's mask. Raises OSError; then the file has its old content, or possibly the new one if only the last sync
    failed.
    """
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as writing:
            writing.write(content)
            writing.flush()
            os.fsync(descriptor)
        rename_durably(part, file)
    finally:
        part.unlink(missing_ok=True)
