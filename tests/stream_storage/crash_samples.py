"""Helpers of the crash tests: start the child process, and count the batches that it left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stream_storage.sqlite.database import Database
from stream_storage.sqlite.verify import verify
from tests.stream_storage.storage_child import ROWS, STREAMS, batch_data
from tests.stream_storage.storage_samples import EVERYTHING, reading

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("storage_child.py")


def run_child(
    *arguments: object, prefix: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> tuple[int, list[dict[str, Any]]]:
    """Run `storage_child.py` to its end, and return its exit status and its lines."""
    finished = subprocess.run(
        [*prefix, sys.executable, str(CHILD), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    return finished.returncode, [json.loads(line) for line in finished.stdout.splitlines()]


def confirmed_of(lines: list[dict[str, Any]]) -> int:
    """How many batches the lines confirm; they must be in order."""
    confirmed = [line["confirmed"] for line in lines if "confirmed" in line]
    assert confirmed == list(range(1, len(confirmed) + 1))
    return len(confirmed)


def stored_batches(directory: Path) -> int:
    """How many batches both streams hold. The batches must be whole, undamaged and the first ones."""
    database = Database.open(directory)
    try:
        with reading(database) as session:
            assert verify(session).problems == ()
            contents: list[list[bytes]] = []
            for name in STREAMS:
                record = session.log.find_stream(name, 0)
                rows = [] if record is None else session.log.read(record.stream_id, 0, EVERYTHING, EVERYTHING)
                contents.append([row[1] for row in rows])
    finally:
        database.close()
    batches, rest = divmod(len(contents[0]), ROWS)
    assert rest == 0
    assert contents == [[data for batch in range(batches) for data in batch_data(batch)]] * len(STREAMS)
    return batches


def need_strace(*calls: str) -> tuple[str, ...]:
    """The beginning of a command whose system `calls` strace traces; skips the test where strace cannot run."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    prefix = (strace, "-f", "-qq", "-e", f"trace={','.join(calls)}")
    probe = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"strace cannot trace here: {probe.stderr.decode(errors='replace').strip()}")
    return prefix


def need_mounts() -> tuple[str, ...]:
    """The beginning of a command that has mounts of its own; skips the test where the system forbids that."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    prefix = (unshare, "--mount", "--propagation", "private")
    probe = subprocess.run([*prefix, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {probe.stderr.decode(errors='replace').strip()}")
    return prefix
