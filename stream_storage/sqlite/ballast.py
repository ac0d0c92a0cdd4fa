"""A file that takes room on the disk, and is given up when deletes and saves need room.

On a full disk, SQLite cannot even delete. So the node keeps this file, as CockroachDB does. To give the file up is to
empty it: an empty file says that pushes must not use its room."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from ockam.files.durable_files import create_private
from stream_storage.sqlite.disk_diagnosis import take_room

FILE_NAME: Final = "ballast"
SIZE_BYTES: Final = 8 * 1024 * 1024
"""The size of the ballast. A step of a deletion writes less than 4 MiB to the log, and then again to the database."""

logger = structlog.get_logger(__name__)


class Ballast:
    """The ballast of one data directory: a file that keeps room for deletes and saves. `give_up` can be called in
    another thread than `ensure`."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE_NAME

    def ensure(self, spare_bytes: int, *, begins: bool) -> int:
        """Makes the ballast, unless it is there or the disk has less spare room than twice its size. Returns the bytes
        of spare room to keep for it: its size while it is given up, else 0. Raises OSError.

        spare_bytes: the free room beyond the room that pushes always leave free.
        begins: whether to make the first ballast, too; if false, only one that was given up is made again."""
        size_bytes = self._size_bytes()
        if size_bytes == SIZE_BYTES:
            return 0
        if spare_bytes < 2 * SIZE_BYTES or (size_bytes is None and not begins):
            return 0 if size_bytes is None else SIZE_BYTES
        try:
            with create_private(self._file) as file:
                take_room(file.fileno(), 0, SIZE_BYTES)
        except OSError:
            # A quota can allow less than the disk has. A folder of this name stays.
            with suppress(OSError):
                if size_bytes is None:
                    self._file.unlink()
                else:
                    # The file stays empty: pushes still leave its room free, and the next call tries again.
                    os.truncate(self._file, 0)
            return 0 if size_bytes is None else SIZE_BYTES
        if size_bytes is not None:
            logger.info("ballast_made_again", size_bytes=SIZE_BYTES)
        return 0

    def give_up(self) -> bool:
        """Empties the file. Returns whether this has freed room."""
        try:
            if not self._size_bytes():
                return False
            os.truncate(self._file, 0)
        except OSError as error:
            logger.error("ballast_not_given_up", reason=str(error))
            return False
        logger.warning("ballast_given_up", do="make room on the disk; the room of the ballast is for deletes and saves")
        return True

    def _size_bytes(self) -> int | None:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None
