"""A map of limited size: when the map is full, each new key replaces the oldest one."""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentMap(Generic[K, V]):
    """A map that keeps the `size_max` newest keys and their values. Putting a known key makes it the newest."""

    __slots__ = ("_entries", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._entries: dict[K, V] = {}

    def put(self, key: K, value: V) -> None:
        entries = self._entries
        entries.pop(key, None)
        entries[key] = value
        if len(entries) > self.size_max:
            del entries[next(iter(entries))]

    def find(self, key: K) -> V | None:
        return self._entries.get(key)

    def discard(self, key: K) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()

    def keys(self) -> Set[K]:
        return self._entries.keys()

    def items(self) -> list[tuple[K, V]]:
        return list(self._entries.items())

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
