"""Goal: the demo of blocks finds each broken promise, and keeps them all.

Method: the comparison is pure, so each promise is broken once; then the real thing, with real nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_node.demo.parts import BLOCKS, check, run_blocks

PUBLISHED = [[b"a", b"b"], [b"c"], [b"d"]]


def test_what_came_once_and_whole_breaks_nothing() -> None:
    assert check(PUBLISHED, list(enumerate(PUBLISHED))) == []


@pytest.mark.parametrize(
    ("received", "says"),
    [
        ([(0, [b"a", b"b"]), (2, [b"d"])], "the subscriber got the blocks [0, 2]"),
        ([(0, [b"a", b"b"]), (1, [b"c"]), (1, [b"c"]), (2, [b"d"])], "the subscriber got the blocks [0, 1, 1, 2]"),
        ([(1, [b"c"]), (0, [b"a", b"b"]), (2, [b"d"])], "the subscriber got the blocks [1, 0, 2]"),
        ([(0, [b"a"]), (1, [b"c"]), (2, [b"d"])], "block 0: what came is not what was published"),
    ],
)
def test_each_broken_promise_is_said(received: list[tuple[int, list[bytes]]], says: str) -> None:
    (broken,) = check(PUBLISHED, received)
    assert says in broken


@pytest.mark.soak
def test_two_publishers_of_which_one_dies(tmp_path: Path) -> None:
    """The same runs in `tests/black_box/test_demo.py`, whose command fails if a promise is broken."""
    proof = run_blocks(tmp_path)
    assert (proof.published, proof.received, proof.broken) == (BLOCKS, BLOCKS, ())
