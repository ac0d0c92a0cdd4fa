"""What the tests of the house rules share: Python's garbage collector rests, since syntax trees make no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def resting_garbage_collector() -> Iterator[None]:
    """A module of tests parses up to a thousand files and keeps their trees (`tests/style/tree.py::parse`).

    Without this, the collector would look through their millions of nodes again and again, also in tests of other
    folders.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
