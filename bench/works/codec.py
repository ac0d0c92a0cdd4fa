"""The BARE codec beside pybare, each in its own process, since both are imported as `bare`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.packages import PYBARE, maybe_install
from bench.report import OURS, CodecSample


def compare(rounds: int, place: Path, absent: list[str]) -> Iterator[CodecSample]:
    """Samples of our codec and of pybare, in turn. If pybare cannot be installed, `absent` gets a line that says so."""
    folder = maybe_install(PYBARE, place)
    if folder is None:
        absent.append(f"pybare: {PYBARE} cannot be installed")
    for round_ in range(rounds):
        yield _in_child(OURS, round_, Path(__file__).parents[2])
        if folder is not None:
            yield _in_child("pybare", round_, folder)


def _in_child(codec: str, round_: int, first_on_path: Path) -> CodecSample:
    program = Path(__file__).with_name("codec_client.py")
    command = [sys.executable, "-P", str(program), codec, str(first_on_path)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    encode, decode = msgspec.json.decode(answer, type=tuple[float, float])
    return CodecSample(codec, round_, encode, decode)
