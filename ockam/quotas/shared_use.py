"""SharedUse: what each identity uses at all worker processes of one node together.

The processes map one file. An entry of it is for one identity:

    key                    16 bytes    the BLAKE2b of the identity's text
    until                   8 bytes    when all permits to create partitions are there again, a time of the machine's
                                       steady clock in seconds
    counts     processes * 5 * 8 bytes    for each process, how many things are open, in the order of OPEN_LIMITS

A lock of the file is held for each change, so that two processes never both take the last place. The counts of a
process that has died are set to 0 by the process that takes its place."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from struct import Struct

from ockam.quotas.limits import HOUR_S, OPEN_LIMITS

ENTRIES = 8_192
"""The most identities that use something at a time. For further ones, each process applies the limits alone."""
PROBES_MAX = 64
"""The most entries searched for an identity. Once all entries were used, only this ends the search for a new one."""
_HEAD = Struct("=16sd")
_COUNT = Struct("=q")
_PLACES = {limit: place for place, limit in enumerate(OPEN_LIMITS)}


def entry_bytes(processes: int) -> int:
    return _HEAD.size + processes * len(OPEN_LIMITS) * _COUNT.size


def shared_bytes(processes: int) -> int:
    return ENTRIES * entry_bytes(processes)


class SharedUse:
    """The file as one process uses it. Invariant: a process changes only its own counts, and only with the lock."""

    def __init__(self, descriptor: int, processes: int, number: int) -> None:
        self._descriptor = descriptor
        self._processes = processes
        self._size = entry_bytes(processes)
        self._own = _HEAD.size + number * len(OPEN_LIMITS) * _COUNT.size
        self._map = mmap.mmap(descriptor, shared_bytes(processes))
        # The process that had this number before has died, so its counts are cleared.
        nothing = bytes(len(OPEN_LIMITS) * _COUNT.size)
        with self._locked():
            for own in range(self._own, len(self._map), self._size):
                self._map[own : own + len(nothing)] = nothing

    def take(self, key: str, limit: str, most: int | None) -> bool:
        with self._locked():
            entry = self._find(key)
            if entry is None:
                return True
            place = _PLACES[limit] * _COUNT.size
            step = len(OPEN_LIMITS) * _COUNT.size
            places = range(entry + _HEAD.size + place, entry + self._size, step)
            if most is not None and sum(_COUNT.unpack_from(self._map, each)[0] for each in places) >= most:
                return False
            self._add(entry + self._own + place, 1)
            return True

    def give_back(self, key: str, limit: str) -> None:
        with self._locked():
            entry = self._find(key)
            if entry is not None:
                self._add(entry + self._own + _PLACES[limit] * _COUNT.size, -1)

    def create(self, key: str, partitions: int, per_hour: int) -> bool:
        with self._locked():
            entry = self._find(key)
            if entry is None:
                return True
            digest, until_s = _HEAD.unpack_from(self._map, entry)
            now_s = time.monotonic()
            # The permits come back evenly: the entry holds the time at which all of them are there again.
            until_s = max(until_s, now_s) + partitions * HOUR_S / max(per_hour, 1e-9)
            if until_s > now_s + HOUR_S + 1e-6:
                return False
            _HEAD.pack_into(self._map, entry, digest, until_s)
            return True

    def give_back_created(self, key: str, partitions: int, per_hour: int) -> None:
        with self._locked():
            entry = self._find(key)
            if entry is not None:
                digest, until_s = _HEAD.unpack_from(self._map, entry)
                # A time in the past means the same as now: all permits are there.
                _HEAD.pack_into(self._map, entry, digest, until_s - partitions * HOUR_S / max(per_hour, 1e-9))

    def _add(self, at: int, change: int) -> None:
        # A thing that was opened before the file had room for its identity was not counted.
        _COUNT.pack_into(self._map, at, max(0, _COUNT.unpack_from(self._map, at)[0] + change))

    def _find(self, key: str) -> int | None:
        digest = blake2b(key.encode(), digest_size=16).digest()
        first, free = int.from_bytes(digest[:4], "big") % ENTRIES, None
        # The entries are a hash table with open addressing: the search begins where the digest says.
        for step in range(PROBES_MAX):
            entry = (first + step) % ENTRIES * self._size
            found, until_s = _HEAD.unpack_from(self._map, entry)
            if found == digest:
                return entry
            unused = until_s <= time.monotonic() and not any(self._map[entry + _HEAD.size : entry + self._size])
            if unused and free is None:
                free = entry
            # After an entry that was never used, no entry is of this identity.
            if not any(found):
                break
        if free is not None:
            _HEAD.pack_into(self._map, free, digest, 0.0)
        return free

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock belongs to the process, and the kernel ends it when the process dies.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, 0, os.SEEK_SET)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, 0, os.SEEK_SET)
