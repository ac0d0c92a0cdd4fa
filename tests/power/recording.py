"""Records what processes do to the files below a folder, by a library that is preloaded into them (`recorder.c`).

The recorder needs Linux and a C compiler; `need_recorder` skips a test without them. Disks are built in `disks.py`.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

SOURCE = Path(__file__).with_name("recorder.c")
HEAD: Final = struct.Struct("<IIIIQQQ")


class Kind(IntEnum):
    """The kinds of events, as in `recorder.c`. A test writes MARK events into the trace itself."""

    OPENED = 1
    WRITTEN = 2
    SIZED = 3
    BEGUN = 4
    SYNCED = 5
    RENAMED = 6
    LINKED = 7
    REMOVED = 8
    MADE = 9
    POINTED = 10
    MARK = 100


class Event(NamedTuple):
    """One event of the trace.

    path: the name, relative to the root. other: the new name of a rename or a link, or the target of a symbolic link.
    inode: the file's number; the system may give it to another file later. size: the new size of a file that was sized;
    1 for a file that was emptied when it was opened.
    """

    kind: Kind
    path: str
    other: str
    inode: int
    offset: int
    size: int
    data: bytes


class Recording:
    """A recording: the files below `root`, and the trace of all changes by processes that run with `environment`."""

    def __init__(self, folder: Path) -> None:
        self.root = (folder / "disk").resolve()
        self.root.mkdir()
        self._trace = folder / "trace"
        self._marks = os.open(self._trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.environment = {
            "LD_PRELOAD": str(_library()),
            "POWER_ROOT": str(self.root),
            "POWER_TRACE": str(self._trace),
        }

    def mark(self, what: str, **fact: Any) -> None:
        """Write a mark into the trace: from now on something is promised, as a confirmed push or a finished command."""
        data = msgspec.msgpack.encode({"what": what, **fact})
        os.write(self._marks, HEAD.pack(HEAD.size + len(data), Kind.MARK, 0, 0, 0, 0, len(data)) + data)

    def run(self, *arguments: str | Path, expect: int = 0) -> str:
        """Record a Python program to its end, and return its standard output."""
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == expect, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    def events(self) -> list[Event]:
        """All events so far, in order."""
        return list(read_trace(self._trace.read_bytes(), f"{self.root}/"))


def read_trace(trace: bytes, root: str) -> Iterator[Event]:
    """root: with a slash at its end; paths are told without it, that of the root as an empty one."""
    at = 0
    while at < len(trace):
        total, kind, path_bytes, other_bytes, inode, offset, length = HEAD.unpack_from(trace, at)
        begin = at + HEAD.size
        middle, end = begin + path_bytes, begin + path_bytes + other_bytes
        path, other = trace[begin:middle].decode(), trace[middle:end].decode()
        if kind != Kind.POINTED:
            other = other.removeprefix(root)
        path = f"{path}/".removeprefix(root).removesuffix("/")
        yield Event(Kind(kind), path, other, inode, offset, length, trace[end : at + total])
        at += total
    assert at == len(trace), "the trace is cut short"


def need_recorder() -> None:
    """Skip the test, with the reason, where nothing can be recorded."""
    why = _missing()
    if why is not None:
        pytest.skip(why)


@functools.cache
def _missing() -> str | None:
    if not sys.platform.startswith("linux"):
        return "the recorder of power cuts runs on Linux"
    if shutil.which("cc") is None:
        return "no C compiler (cc) for the recorder of power cuts"
    try:
        _library()
        probe = subprocess.run(
            [sys.executable, "-c", "open(__import__('os').environ['POWER_ROOT'] + '/f', 'w').write('x')"],
            env={**os.environ, **_probe_environment()},
            capture_output=True,
            timeout=60,
            check=False,
        )
    except subprocess.CalledProcessError as error:
        return f"the recorder of power cuts cannot be compiled here: {error.stderr.decode(errors='replace')[:200]}"
    if probe.returncode != 0 or not Path(_probe_environment()["POWER_TRACE"]).stat().st_size:
        return "nothing can be preloaded into Python here, so that power cuts cannot be recorded"
    return None


@functools.cache
def _probe_environment() -> dict[str, str]:
    folder = _folder() / "probe"
    folder.mkdir()
    return {"LD_PRELOAD": str(_library()), "POWER_ROOT": str(folder), "POWER_TRACE": str(_folder() / "probed")}


@functools.cache
def _library() -> Path:
    built = _folder() / "recorder.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(built), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return built


@functools.cache
def _folder() -> Path:
    """The folder for the compiled recorder. It belongs to this process and goes when the process ends."""
    made = tempfile.TemporaryDirectory(prefix="stream-node-power-")
    _kept.append(made)
    return Path(made.name).resolve()


_kept: list[tempfile.TemporaryDirectory[str]] = []


def write_trace(events: list[Event]) -> bytes:
    """The trace of these events, with paths from the root on; `read_trace` reads it, with an empty root."""
    records = []
    for event in events:
        path, other = event.path.encode(), event.other.encode()
        total = HEAD.size + len(path) + len(other) + len(event.data)
        head = HEAD.pack(total, event.kind, len(path), len(other), event.inode, event.offset, event.size)
        records.append(head + path + other + event.data)
    return b"".join(records)
