"""Goal: what one process writes into shared memory the other reads, of any size. Method: two mappings of one file."""

from __future__ import annotations

import os

import pytest

from stream_storage.sqlite.bulk.child_main import STEP_BYTES, SharedMemory


@pytest.fixture(params=["memory", "file"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SharedMemory:
    """Shared memory of Linux, and a file, as on systems without it."""
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    return SharedMemory.create()


def test_what_one_side_writes_the_other_reads(memory: SharedMemory) -> None:
    """The memory may grow after the other process has read it, and while a process holds an older view."""
    other = SharedMemory(os.dup(memory.descriptor))
    memory.view(5)[:] = b"first"
    early = other.view(5)
    assert bytes(early) == b"first"
    large = os.urandom(STEP_BYTES + 1)
    memory.grow(len(large))
    memory.view(len(large))[:] = large
    assert bytes(other.view(len(large))) == large
    assert bytes(early) == large[:5]
    memory.close()
    assert bytes(other.view(3)) == large[:3]
    other.close()


def test_nothing_is_read_beyond_its_end(memory: SharedMemory) -> None:
    assert len(memory.view(STEP_BYTES)) == STEP_BYTES
    with pytest.raises(EOFError, match="of shared memory that has"):
        memory.view(STEP_BYTES + 1)
    memory.grow(STEP_BYTES + 1)
    assert len(memory.view(STEP_BYTES + 1)) == STEP_BYTES + 1
    memory.close()
