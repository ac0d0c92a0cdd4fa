"""The cache of the blocks used last."""

from __future__ import annotations

from block_manager.commit_store import LruCache
from tests.block_manager.samples import chain

A, B, C, D = chain("A B C D")


def filled(block_count_max: int = 3) -> LruCache:
    cache = LruCache(block_count_max)
    for block in (A, B, C):
        cache.use(block)
    return cache


def test_the_block_used_longest_ago_leaves() -> None:
    cache = filled()
    cache.use(D)
    assert list(cache) == ["B", "C", "D"]
    assert cache.find("A") is None


def test_a_read_is_a_use() -> None:
    cache = filled()
    assert cache.find("A") == A
    cache.use(D)
    assert list(cache) == ["C", "A", "D"]


def test_a_second_write_is_a_use() -> None:
    cache = filled()
    cache.use(A)
    cache.use(D)
    assert list(cache) == ["C", "A", "D"]


def test_a_read_of_what_is_not_there_is_none() -> None:
    cache = filled()
    assert cache.find("D") is None
    cache.pop("D", None)
    assert list(cache) == ["A", "B", "C"]


def test_discard_and_clear() -> None:
    cache = filled()
    cache.pop("B", None)
    assert list(cache) == ["A", "C"]
    cache.clear()
    assert list(cache) == []


def test_a_cache_of_nothing() -> None:
    assert list(filled(0)) == []
