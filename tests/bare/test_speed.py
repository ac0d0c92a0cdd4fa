"""The goal for speed: a push request at least five times as fast as with pybare, which is imported as `bare` too."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import pytest

RATIO_MIN = 5

# Run in a process of its own for each codec, with the folder of that codec's `bare` as its argument.
MEASURE = """
import io, json, sys, timeit
sys.path.insert(0, sys.argv[1])
import bare
data = b"x" * 100
if hasattr(bare, "Encoder"):
    import msgspec
    class PushRequest(msgspec.Struct, frozen=True, gc=False):
        request_id: bare.UInt
        data: bytes
    encode, decode = bare.Encoder(PushRequest).encode, bare.Decoder(PushRequest).decode
    value = PushRequest(300, data)
else:
    class PushRequest(bare.Struct):
        request_id = bare.Field(bare.UInt)
        data = bare.Field(bare.Data)
    encode, value = PushRequest.pack, PushRequest(request_id=300, data=data)
    decode = lambda message: PushRequest.unpack(io.BytesIO(message))
message = bytes(encode(value))
assert message.hex() == "ac0264" + data.hex(), message
best_s = [min(timeit.repeat(lambda: action(given), number=5000, repeat=5)) for action, given in
          ((encode, value), (decode, message))]
print(json.dumps([5000 / seconds for seconds in best_s]))
"""


def rates(folder: pathlib.Path) -> tuple[float, float]:
    """Messages encoded and decoded per second, best of five."""
    command = [sys.executable, "-P", "-c", MEASURE, str(folder)]
    answer = subprocess.run(command, capture_output=True, check=True, timeout=60)
    encoded, decoded = json.loads(answer.stdout)
    return encoded, decoded


def pybare_folder() -> pathlib.Path | None:
    """Where pybare is: it cannot stand in our environment for good, so usually in a folder that a variable names."""
    if named := os.environ.get("PYBARE_FOLDER"):
        return pathlib.Path(named)
    try:
        return pathlib.Path(str(importlib.metadata.distribution("pybare").locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        return None


def test_a_push_request_is_coded_at_least_five_times_as_fast_as_by_pybare() -> None:
    folder = pybare_folder()
    if folder is None:
        pytest.skip("no pybare: pip install --no-deps --target FOLDER pybare==1.3.0, and PYBARE_FOLDER=FOLDER")
    ours, theirs = rates(pathlib.Path(__file__).parents[2]), rates(folder)
    for name, mine, other in zip(("encoding", "decoding"), ours, theirs, strict=True):
        assert mine > other * RATIO_MIN, f"{name}: {mine:,.0f}/s against {other:,.0f}/s"
