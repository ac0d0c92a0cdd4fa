"""Reads real text for the demo: the machine's logs, then Python's standard library, then the source of this project."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOTAL_BYTES = 6 * 1024 * 1024
LINE_BYTES_MAX = 16 * 1024


class Line(NamedTuple):
    """A line of a text file. key: the path of the file, so that all its lines go to one partition and keep their
    order."""

    key: bytes
    data: bytes


def read_lines(input_dir: Path | None, total_bytes: int = TOTAL_BYTES) -> list[Line]:
    """Returns the lines of several MB of real text, including empty lines. Raises OSError if there is no text.
    input_dir: None means text that every machine has. total_bytes: the size at which the reading of files ends."""
    lines: list[Line] = []
    left = total_bytes
    for file in _files(input_dir):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        if b"\0" in content[:1024]:
            continue
        found = [Line(str(file).encode(), line[:LINE_BYTES_MAX]) for line in content.splitlines()]
        lines += found
        left -= len(content)
        if left <= 0:
            return lines
    if not lines:
        raise OSError(f"found no text to push in {input_dir or 'the usual places'}; name a folder with --input-dir")
    return lines


def _files(input_dir: Path | None) -> Iterator[Path]:
    if input_dir is not None:
        yield from sorted(path for path in input_dir.rglob("*") if path.is_file())
        return
    yield from sorted(path for path in Path("/var/log").glob("*.log") if path.is_file())
    yield from sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    yield from sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    yield from sorted(Path(__file__).parents[2].rglob("*.py"))
