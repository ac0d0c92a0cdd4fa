"""Sets how much freed memory this process keeps: the C library (glibc only), and the page caches of SQLite."""

from __future__ import annotations

import ctypes
import sqlite3

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of `mallopt`, from malloc.h."""
RETURNED_BYTES = 512 * 1024
"""`return_freed` gives freed blocks of at least this size back to the system. Most messages are smaller."""

_returns = False


def keep_freed(kept_bytes: int) -> None:
    """Makes the C library keep this much freed memory, for blocks of up to half of it. Does nothing after
    `return_freed`."""
    if not _returns:
        _set(kept_bytes // 2, kept_bytes)


def return_freed(cache_bytes: int) -> None:
    """Gives large freed blocks back to the system, and shrinks all page caches of SQLite above `cache_bytes`."""
    global _returns
    _returns = True
    _set(RETURNED_BYTES, RETURNED_BYTES)
    # The limit is one of the process, not of this connection.
    connection = sqlite3.connect(":memory:")
    connection.execute(f"PRAGMA soft_heap_limit={cache_bytes}")
    connection.close()


def _set(mapped_bytes: int, kept_bytes: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, mapped_bytes)
        mallopt(M_TRIM_THRESHOLD, kept_bytes)
