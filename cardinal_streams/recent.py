"""A map of limited size: when the map is full, each new key replaces the oldest one."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentMap(dict[K, V]):
    """A map that keeps the `size_max` newest keys and their values, which `put` adds."""

    def __init__(self, size_max: int) -> None:
        super().__init__()
        self.size_max = size_max

    def put(self, key: K, value: V) -> None:
        """Adds a key as the newest one, or makes a known key the newest."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self.size_max:
            del self[next(iter(self))]
