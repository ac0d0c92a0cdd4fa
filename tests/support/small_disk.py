"""A file system of its own that is small, so that it can be filled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(mounted: Path, size: str) -> Iterator[Path]:
    """A file system of that size; skips where we may not mount one."""
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mounted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if done.returncode:
        pytest.skip(f"may not mount a small file system: {done.stderr.strip()}")
    try:
        yield mounted
    finally:
        done = subprocess.run(["umount", str(mounted)], capture_output=True, text=True, check=False)
        if done.returncode:
            # A mount that stayed would fail every later session of pytest, which removes old folders.
            subprocess.run(["umount", "--lazy", str(mounted)], check=True)
            pytest.fail(f"a file of the small disk is still open: {done.stderr.strip()}")
