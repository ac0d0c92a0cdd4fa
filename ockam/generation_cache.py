"""A bounded memory of what repeats: what is not used again is forgotten, and the bound grows only where that pays.

It keeps two generations. What is found or added is in the young one; when that is full it becomes the old one, and what
the old one held is forgotten. So a look-up costs what a look-up in a dict costs, and what was used lately stays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

GENERATION_MIN = 64
"""Entries of a generation at first: real peers use a few routes on a connection."""
GENERATION_MAX = 4096
"""Entries of a generation at most, for a client that goes round thousands of streams: so many are all known."""
GENERATION_BYTES_MAX = 3 * 1024 * 1024
"""What the entries of a generation may take, by estimate; the entry that passes it is the last."""
FORGOTTEN_BITS = 1 << 15
"""One bit for each value of a hash, set for the keys that were forgotten."""
FORGOTTEN_MAX = 8192
"""After this many forgotten keys the bits begin anew. At most a quarter of them is set by then, so that keys that never
come again are seldom taken for others that did."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class GenerationCache(Generic[K, V]):
    """Keys and values in two generations. size_of: the estimated memory of an entry, in bytes.

    A generation holds GENERATION_MIN entries at first. Where half of the keys added to a generation had been forgotten
    before, a larger one would have known them: then the next one holds twice as many. Keys that never come again make
    nothing grow.
    Invariant: `size_bytes` is the sum of `size_of` over both generations, as it was when each entry came in or `resize`
    was told.
    """

    __slots__ = (
        "_came_again",
        "_forgotten",
        "_forgotten_count",
        "_most",
        "_old",
        "_old_bytes",
        "_size_of",
        "_young_bytes",
        "young",
    )

    def __init__(self, size_of: Callable[[K, V], int]) -> None:
        self._size_of = size_of
        self.forget()

    def forget(self) -> None:
        """Begin anew, with nothing in memory."""
        self.young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._young_bytes = self._old_bytes = 0
        self._most = GENERATION_MIN
        self._came_again = 0
        self._forgotten: bytearray | None = None
        self._forgotten_count = 0

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    @property
    def size_bytes(self) -> int:
        return self._young_bytes + self._old_bytes

    def recall(self, key: K) -> V | None:
        """What is known of a key that is not in `young`; it is young from now on."""
        value = self._old.pop(key, None)
        if value is not None:
            self._old_bytes = max(0, self._old_bytes - self._size_of(key, value))
            self._put(key, value)
        return value

    def add(self, key: K, value: V) -> None:
        """Remember a key that neither `young` nor `recall` knows."""
        if self._forgotten is not None:
            place = hash(key) % FORGOTTEN_BITS
            self._came_again += self._forgotten[place >> 3] >> (place & 7) & 1
        self._put(key, value)

    def resize(self, change_bytes: int) -> None:
        """The value of a young key takes more memory now, or less."""
        self._young_bytes += change_bytes

    def _put(self, key: K, value: V) -> None:
        if len(self.young) >= self._most or self._young_bytes >= GENERATION_BYTES_MAX:
            self._age()
        self.young[key] = value
        self._young_bytes += self._size_of(key, value)

    def _age(self) -> None:
        if self._forgotten is None:
            self._forgotten = bytearray(FORGOTTEN_BITS // 8)
        if self._came_again * 2 >= len(self.young):
            self._most = min(self._most * 2, GENERATION_MAX)
        self._came_again = 0
        for key in self._old:
            if self._forgotten_count >= FORGOTTEN_MAX:
                self._forgotten = bytearray(FORGOTTEN_BITS // 8)
                self._forgotten_count = 0
            place = hash(key) % FORGOTTEN_BITS
            self._forgotten[place >> 3] |= 1 << (place & 7)
            self._forgotten_count += 1
        self._old, self._old_bytes = self.young, self._young_bytes
        self.young, self._young_bytes = {}, 0
