"""The BARE codec beside pybare, each in its own process, since both are imported as `bare`.

python -m stream_node.bench.codec ours|pybare        prints one JSON line
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

PYBARE = "pybare==1.3.0"
ROUNDS = 5
COUNT = 20_000


class CodecRate(msgspec.Struct, frozen=True):
    """PushRequest with 100 bytes of data: messages encoded and decoded per second, best of five rounds."""

    codec: str
    encode_per_second: float
    decode_per_second: float


def compare() -> list[CodecRate]:
    """Ours and, where it can be installed into a folder of its own, pybare. One run, so that the ratio holds."""
    rates = [_in_child("ours", None)]
    with tempfile.TemporaryDirectory() as directory:
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", directory, PYBARE]
        if subprocess.run(install, capture_output=True, check=False).returncode == 0:
            rates.append(_in_child("pybare", Path(directory)))
    return rates


def _in_child(codec: str, first_on_path: Path | None) -> CodecRate:
    command = [sys.executable, str(Path(__file__)), codec, str(first_on_path or Path(__file__).parents[2])]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return msgspec.json.decode(answer, type=CodecRate)


def _best_per_second(action: Callable[[], Any]) -> float:
    best_s = float("inf")
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        for _ in range(COUNT):
            action()
        best_s = min(best_s, time.perf_counter() - started_s)
    return COUNT / best_s


def _ours(data: bytes) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import bare
    from stream_service.protocol import PushRequest

    encode, decode = bare.Encoder(PushRequest).encode, bare.Decoder(PushRequest).decode
    encoded = encode(PushRequest(300, data))
    return lambda: encode(PushRequest(300, data)), lambda: decode(encoded)


def _pybare(data: bytes) -> tuple[Callable[[], Any], Callable[[], Any]]:
    bare: Any = __import__("bare")

    class Request(bare.Struct):  # type: ignore[misc]
        request_id = bare.Field(bare.UInt)
        data = bare.Field(bare.Data)

    encoded = bytes(Request(request_id=300, data=data).pack())
    return lambda: Request(request_id=300, data=data).pack(), lambda: Request.unpack(io.BytesIO(encoded))


def main() -> None:
    codec, path = sys.argv[1:]
    sys.path.insert(0, path)
    encode, decode = (_ours if codec == "ours" else _pybare)(b"x" * 100)
    rate = {
        "codec": codec,
        "encode_per_second": _best_per_second(encode),
        "decode_per_second": _best_per_second(decode),
    }
    sys.stdout.write(json.dumps(rate) + "\n")


if __name__ == "__main__":
    main()
