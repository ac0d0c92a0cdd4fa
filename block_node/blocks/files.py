"""Reads and writes block files in the formats of the reference block node, each with one serialized `Block`:

    Block = (0x0A length item)*

The suffix is `.blk` without compression, `.blk.gz` for gzip, `.blk.zstd` for one zstd frame. Files are read and written
item by item, so memory does not grow with the file. Writing is atomic: the file is complete and synced, or unchanged.
"""

from __future__ import annotations

import gzip
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import zstandard

from block_node.blocks.errors import BlockFileError, BlockFormatError
from block_node.blocks.items import Item, item_prefix
from block_node.blocks.settings import VerifierSettings
from block_node.item_splitting import ItemBatch, ItemJoiner, ItemSplitter
from ockam.files.durable_files import rename_durably

GZIP_MAGIC = b"\x1f\x8b"
PLAIN, GZIP, ZSTD = ".blk", ".blk.gz", ".blk.zstd"

READ_BYTES = 1 << 18
ITEM_BYTES_MAX = VerifierSettings().item_bytes_max

ZSTD_READ_BYTES = 1 << 10
"""The compressed bytes of one step, which can expand to 32 MiB: a zstd block of four bytes can expand to 128 KiB."""

ZSTD_WINDOW_BYTES_MAX = 1 << 27
"""The largest window that a zstd frame may demand in memory: the default of the zstd command."""

NUMBER_DIGITS = 19
NESTED_DIGITS = 3
"""The number of digits in a directory name of the reference block node. So a directory contains at most 1000 files."""

_NAME = re.compile(r"([0-9]{1,36})\.blk(?:\.gz|\.zstd)?")
"""Block nodes pad the block number to 19 digits, and consensus nodes to 36 digits."""
NUMBER_MAX = 2**64 - 1


def read_items(path: Path, *, batch_bytes: int = READ_BYTES) -> Iterator[Item]:
    """Yields the complete items of a block file. Raises BlockFileError at damage; some items before it may be lost.
    batch_bytes: how many bytes of items are collected before the first of them is yielded."""
    joiner = ItemJoiner()
    for batch in read_batches(path, batch_bytes=batch_bytes):
        joiner.add(batch.items, batch.piece)
        if not joiner.is_in_item:
            yield from joiner.take()


def read_batches(path: Path, *, batch_bytes: int) -> Iterator[ItemBatch]:
    """Yields the items of a block file in batches of at most `batch_bytes` bytes. Raises BlockFileError."""
    suffix = _suffix(path)
    is_compressed = False
    splitter = ItemSplitter(batch_bytes, ITEM_BYTES_MAX)
    try:
        with path.open("rb") as file:
            # If gzip has compressed a file whose name does not end in .gz, the error says so.
            is_compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            for chunk in _chunks(file, suffix):
                yield from splitter.feed(chunk)
        yield from splitter.finish()
        if not splitter.offset:
            raise BlockFormatError("it is empty")
    except BlockFormatError as error:
        hint = "; gzip has compressed it, so its name must end in .blk.gz" if is_compressed and suffix == PLAIN else ""
        raise BlockFileError(f"{path} is no block: {error}{hint}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise BlockFileError(f"{path} is cut short or damaged: {error}") from error
    except OSError as error:
        raise BlockFileError(f"{path}: {error.strerror or error}") from error


def write_block(path: Path, items: Iterable[Item]) -> int:
    """Writes a block file; the suffix decides the compression. Returns the size of the block without compression.
    Raises BlockFileError if the disk fails; then nothing is written."""
    suffix = _suffix(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                with _compressing(file, suffix) as out:
                    size = sum(out.write(item_prefix(len(item))) + out.write(item) for item in items)
                file.flush()
                os.fsync(file.fileno())
            rename_durably(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except BlockFormatError as error:
        raise BlockFileError(f"{path} was not written: {error}") from error
    except OSError as error:
        raise BlockFileError(f"{path} was not written: {error.strerror or error}") from error
    return size


def nested_path(root: Path, number: int, suffix: str = ZSTD) -> Path:
    """Returns the reference block node's path, such as `000/000/000/000/000/0/0000000000000000123.blk.zstd`."""
    digits = f"{number:0{NUMBER_DIGITS}}"
    folders = digits[:-NESTED_DIGITS]
    parts = [folders[at : at + NESTED_DIGITS] for at in range(0, len(folders), NESTED_DIGITS)]
    return root.joinpath(*parts, digits + suffix)


def find_number(path: Path) -> int | None:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match and int(match[1]) <= NUMBER_MAX else None


class FoundFiles(NamedTuple):
    """The files below a folder: block files by ascending number, and all others."""

    blocks: list[tuple[int, Path]]
    passed_over: list[Path]


def find_files(folder: Path) -> FoundFiles:
    """Finds all files below a folder. Raises BlockFileError for two files of one block, and for a path that is named as
    a block but is no regular file."""
    found: dict[int, Path] = {}
    passed_over: list[Path] = []
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        number = find_number(path)
        if number is None:
            passed_over.append(path)
            continue
        # Without this check, a broken link would silently count as a missing block.
        if not path.is_file():
            raise BlockFileError(f"{path} is named as a block, but is no file that can be read")
        if number in found:
            raise BlockFileError(f"{found[number]} and {path} are of the same block")
        found[number] = path
    return FoundFiles(sorted(found.items()), passed_over)


def _suffix(path: Path) -> str:
    for suffix in (ZSTD, GZIP, PLAIN):
        if path.name.endswith(suffix):
            return suffix
    raise BlockFileError(f"{path}: block files end in {PLAIN}, {GZIP} or {ZSTD}")


def _chunks(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    if suffix == GZIP:
        with gzip.GzipFile(fileobj=file) as opened:
            yield from iter(lambda: opened.read(READ_BYTES), b"")
    elif suffix == ZSTD:
        yield from read_frame(iter(lambda: file.read(ZSTD_READ_BYTES), b""))
    else:
        yield from iter(lambda: file.read(READ_BYTES), b"")


def read_frame(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompresses one zstd frame, which need not name the size of its content. Raises ZstdError, EOFError."""
    # `stream_reader` is not used here, because it reports no error for a truncated frame.
    frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).decompressobj()
    for chunk in chunks:
        if frame.eof:
            raise zstandard.ZstdError("bytes follow the frame")
        yield frame.decompress(chunk)
    if not frame.eof:
        raise EOFError("the frame has no end")
    if frame.unused_data:
        raise zstandard.ZstdError("bytes follow the frame")


class _Out(Protocol):
    def write(self, data: bytes, /) -> int: ...


@contextmanager
def _compressing(file: BinaryIO, suffix: str) -> Iterator[_Out]:
    if suffix == PLAIN:
        yield file
    elif suffix == GZIP:
        # The gzip header gets no file name and no time, so that the same block always makes the same file.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
            yield compressed
    else:
        compressor = zstandard.ZstdCompressor(write_checksum=True)
        with compressor.stream_writer(file, closefd=False) as writer:
            yield writer
