"""Compresses and decompresses single gRPC messages, with a bound on the memory that a message may take.

A peer can send a frame of a few bytes that stands for gigabytes. So a message whose data grow more than those of real
blocks is first measured without being kept, and decompressed again only if it is small enough.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Final

import zstandard

from block_node.blocks.files import read_frame
from block_node.grpc.http2.status import CallRefused, GrpcStatus

IDENTITY, GZIP, ZSTD = "identity", "gzip", "zstd"
ACCEPTED: Final = (IDENTITY, GZIP, ZSTD)
"""The encodings of messages that this side can read, as in `grpc-accept-encoding`."""
ZSTD_LEVEL: Final = 1
GZIP_LEVEL: Final = 1
STEP_BYTES: Final = 512
"""The compressed bytes of one step, which can expand to 16 MiB: a zstd block of 4 bytes can expand to 128 KiB."""
GZIP_STEP_BYTES: Final = 1024 * 1024
KEPT_RATIO: Final = 32
KEPT_BYTES: Final = 8 * 1024 * 1024
"""A message that decompresses to at most this size, or to KEPT_RATIO times its size, is kept as it is decompressed; a
larger one is decompressed twice. Real blocks become 6.8 times as large (facts/grpc_peers.md §3.3)."""


def compress(data: bytes, encoding: str) -> bytes:
    if encoding == ZSTD:
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
    return gzip.compress(data, GZIP_LEVEL, mtime=0)


def decompress(data: bytes, encoding: str, bytes_max: int) -> bytes:
    """Returns the decompressed message. Raises CallRefused if it is damaged or has more than `bytes_max` bytes."""
    pieces = _zstd_pieces if encoding == ZSTD else _gzip_pieces
    kept_max = min(bytes_max, max(KEPT_BYTES, KEPT_RATIO * len(data)))
    kept: list[bytes] | None = []
    size_bytes = 0
    try:
        for piece in pieces(data):
            size_bytes += len(piece)
            if size_bytes > bytes_max:
                raise CallRefused(
                    GrpcStatus.INVALID_ARGUMENT, f"a message is larger than {bytes_max} bytes when it is decompressed"
                )
            if size_bytes > kept_max:
                kept = None
            elif kept is not None:
                kept.append(piece)
        return b"".join(pieces(data) if kept is None else kept)
    except (zstandard.ZstdError, zlib.error, EOFError) as error:
        raise CallRefused(GrpcStatus.INTERNAL, f"a message is not {encoding}: {error}") from error


def _zstd_pieces(data: bytes) -> Iterator[bytes]:
    # Consensus nodes write frames that do not name the size of their content.
    return read_frame(data[at : at + STEP_BYTES] for at in range(0, len(data), STEP_BYTES))


def _gzip_pieces(data: bytes) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    while not member.eof:
        piece = member.decompress(data, GZIP_STEP_BYTES)
        data = member.unconsumed_tail
        if not (piece or data or member.eof):
            raise EOFError("the data have no end")
        yield piece
    if member.unused_data:
        raise zlib.error("bytes follow the end")
