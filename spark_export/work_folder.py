"""The folder for the temporary files of this process and of its Spark."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

PREFIX = "stream-node-spark-"


@cache
def work_folder() -> Path:
    """Returns a folder that is removed when this process ends. Also removes the folders of killed processes.

    A process has a lock on its folder as long as it lives. So a folder whose lock is free has no owner, even if
    containers with process numbers of their own share the folder for temporary files.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Another process may remove the folder at the same time.
        with suppress(OSError):
            lock = _open(folder)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(lock)
    while True:
        made = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):
            fcntl.flock(_open(made), fcntl.LOCK_EX)
            # Another process may have found the new folder without a lock, and removed it.
            if made.exists():
                break
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(folder: Path, owner: int) -> None:
    # A forked process that ends must not remove the folder of its parent.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
