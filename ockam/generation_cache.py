"""A bounded cache in two generations: entries that are not used again are forgotten.

An entry that is found or added belongs to the young generation. When that is full, it becomes the old one, and the
entries of the old one are forgotten. So the entries that were used lately stay, and a look-up costs no more than one in
a dict. The bound grows only where a larger cache would have known more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

GENERATION_MIN = 64
"""The size of a generation at first, in entries: real peers use a few routes on a connection."""
GENERATION_MAX = 4096
"""The size of a generation at most, in entries. A client that uses thousands of streams in turn finds all of them."""
GENERATION_BYTES_MAX = 3 * 1024 * 1024
"""The memory of a generation at most, by estimate; the entry that passes the bound is the last one."""
FORGOTTEN_BITS = 1 << 15
"""The number of bits that record forgotten keys; each key sets the bit of its hash."""
FORGOTTEN_MAX = 8192
"""After this many forgotten keys all bits are cleared. At most a quarter of them is set by then, so that a new key is
seldom taken for a forgotten one."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class GenerationCache(Generic[K, V]):
    """Keys and values in two generations. size_of: the estimated memory of an entry, in bytes.

    A generation holds GENERATION_MIN entries at first. If half of the keys added to a generation had been forgotten
    before, a larger one would have known them, and the next one holds twice as many. Keys that never come again do not
    make the cache grow.
    Invariant: `size_bytes` is the sum of `size_of` over both generations, by the sizes when each entry was added, and
    of the changes that `resize` was called with.
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
        """Forget all entries, and the size that the cache has grown to."""
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
        """The value of a key that is not in `young`, None if unknown. The entry is young from now on."""
        value = self._old.pop(key, None)
        if value is not None:
            self._old_bytes = max(0, self._old_bytes - self._size_of(key, value))
            self._put(key, value)
        return value

    def add(self, key: K, value: V) -> None:
        """Add a key that is neither in `young` nor found by `recall`."""
        if self._forgotten is not None:
            place = hash(key) % FORGOTTEN_BITS
            self._came_again += self._forgotten[place >> 3] >> (place & 7) & 1
        self._put(key, value)

    def resize(self, change_bytes: int) -> None:
        """The value of a young key has grown by so many bytes, or shrunk if negative."""
        self._young_bytes += change_bytes

    def _put(self, key: K, value: V) -> None:
        if len(self.young) >= self._most or self._young_bytes >= GENERATION_BYTES_MAX:
            self._age()
        self.young[key] = value
        self._young_bytes += self._size_of(key, value)

    def _age(self) -> None:
        # Most connections never fill a generation; only the others pay for the bits.
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
