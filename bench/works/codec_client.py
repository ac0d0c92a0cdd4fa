"""Encodes and decodes PushRequests with 100 bytes of data, with one codec.

    python -P codec_client.py stream-node|pybare FOLDER

prints one JSON line: [encoded per second, decoded per second]. The package `bare` is taken from the folder.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

REPEATS = 3
COUNT = 20_000


def _best_per_second(action: Callable[[], Any]) -> float:
    best_s = float("inf")
    for _ in range(REPEATS):
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
    codec, folder = sys.argv[1:]
    sys.path.insert(0, folder)
    encode, decode = (_pybare if codec == "pybare" else _ours)(b"x" * 100)
    sys.stdout.write(json.dumps([_best_per_second(encode), _best_per_second(decode)]) + "\n")


if __name__ == "__main__":
    main()
