"""Block files: read, written, damaged, and never held whole."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.errors import BlockFileError, BlockFormatError, VerificationFailed
from block_node.blocks.files import (
    GZIP,
    PLAIN,
    ZSTD,
    find_files,
    find_number,
    nested_path,
    read_batches,
    read_items,
    write_block,
)
from block_node.blocks.generator import BlockShape, ChainGenerator
from block_node.blocks.items import Item, item_size, make_item, split_block
from block_node.blocks.settings import VerifierSettings
from block_node.blocks.verifier import Verifier
from block_node.item_splitting import ItemBatch, ItemJoiner, ItemSplitter
from block_node.protocol import Piece
from tests.support.blocks import ALL_BUT_TSS, ROOTS, join_block, own_verifier, real_blocks, signing_keys
from tests.support.data_dir import overwrite


def joined(batches: Iterable[ItemBatch]) -> list[Item]:
    joiner = ItemJoiner()
    for batch in batches:
        joiner.add(batch.items, batch.piece)
    assert not joiner.is_in_item
    return joiner.take()


SUFFIXES = pytest.mark.parametrize("suffix", [PLAIN, GZIP, ZSTD])
ITEMS = [make_item(11, bytes([number]) * (37 * number)) for number in range(1, 9)]


@pytest.mark.parametrize("name", list(ROOTS))
def test_real_files_are_read(shared_dir: Path, name: str) -> None:
    """Goal: files as the real node's tests have them. Method: each file's items against its bytes, unpacked whole."""
    for number, block in enumerate(real_blocks(shared_dir, name)):
        path = shared_dir / "data" / "hiero" / name / f"{number}.blk.gz"
        assert list(read_items(path)) == list(split_block(block))
        batches = read_batches(path, batch_bytes=100)
        assert b"".join(item for batch in batches for item in batch.items) == b"".join(split_block(block))


@SUFFIXES
def test_files_are_read_as_they_were_written(tmp_path: Path, suffix: str) -> None:
    """Goal: every suffix holds the same block, and can be read by the common tools. Method: write whole items, read
    them whole and in pieces, compare the bytes; unpack with the libraries."""
    path = tmp_path / f"7{suffix}"
    assert write_block(path, ITEMS) == len(join_block(ITEMS))
    assert list(read_items(path)) == ITEMS
    for batch_bytes in (32, 64, 1000):
        batches = list(read_batches(path, batch_bytes=batch_bytes))
        assert max(batch.size_bytes for batch in batches) <= batch_bytes
        assert joined(batches) == ITEMS
    raw = path.read_bytes()
    if suffix == GZIP:
        raw = gzip.decompress(raw)
    elif suffix == ZSTD:
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(raw)
    assert raw == join_block(ITEMS)


@SUFFIXES
def test_a_file_that_is_cut_short_is_told(tmp_path: Path, suffix: str) -> None:
    """Goal: a file cut anywhere is an error, and what comes before it is a prefix. Method: cut at every byte; a plain
    file cut between two items lacks its proof, which verification tells."""
    items = list(ChainGenerator(signing_keys()).next_block().items)
    path, cut = tmp_path / f"0{suffix}", tmp_path / f"1{suffix}"
    write_block(path, items)
    whole = path.read_bytes()
    cut.write_bytes(whole)
    between = {len(join_block(items[:count])) for count in range(1, len(items))} if suffix == PLAIN else set()
    # The longest first: a file is shortened in no time, and a new content may wait for the disk (`overwrite`).
    for size in reversed(range(len(whole))):
        os.truncate(cut, size)
        read: list[Item] = []
        if size in between:
            with pytest.raises(VerificationFailed):
                own_verifier().verify(read_items(cut))
        else:
            with pytest.raises(BlockFileError):
                read.extend(read_items(cut))
        assert items[: len(read)] == read


@pytest.mark.parametrize("suffix", [GZIP, ZSTD])
def test_a_damaged_file_is_told(tmp_path: Path, suffix: str) -> None:
    """Goal: checksums of the compression are looked at. Method: a flipped bit in every byte: an error, or the very same
    items, where the byte is one of the frame that says nothing of them; bytes behind the end."""
    path, damaged = tmp_path / f"0{suffix}", tmp_path / f"1{suffix}"
    write_block(path, ITEMS)
    whole = path.read_bytes()
    unnoticed = 0
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x10
        overwrite(damaged, changed)
        try:
            assert list(read_items(damaged)) == ITEMS
            unnoticed += 1
        except BlockFileError:
            continue
    assert unnoticed <= 8
    damaged.write_bytes(whole + b"more")
    with pytest.raises(BlockFileError, match="cut short or damaged"):
        list(read_items(damaged))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"\x12\x00", "a block has only items"),
        (b"\x0a\x00", "an item is empty"),
        (b"\x0a\xff\xff\xff\xff\x0f", "are allowed"),
        (b"\x0a" + b"\xff" * 20, "more than 64 bits"),
        (b"\x0a\x05abc", "ends within an item, 2 bytes are missing"),
        (b"\x0a\x80", "ends within an item"),
    ],
)
def test_what_is_no_block_is_told(tmp_path: Path, content: bytes, reason: str) -> None:
    """Goal: an error that names the file and the place. Method: one fault each."""
    path = tmp_path / "3.blk"
    path.write_bytes(content)
    with pytest.raises(BlockFileError, match=reason) as failure:
        list(read_items(path))
    assert str(path) in str(failure.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    """Goal: errors of the system are errors of the file. Method: missing, a folder, an unknown suffix, a missing
    folder."""
    for path in (tmp_path / "gone.blk", tmp_path):
        with pytest.raises(BlockFileError):
            list(read_items(path))
    with pytest.raises(BlockFileError, match=r"block files end in"):
        list(read_items(tmp_path / "1.bin"))
    with pytest.raises(BlockFileError, match="was not written: No such file"):
        write_block(tmp_path / "no" / "1.blk", ITEMS)


@SUFFIXES
def test_writing_is_whole_or_not_at_all(tmp_path: Path, suffix: str) -> None:
    """Goal: a writer that fails leaves the file that was there, and nothing beside it. Method: a source that fails
    within the block."""
    path = tmp_path / f"1{suffix}"
    write_block(path, ITEMS[:2])

    def failing() -> Iterator[Item]:
        yield from ITEMS
        raise BlockFormatError("the source ended")

    with pytest.raises(BlockFileError, match="was not written"):
        write_block(path, failing())
    assert list(read_items(path)) == ITEMS[:2]
    assert os.listdir(tmp_path) == [path.name]


def test_names_and_places_of_the_real_node(tmp_path: Path) -> None:
    """Goal: files lie where the real node looks for them. Method: its example, the largest number, and a folder of both
    ways of naming, searched by number."""
    assert nested_path(Path("d"), 123) == Path("d/000/000/000/000/000/0/0000000000000000123.blk.zstd")
    assert nested_path(Path("d"), 1234567890123456789, PLAIN).parent == Path("d/123/456/789/012/345/6")
    nested = nested_path(tmp_path, 12)
    nested.parent.mkdir(parents=True)
    for path in (nested, tmp_path / "7.blk.gz", tmp_path / "notes.txt", tmp_path / "x7.blk"):
        path.touch()
    assert find_files(tmp_path).blocks == [(7, tmp_path / "7.blk.gz"), (12, nested)]
    assert [find_number(Path(name)) for name in ("7.blk", "007.blk.zstd", "7.blk.xz", "a.blk")] == [7, 7, None, None]
    (tmp_path / "12.blk").touch()
    with pytest.raises(BlockFileError, match="are of the same block"):
        find_files(tmp_path)


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(32, 400))
def test_chunks_of_any_size_give_the_same_items(sizes: list[int], batch_bytes: int) -> None:
    """Goal: how bytes are read does not matter. Method: chunks of any size, and all at once."""
    block = join_block(ITEMS)

    def cut(chunks: Iterable[bytes]) -> list[Item]:
        splitter = ItemSplitter(batch_bytes, 1000)
        batches = [batch for chunk in chunks for batch in splitter.feed(chunk)] + splitter.finish()
        assert {item_size(batch.items[0]) for batch in batches if batch.piece is Piece.FIRST} <= set(map(len, ITEMS))
        return joined(batches)

    chunks, at = [], 0
    for size in sizes:
        chunks.append(block[at : at + size])
        at += size
    assert cut([*chunks, block[at:]]) == cut([block]) == ITEMS


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        BlockShape(item_count=1004, item_bytes=100_000),
        BlockShape(item_count=5, item_bytes=100_000_000),
        BlockShape(record_bytes=100_000_000),
    ],
    ids=["many items", "one item", "record file"],
)
def test_a_block_of_100_mb_is_never_held(tmp_path: Path, shape: BlockShape) -> None:
    """Goal: reading and verifying take memory that does not grow with the block, the record file's signatures included.
    Method: 100 MB as many items, one item, or the record file; what Python allocates while the file is read in pieces
    and verified stays below 8 MB."""
    path = tmp_path / "0.blk"
    write_block(path, ChainGenerator(signing_keys(), shape=shape).next_items())
    books = AddressBooks.always(signing_keys().address_book)
    verifier = Verifier(VerifierSettings(levels=ALL_BUT_TSS), address_books=books)
    tracemalloc.start()
    try:
        verification = verifier.begin_block(0)
        for batch in read_batches(path, batch_bytes=1 << 18):
            verification.add(batch.items, batch.piece)
        result = verification.end()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    verifier.link(result)
    assert result.size_bytes > 100_000_000
    assert peak < 8 << 20
    path.unlink()


def test_a_frame_that_grows_does_not_fill_memory(tmp_path: Path) -> None:
    """Goal: a small file cannot make us hold much. Method: 200 MB of zeros in some kilobytes, as one item above the
    limit, and as no item at all."""
    path = tmp_path / "0.blk.zstd"
    for begin, reason in ((b"\x0a\xff\xff\xff\xff\x03", "are allowed"), (b"\0", "only items")):
        compressor = zstandard.ZstdCompressor().compressobj()
        data = compressor.compress(begin)
        data += b"".join(compressor.compress(bytes(1 << 20)) for _ in range(200)) + compressor.flush()
        path.write_bytes(data)
        assert len(data) < 100_000
        tracemalloc.start()
        try:
            with pytest.raises(BlockFileError, match=reason):
                list(read_items(path))
            assert tracemalloc.get_traced_memory()[1] < 100 << 20
        finally:
            tracemalloc.stop()
