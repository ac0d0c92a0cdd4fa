"""Joins the pages of one list that several nodes have in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def join_pages(pages: Sequence[tuple[Sequence[T], bool]], key: Callable[[T], Any], limit: int) -> tuple[list[T], bool]:
    """Joins pages that begin at the same place. Returns the first entries of all together, and whether more follow.

    pages: the entries of each page in order, and whether more follow there. key: the order. limit: the most entries.
    """
    # Behind the end of a page that is not the last one, entries can be missing.
    ends = [key(entries[-1]) for entries, more in pages if more and entries]
    joined = sorted((entry for entries, _ in pages for entry in entries), key=key)
    whole = [entry for entry in joined if not ends or key(entry) <= min(ends)]
    return whole[:limit], bool(ends) or len(whole) > limit
