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
        subprocess.run(["umount", str(mounted)], check=True)
