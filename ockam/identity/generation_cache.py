"""GenerationCache: a bounded cache that forgets the entries that were not used lately.

A used entry belongs to the young generation. When the young generation is full, it replaces the old generation."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

GENERATION_MIN = 64
"""The first size of a generation, in entries. Real peers use a few routes on a connection."""
GENERATION_MAX = 16_384
"""The largest size, in entries: enough for a client that alternates between ten thousand streams."""
GENERATION_BYTES_MAX = 8 * 1024 * 1024
"""The largest estimated memory of a generation. The entry that exceeds it is still added, as the last one."""
FORGOTTEN_BITS = 1 << 16
"""The number of bits in the record of forgotten keys. Each forgotten key sets one bit, which its hash selects."""
FORGOTTEN_MAX = GENERATION_MAX
"""After this many forgotten keys, their record is cleared, so a new key is seldom mistaken for a forgotten one."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class GenerationCache(Generic[K, V]):
    """A cache of keys and values. size_of: returns the estimated memory of an entry, in bytes.

    If at least half of the keys in a full generation had been forgotten before, the next generation holds up to twice
    as many entries. Keys that never come again do not make the cache grow.

    Invariant: `size_bytes` is the sum of `size_of` for all entries, measured when each was added, plus all changes
    passed to `resize`."""

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
        """Returns the value of a key in the old generation, or None. The entry moves to the young generation."""
        value = self._old.pop(key, None)
        if value is not None:
            self._old_bytes = max(0, self._old_bytes - self._size_of(key, value))
            self._put(key, value)
        return value

    def add(self, key: K, value: V) -> None:
        """Adds a key that is in neither generation: not in `young`, and not found by `recall`."""
        if self._forgotten is not None:
            place = hash(key) % FORGOTTEN_BITS
            self._came_again += self._forgotten[place >> 3] >> (place & 7) & 1
        self._put(key, value)

    def resize(self, change_bytes: int) -> None:
        """Records that a value in the young generation has grown, or shrunk, by this many bytes."""
        self._young_bytes += change_bytes

    def _put(self, key: K, value: V) -> None:
        # A full generation becomes the old one before the entry is added, so that the entry is young.
        if len(self.young) >= self._most or self._young_bytes >= GENERATION_BYTES_MAX:
            self._age()
        self.young[key] = value
        self._young_bytes += self._size_of(key, value)

    def _age(self) -> None:
        # Most connections never fill a generation, so the bits are allocated only here.
        if self._forgotten is None:
            self._forgotten = bytearray(FORGOTTEN_BITS // 8)
        # Only a larger cache would have found the keys that came again, so only these make it grow.
        if self._came_again * 2 >= len(self.young):
            self._most = min(self._most * 2, GENERATION_MAX)
        self._came_again = 0
        # The old generation is dropped, and each of its keys leaves one bit.
        for key in self._old:
            if self._forgotten_count >= FORGOTTEN_MAX:
                self._forgotten = bytearray(FORGOTTEN_BITS // 8)
                self._forgotten_count = 0
            place = hash(key) % FORGOTTEN_BITS
            self._forgotten[place >> 3] |= 1 << (place & 7)
            self._forgotten_count += 1
        self._old, self._old_bytes = self.young, self._young_bytes
        self.young, self._young_bytes = {}, 0
