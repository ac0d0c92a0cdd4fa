"""Folders and files that outlast a power cut, names included. It knows no database and no format.

Syncing a file makes its content last. The file's name stands in its folder, and lasts once the folder has been synced;
the folder's own name stands in the folder above, and so on. Every part of the program that keeps something on disk
makes, replaces and renames through this module.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

CANNOT_BE_SYNCED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS})
"""Of a folder above ours: this user may not read it, or its file system is read-only or syncs no folders. Its names are
older than we are, or nothing can be done about them."""


def make_folder(folder: Path) -> list[Path]:
    """Make a folder, and those above it, where they are missing; the folders that were made, the uppermost first.

    When this returns the names of all of them are on disk. Those that were there before count too: another process may
    have made them a moment ago, and ended before it synced them. Raises OSError.
    """
    missing, above = [], folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    made = list(reversed(missing))
    for each in made:
        each.mkdir(exist_ok=True)
    if not made:
        # Says so where a file has the name.
        folder.mkdir(exist_ok=True)
    sync_names(folder)
    return made


def remove_folders(made: list[Path]) -> None:
    """Remove what `make_folder` made, as far as it is empty."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def sync_names(path: Path) -> None:
    """Every name that leads to a file or folder is on disk when this returns. Raises OSError."""
    # Where a link is among them, the folders that lead to the link and those that lead to its target.
    for folder in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
        try:
            sync(folder)
        except OSError as error:
            if error.errno not in CANNOT_BE_SYNCED:
                raise


def sync(path: Path) -> None:
    """What was written to a file, or the names in a folder, are on disk when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Atomic: `target` is as it was, and then it is what `source` was. On disk when this returns. Raises OSError."""
    source.replace(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def write_durably(file: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Make or replace a file as a whole: readers find the old content or the new, also after a power cut. On disk when
    this returns; its folder must exist. mode: of a new file, less the user's mask. Raises OSError; then the file is as
    it was, or, where only the last sync failed, either."""
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
