"""Decides when the trio thread commits by itself, without the writing thread. This module does no I/O."""

from __future__ import annotations

COMMIT_S_MAX = 0.001
"""A commit that takes longer is a long one. The trio thread serves no connection while it commits."""
SHORT_COMMITS_MIN = 16
"""The number of consecutive short commits after which the trio thread commits by itself."""


class ShortCommits:
    """Judges whether the disk is fast enough for the trio thread to wait for its commits. Invariant: `_short` is the
    number of short commits since the last long one."""

    __slots__ = ("_short",)

    def __init__(self) -> None:
        self._short = 0

    @property
    def are_usual(self) -> bool:
        return self._short >= SHORT_COMMITS_MIN

    def note(self, seconds: float) -> None:
        self._short = self._short + 1 if seconds <= COMMIT_S_MAX else 0
